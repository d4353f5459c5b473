"""The labels of the shipped sweep beside an independent count of what everybody sees in its curves."""

from pathlib import Path

import numpy as np
import pytest

from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import load_sweep

SHIPPED = Path(__file__).parents[2] / "sweeps" / "beta2_eps.yaml"
BEFORE = 25  # losses in the running median
JUMP = 1.5  # times the running median: batches of 256 bytes reach that now and then
TALL = 2.8  # times the running median: no batch does


def jumps(losses: np.ndarray, factor: float) -> list[int]:
    """Where the losses begin to be above ``factor`` times the median of those before."""
    found, is_up = [], False
    for step in range(10, len(losses)):
        was_up, is_up = is_up, bool(losses[step] > factor * np.median(losses[max(0, step - BEFORE) : step]))
        if is_up and not was_up:
            found.append(step)
    return found


def judged(losses: np.ndarray) -> MemberRecord:
    """What the detector says of a curve, with the episodes that count for nothing."""
    detector = SpikeDetector(1, StoppingConfig(early_stop=False), len(losses))
    for loss in losses:
        detector.update(float(loss))
    return detector.record()


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[TrialResult, np.ndarray]]:
    """Cells on both sides of the edge, with a short and with a long memory, and the losses of all their steps."""
    folder = tmp_path_factory.mktemp("labels") / "beta2_eps"
    sweep = load_sweep(
        SHIPPED,
        Overrides(
            sets=(
                "axes.beta2={values: [0.9, 0.99]}",
                "axes.eps={values: [1e-8, 5e-4, 4e-3, 1e-2]}",
                "stopping.early_stop=false",
                "telemetry={}",
                "tracking.enabled=false",
            ),
        ),
    )
    run_sweep(sweep, folder, InlineExecutor)
    with LedgerReader(folder / LEDGER) as ledger:
        return [(row, np.asarray(ledger.trace(row.trial_id)["loss"])) for row in ledger.trials()]


@pytest.mark.slow
def test_a_stable_trial_has_no_tall_jump_and_few_others_and_an_unstable_one_has_jumps(trials) -> None:
    assert {row.outcome for row, _ in trials} >= {"stable", "spiked", "diverged"}
    for row, losses in trials:
        if row.outcome == "stable":
            assert not jumps(losses, TALL), row
            assert len(jumps(losses, JUMP)) <= len(losses) / 100, row
        else:
            assert jumps(losses, JUMP), row


@pytest.mark.slow
def test_a_spiked_trial_has_its_onset_and_its_tallest_spike_where_one_sees_them(trials) -> None:
    spiked = [(row, jumps(losses, JUMP), losses) for row, losses in trials if row.outcome == "spiked"]
    assert len(spiked) >= 3
    for row, seen, losses in spiked:
        assert row.num_spikes <= len(seen) + 2, row
        assert abs(row.onset_step - np.array(seen)).min() <= 2, row
        tallest = int(losses[BEFORE:].argmax()) + BEFORE
        faint = [(one.onset_step, one.recovery_step) for one in judged(losses).faint]  # of many jumps, most are
        assert any(onset <= tallest <= (end or row.steps) for onset, end in (*row.episodes, *faint)), row
        assert 0 < row.off_share < 0.5


@pytest.mark.slow
def test_a_diverged_trial_is_off_its_trend_when_it_ends(trials) -> None:
    for row, losses in trials:
        level = np.median(losses[100:200])
        if row.outcome == "diverged":
            assert not np.median(losses[-10:]) < JUMP * level, row
            assert row.onset_step is not None
        elif max(jumps(losses, JUMP), default=0) <= len(losses) - BEFORE:  # no jump that it may still come back from
            assert np.median(losses[-10:]) < JUMP * level, row
