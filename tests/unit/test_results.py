from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sweep_cases import ledger_at, record, sweep_of

import orchestrator
from orchestrator.errors import InputError
from orchestrator.results import SweepResults

GRID = "seeds: [0, 1, 2]\naxes:\n  lr: {values: [0.1, 0.2]}\n  clip: {values: [1.0, null]}\n"
LABELS = ["stable"] * 3 + ["stable", "diverged", "spiked"] + ["diverged"] * 3 + ["planned"] * 3


@pytest.fixture
def results(tmp_path: Path) -> SweepResults:
    with ledger_at(tmp_path / "grid") as ledger:
        record(ledger, sweep_of(GRID), LABELS)
    return orchestrator.load(tmp_path / "grid")


def test_a_sweep_is_a_table_of_trials_with_curves_on_demand(results) -> None:
    trials = results.trials
    assert len(trials) == 12
    assert {"trial_id", "lr", "beta2", "seed", "outcome", "onset_step", "num_spikes", "final_loss"} <= set(trials)
    assert {"validation_loss", "saved_steps"} <= set(trials)
    curve = results.trace(trials.trial_id[0])
    assert curve.step.tolist() == list(range(20))
    assert np.isfinite(curve.loss).all()
    assert repr(results) == "<sweep case: 12 trials, axes lr (2), clip (2)>"


def test_the_map_takes_values_as_they_are_or_as_they_are_written(results) -> None:
    one, other = (results.map("lr", where={"clip": value}) for value in (None, "none"))
    assert one.equals(other)
    assert one.fraction_stable.tolist()[0] == pytest.approx(1 / 3)
    assert one.attrs["note"] == "clip = none"
    assert results.map("clip", where={"lr": 0.1}).fraction_stable.tolist() == [1.0, pytest.approx(1 / 3)]


def test_boundary_recommendation_and_sensitivity_are_at_hand(results) -> None:
    assert [row.kind for row in results.boundary("lr", "clip")] == ["crosses", "not stable throughout"]
    assert results.recommend(1.0).chosen.setting == {"lr": 0.1, "clip": 1.0}
    assert len(results.lr_sensitivity()) == 2


def test_what_is_no_sweep_or_no_trial_is_refused(results, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no ledger.db[\s\S]*results/NAME"):
        orchestrator.load(tmp_path)
    with pytest.raises(InputError, match="no trial 'x'"):
        results.trace("x")
