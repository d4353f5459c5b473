"""The labels of the shipped sweep beside an independent count of what everybody sees in its curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.messages import TrialRow
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import load_sweep

SHIPPED = Path(__file__).parents[2] / "sweeps" / "beta2_eps.yaml"
BEFORE = 25  # losses in the running median
JUMP = 1.5  # times the running median


def excursions(losses: np.ndarray) -> list[int]:
    """Where the losses begin to be above JUMP times the median of those before."""
    found, is_up = [], False
    for step in range(10, len(losses)):
        was_up, is_up = is_up, bool(losses[step] > JUMP * np.median(losses[max(0, step - BEFORE) : step]))
        if is_up and not was_up:
            found.append(step)
    return found


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[TrialRow, np.ndarray]]:
    """The six unstable cells of the map and their neighbours, with the losses of all their steps."""
    folder = tmp_path_factory.mktemp("labels") / "beta2_eps"
    whole = load_sweep(SHIPPED)
    beta2 = sorted({trial.cell["beta2"] for trial in whole.trials})[:3]
    sweep = load_sweep(
        SHIPPED,
        Overrides(
            sets=(f"axes.beta2={{values: {beta2}}}", "stopping.early_stop=false", "tracking.enabled=false"),
        ),
    )
    run_sweep(sweep, folder, InlineExecutor)
    with LedgerReader(folder / LEDGER) as ledger:
        return [(row, np.asarray(ledger.trace(row.trial_id)["loss"])) for row in ledger.trials()]


@pytest.mark.slow
def test_a_stable_trial_has_hardly_a_jump_and_an_unstable_one_many(trials) -> None:
    assert {row.outcome for row, _ in trials} >= {"stable", "spiked", "diverged"}
    for row, losses in trials:
        count = len(excursions(losses))
        if row.outcome == "stable":
            assert count <= 2, row
        else:
            assert count >= 3, row


@pytest.mark.slow
def test_a_spiked_trial_counts_the_jumps_that_one_sees(trials) -> None:
    spiked = [(row, excursions(losses)) for row, losses in trials if row.outcome == "spiked"]
    assert len(spiked) >= 3
    for row, seen in spiked:
        assert len(seen) / 2 <= row.num_spikes <= len(seen) + 2, row
        assert abs(row.onset_step - np.array(seen)).min() <= 2, row
        assert row.peak_factor > JUMP
        assert 0 < row.off_share < 0.5


@pytest.mark.slow
def test_a_diverged_trial_is_off_its_trend_when_it_ends(trials) -> None:
    for row, losses in trials:
        level = np.median(losses[20:40])
        if row.outcome == "diverged":
            assert not np.median(losses[-10:]) < JUMP * level, row
            assert row.onset_step is not None
        else:
            assert np.median(losses[-10:]) < JUMP * level, row
