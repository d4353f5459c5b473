"""Sweeps whose cause of instability was planted: the diagnosis names it, and no other, in every trial that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.api.running import run
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import examine
from orchestrator.causes.mechanisms.data import BAD_BATCH, SHALLOW_STALL
from orchestrator.causes.mechanisms.learning_rate import OVER_THE_THRESHOLD, SHARPENING, WARMUP_TOO_SHORT
from orchestrator.causes.mechanisms.scales import EPSILON_FLOOR, HALF_PRECISION_OVERFLOW
from orchestrator.causes.mechanisms.second_moment import PRECONDITIONER_DECAY, SHORT_MEMORY
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.text import show
from orchestrator.sweepfile.spec import load_sweep

CAUSES = Path(__file__).parents[2] / "sweeps/causes"
PLANTED = {
    "lr_over_edge": OVER_THE_THRESHOLD.key,
    "no_warmup": WARMUP_TOO_SHORT.key,
    "slow_beta2": PRECONDITIONER_DECAY.key,
    "sharpening": SHARPENING.key,
    "short_memory": SHORT_MEMORY.key,
    "epsilon_floor": EPSILON_FLOOR.key,
    "poisoned_batch": BAD_BATCH.key,
    "shallow_stall": SHALLOW_STALL.key,
    "half_precision": HALF_PRECISION_OVERFLOW.key,
}


def test_every_planted_sweep_is_tested_here() -> None:
    assert {path.stem for path in CAUSES.glob("*.yaml")} == PLANTED.keys()


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.slow  # that of docs/diagnosis.md, no_warmup, is among the tests of the docs
@pytest.mark.timeout(900)
def test_the_planted_cause_is_named_in_every_trial_that_is_not_stable_and_no_other(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(CAUSES / f"{name}.yaml")
    assert show(run(sweep, tmp_path, lambda: InlineExecutor, False)) == 0
    with LedgerReader(tmp_path / sweep.name / LEDGER) as ledger:
        rows = ledger.trials()
        unstable = [row for row in rows if row.outcome != "stable"]
        found = [examine(ledger, row, "every one", rows).cause for row in unstable]
    assert unstable, "nothing became unstable: the plant has no effect"
    assert {cause.mechanism if cause else None for cause in found} == {PLANTED[name]}
