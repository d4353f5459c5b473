"""A finished sweep that is judged again under its own settings comes out as it was, whatever its trainer dealt with."""

from pathlib import Path

import numpy as np
import pytest
from tiers import one_of

from orchestrator.base.files import LEDGER
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.replay import UNKNOWN, replay_sweep
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

SMALL_GPT = "width: 8, heads: 2, depth: 1, context: 8, batch_size: 2, validation_batches: 2"
SWEEPS = {
    # At such a scale the first gradients overflow, and these steps are skipped.
    "float16": f"""
objective: gpt
steps: 60
axes: {{lr: {{values: [1.0e-3, 1.0e-2, 1.0e+3]}}, loss_scale: {{values: [1024.0, 1.0e+12]}}}}
fixed: {{{SMALL_GPT}, precision: float16, loss_scale_growth: 5}}
""",
    # Beyond the edge, so that losses rise or are not finite and are taken back, until it is of no use.
    "rollback": """
objective: quadratic
steps: 200
axes: {lr: {values: [0.5, 2.1, 2.5, 1.0e+100]}, rollback: {values: [null, 0, 3]}}
fixed: {optimizer: sgd, beta1: 0.0, rollback_every: 20, noise: 0.01}
""",
    "float16 with rollback": f"""
objective: gpt
steps: 60
axes: {{lr: {{values: [1.0e-3, 1.0e+3]}}, loss_scale: {{values: [1.0, 1.0e+12]}}, rollback: {{values: [null, 1]}}}}
fixed: {{{SMALL_GPT}, precision: float16, rollback_every: 10}}
""",
    "audit": """
objective: quadratic
steps: 120
seeds: [0, 1, 2]
axes: {lr: {values: [0.3, 2.05, 2.3, 30.0, 1.0e+200]}}
fixed: {optimizer: sgd, beta1: 0.0}
stopping: {audit: 0.5, patience: 10}
""",
    "never stopped": """
objective: quadratic
steps: 120
axes: {lr: {values: [0.3, 2.05, 30.0, 1.0e+200]}}
fixed: {optimizer: sgd, beta1: 0.0}
stopping: {early_stop: false, patience: 10}
""",
    "slow trials": """
objective: quadratic
steps: 60
axes: {lr: {values: [0.3, 0.01, 2.3, 0.2, 0.02, 0.5, 0.005]}}
fixed: {optimizer: sgd, beta1: 0.0}
stopping: {slow: {method: median, startup_trials: 1, warmup_steps: 10}}
resources: {pack: 2}
""",
    "plain": """
objective: function_fit
steps: 80
seeds: [0, 1]
axes: {lr: {values: [1.0e-3, 1.0e-2, 1.0e+200]}}
fixed: {width: 8, num_points: 20}
""",
}


def sweep_of(kind: str, *, lines: str = "") -> Sweep:
    text = f"name: unchanged\ntracking: {{enabled: false}}\n{lines}{SWEEPS[kind]}"
    return build_sweep(parse_document(text, "unchanged.yaml"))


def trained(sweep: Sweep, folder: Path) -> LedgerReader:
    run_sweep(sweep, folder, InlineExecutor, ())
    return LedgerReader(folder / LEDGER)


@pytest.mark.parametrize("kind", one_of(3, SWEEPS))
def test_a_sweep_that_is_judged_again_as_it_was_comes_out_as_it_was(tmp_path: Path, kind: str) -> None:
    sweep = sweep_of(kind)
    with trained(sweep, tmp_path) as ledger:
        rows = {row.trial_id: row for row in ledger.trials()}
        assert {row.status for row in rows.values()} == {"finished"}
        again = {trial.trial_id: trial for trial in replay_sweep(ledger, sweep.stopping)}
        traces = {trial_id: ledger.trace(trial_id) for trial_id in rows}
    assert again.keys() == rows.keys()
    for trial_id, row in rows.items():
        trial = again[trial_id]
        found = (trial.new_outcome, trial.new_steps_done, trial.reason)
        assert found == (row.outcome, row.steps_done, row.reason), row.cell
    if kind == "slow trials":
        assert "pruned" in {row.outcome for row in rows.values()}
    if "float16" in kind:
        assert any((trace["is_skipped"] == 1).any() for trace in traces.values()), "steps were skipped"
        skipped = [row for t, row in rows.items() if (traces[t]["is_skipped"] == 1).any()]
        assert "diverged" not in {row.outcome for row in skipped if row.cell["lr"] == 1e-3}
    if "rollback" in kind:
        back = [trace for trace in traces.values() if "rolled_back" in trace and trace["rolled_back"].any()]
        assert back, "steps were taken back"
        assert any((~np.isfinite(trace["loss"]) & (trace["rolled_back"] == 1)).any() for trace in back)


def test_a_trial_of_which_steps_were_not_kept_is_unknown_and_says_why(tmp_path: Path) -> None:
    sweep = sweep_of("plain", lines="telemetry: {curves: 10}\n")
    with trained(sweep, tmp_path) as ledger:
        rows = {row.trial_id: row for row in ledger.trials()}
        again = replay_sweep(ledger, sweep.stopping)
    assert len(again) == len(rows)
    for trial in again:
        is_whole = trial.steps_done <= 2  # whoever is lost at its second step has lost none
        assert (trial.new_outcome == UNKNOWN) != is_whole
        assert trial.new_steps_done == trial.steps_done
        if not is_whole:
            assert f"of {trial.steps_done} steps were kept (telemetry.curves)" in trial.reason
    assert {trial.new_outcome for trial in again} == {UNKNOWN, "diverged"}
