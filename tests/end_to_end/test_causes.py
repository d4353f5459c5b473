"""Sweeps whose cause of instability was planted: the diagnosis names it, and no other, in every trial that shows it.

A log alone tells bad batches from the others.
"""

from pathlib import Path

import pytest

from orchestrator.api.running import run_lines
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import examine
from orchestrator.causes.from_log import explain_log
from orchestrator.detection.config import StoppingConfig
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import replay_logs
from orchestrator.render.text import show
from orchestrator.sweepfile.spec import load_sweep

CAUSES = Path(__file__).parents[2] / "sweeps/causes"
PLANTED = {
    "lr_over_edge": "over_the_threshold",
    "no_warmup": "warmup_too_short",
    "slow_beta2": "preconditioner_decay",
    "sharpening": "sharpening",
    "short_memory": "short_memory",
    "epsilon_floor": "epsilon_floor",
    "poisoned_batch": "bad_batch",
    "shallow_stall": "shallow_stall",
    "half_precision": "half_precision_overflow",
    "router_collapse": "router_collapse",
    "absorption": "absorption",
    "frozen_embedding": "layers_out_of_step",
}


def test_every_planted_sweep_is_tested_here() -> None:
    assert {path.stem for path in CAUSES.glob("*.yaml")} == PLANTED.keys()


def log_of(ledger: LedgerReader, row: TrialResult) -> Log:
    """What a log of the trial would have: its losses, gradient norms and learning rates."""
    trace = ledger.trace(row.trial_id)
    columns = Columns("step", "loss", "grad_norm")
    return Log(row.trial_id, columns, trace["step"].astype(int), trace["loss"], trace["grad_norm"], lr_N=trace["lr"])


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.slow  # that of docs/diagnosis.md, no_warmup, is among the tests of the docs
def test_the_planted_cause_is_named_in_every_trial_that_is_not_stable_and_no_other(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(CAUSES / f"{name}.yaml")
    assert show(run_lines(sweep, tmp_path, "inline")) == 0
    with LedgerReader(tmp_path / sweep.name / LEDGER) as ledger:
        rows = ledger.trials()
        unstable = [row for row in rows if row.ending != "stable"]
        found = [examine(ledger, row, "every one", rows).cause for row in unstable]
        whys = [explain_log(replay_logs([log_of(ledger, row)], StoppingConfig())[0]) for row in unstable]
    assert {why.shape in ("one jump", "single jumps") for why in whys if why is not None} <= {name == "poisoned_batch"}
    assert unstable, "nothing became unstable: the plant has no effect"
    assert {cause.mechanism if cause else None for cause in found} == {PLANTED[name]}
