"""Data in blocks of different difficulty: rises of one kind with the falls of the loss are no instabilities."""

import numpy as np
import pytest

from orchestrator.detection import falls
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector

NUM = 3000
SEEDS = range(4)


def descent(random: np.random.Generator) -> np.ndarray:
    return (2.5 + 3.5 * np.exp(-np.arange(NUM) / 150)) * np.exp(0.015 * random.standard_normal(NUM))


def in_blocks(seed: int) -> np.ndarray:
    """A loss over data that were not shuffled: 30 to 150 losses of one difficulty, then of another."""
    random = np.random.default_rng(seed)
    lengths = random.integers(30, 150, NUM // 30)
    return descent(random) * np.repeat(np.exp(0.15 * random.standard_normal(len(lengths))), lengths)[:NUM]


def with_spikes(seed: int) -> np.ndarray:
    """A loss that leaves its trend ten times, and comes back slowly."""
    random, time_N = np.random.default_rng(seed), np.arange(NUM)
    loss_N = descent(random)
    for at in range(300, NUM, 270):
        since_N = time_N - at - int(random.integers(50))
        loss_N *= 1 + random.uniform(0.3, 1.5) * np.where(since_N >= 0, np.exp(-since_N.clip(0) / 20), 0)
    return loss_N


def record(losses: np.ndarray) -> MemberRecord:
    detector = SpikeDetector(1, StoppingConfig(early_stop=False), len(losses))
    detector.follow(losses, None, np.arange(len(losses)))
    return detector.record()


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch):
    """Judge losses as if there were no falls."""

    def judged(losses: np.ndarray) -> MemberRecord:
        with monkeypatch.context() as patch:
            patch.setattr(falls, "_COMMON", NUM)
            return record(losses)

    return judged


def test_most_rises_are_faint_in_a_log_that_falls_as_often_and_as_much(ignored) -> None:
    judged = [(record(losses), ignored(losses)) for losses in map(in_blocks, SEEDS)]
    clear, without = (sum(len(found.episodes) for found in records) for records in zip(*judged, strict=True))
    assert without > len(SEEDS), "more than one false alarm a log"
    assert clear < without / 2
    for found, other in judged:
        assert len(found.episodes) + len(found.faint) == len(other.episodes) + len(other.faint), "they are listed"


def test_a_spike_much_taller_than_the_falls_stands_out_of_such_a_log() -> None:
    for seed in SEEDS:
        losses = in_blocks(seed)
        losses[1500:1520] *= 4
        assert any(1500 <= episode.peak_step < 1520 for episode in record(losses).episodes), seed


def test_nothing_changes_where_the_loss_comes_back_slowly(ignored) -> None:
    for seed in SEEDS:
        losses = with_spikes(seed)
        found = record(losses)
        assert found == ignored(losses)
        assert len(found.episodes) > 5
