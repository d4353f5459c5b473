"""Sweeps whose cause of instability was planted: the diagnosis names it, and no other, in every trial that shows it."""

from pathlib import Path

import pytest

from orchestrator.api.running import run_lines
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import examine
from orchestrator.ledger.reader import LedgerReader
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
}


def test_every_planted_sweep_is_tested_here() -> None:
    assert {path.stem for path in CAUSES.glob("*.yaml")} == PLANTED.keys()


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.slow  # that of docs/diagnosis.md, no_warmup, is among the tests of the docs
@pytest.mark.timeout(900)
def test_the_planted_cause_is_named_in_every_trial_that_is_not_stable_and_no_other(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(CAUSES / f"{name}.yaml")
    assert show(run_lines(sweep, tmp_path, "inline")) == 0
    with LedgerReader(tmp_path / sweep.name / LEDGER) as ledger:
        rows = ledger.trials()
        unstable = [row for row in rows if row.outcome != "stable"]
        found = [examine(ledger, row, "every one", rows).cause for row in unstable]
    assert unstable, "nothing became unstable: the plant has no effect"
    assert {cause.mechanism if cause else None for cause in found} == {PLANTED[name]}
