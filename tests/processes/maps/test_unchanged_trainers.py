"""A sweep over a custom trainer that is judged again under its own settings comes out as it was."""

from pathlib import Path

import pytest
from custom_cases import sweep_in
from tiers import one_of

from orchestrator.base.files import LEDGER
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.replay import ReplayedTrial, replay_sweep

# Gradient descent on x^2 / 2 whose scaler skips 30 steps, and whose rollback takes one back. The first lines have no
# gradient norm, and it says a loss at every second step from 1 on.
SCRIPT = """
import sys
lr, steps, kind = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
x = 2.0
for step in range(1, steps + 1, 2):
    skipped, undone = kind == "skips" and 20 < step <= 80, kind == "goes_back" and step == 51
    loss, norm = x * x / 2 + 1, abs(x)
    if skipped or kind == "breaks" and step > 40:
        norm = float("nan")
    if undone:
        loss = norm = float("inf")
    line = f"step {step} loss {loss:.9g} a 1 b 2"
    print(line if step < 4 else f"{line} norm {norm:.9g} is_skipped {int(skipped)} rolled_back {int(undone)}")
    x -= lr * x
"""
SWEEP = """
name: mine
objective:
  command: [python, train.py, "{lr}", "{steps}", "{kind}"]
steps: 160
seeds: [0]
axes: {lr: {values: [0.1, 2.2]}, kind: {values: [plain, skips, goes_back, breaks]}}
tracking: {enabled: false}
stopping: {patience: 10}
"""


def judged_again(folder: Path, stopping: str) -> tuple[dict[str, dict], dict[str, ReplayedTrial]]:
    """Rows of the ledger, and what they are under the same settings, by trial."""
    sweep = sweep_in(folder, SCRIPT, SWEEP.replace("patience: 10", f"patience: 10, {stopping}"))
    run_sweep(sweep, folder / "results", InlineExecutor)
    with LedgerReader(folder / "results" / LEDGER) as ledger:
        rows = {row.trial_id: row for row in ledger.trials()}
        return rows, {trial.trial_id: trial for trial in replay_sweep(ledger, sweep.stopping)}


@pytest.mark.parametrize("stopping", one_of(3, ["early_stop: true", "early_stop: false", "audit: 1.0"]))
def test_a_sweep_over_a_script_that_is_judged_again_as_it_was_comes_out_as_it_was(
    tmp_path: Path, stopping: str
) -> None:
    rows, again = judged_again(tmp_path, stopping)
    for trial_id, row in rows.items():
        trial = again[trial_id]
        assert (trial.new_outcome, trial.new_steps_done) == (row.outcome, row.steps_done), row.cell
        assert row.reason.startswith(f"{trial.reason}; "), "and then what was read"
    outcomes = {row.cell["kind"]: row.outcome for row in rows.values() if row.cell["lr"] == 0.1}
    assert outcomes == {"plain": "stable", "skips": "stable", "goes_back": "stable", "breaks": "diverged"}
    lost = [row for row in rows.values() if row.cell["lr"] == 2.2]
    assert {row.outcome for row in lost} == {"diverged"}
    if stopping == "early_stop: true":
        assert all(row.steps_done < 159 for row in lost)
