"""Losses that are judged together come to what they come to one by one, bit for bit."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import SpikeDetector, _Member

Columns = dict[str, np.ndarray]


def random_curve(random: np.random.Generator, num: int) -> np.ndarray:
    """A descent, a plateau or a walk with noise of any size, and with what may befall it."""
    at, start = np.arange(num), 10 ** random.uniform(-2, 3)
    courses = [
        np.exp(-at / num * 10 ** random.uniform(-1, 1.4)) + random.choice([0, 0.1, 0.5]),
        (1 + at) ** -random.uniform(0, 1.5),
        np.ones(num),
        np.exp(np.cumsum(random.normal(0, 10 ** random.uniform(-4, -1), num))),
        1 + random.uniform(0, 3) * np.sin(at / num * random.uniform(3, 30)) ** 2,
        np.where(at < num * random.uniform(), 1, random.uniform(0.2, 5)),
    ]
    noise = 10 ** random.uniform(-4, -0.3)
    loss_N = start * courses[random.integers(len(courses))] * np.exp(random.normal(0, noise, num))
    for _ in range(random.integers(4)):  # spikes, and jumps to a higher level
        first, length = int(random.integers(num)), int(10 ** random.uniform(0, 2.3))
        part = loss_N[first : first + length]
        part *= 1 + 10 ** random.uniform(-1, 2) * np.exp(-np.arange(len(part)) / (length * random.uniform(0.2, 3)))
    what = random.integers(10)
    if what == 0:
        loss_N[: random.integers(1, 60)] *= 10 ** random.uniform(0, 4)
    elif what == 1:
        loss_N[random.integers(50) :: 50] *= 1 + 10 ** random.uniform(-1, 1)
    elif what == 2:
        loss_N[random.integers(num, size=12)] = random.choice([0.0, math.nan, math.inf])
    elif what == 3:
        loss_N -= random.uniform() * start
    return np.round(loss_N, random.integers(1, 7)) if random.uniform() < 0.5 else loss_N


def random_columns(random: np.random.Generator, num: int) -> Columns:
    """A curve with its steps, and maybe gradient norms and steps that were undone."""
    columns = {"loss": random_curve(random, num), "step": np.cumsum(random.integers(1, 9, size=num))}
    if random.uniform() < 0.5:
        columns["norm"] = random.lognormal(size=num)
        columns["norm"][random.integers(num, size=random.integers(3))] = math.inf
    if random.uniform() < 0.2:
        columns["undone"] = (random.uniform(size=num) < 0.02) * random.integers(1, 3, size=num)
    return columns


def random_rules(random: np.random.Generator) -> StoppingConfig:
    return StoppingConfig(
        early_stop=False,
        spike_rise=random.choice([0.02, 0.1, 1.0]).item(),
        window=random.choice([10, 21, 50, 50, 200]).item(),
        min_history=random.choice([3, 20, 20, 100]).item(),
        stall_steps=random.choice([10, 1000]).item(),
        recovery_steps=random.choice([1, 5, 5, 20]).item(),
    )


def parts(columns: Columns, random: np.random.Generator) -> Iterator[Columns]:
    """The columns in parts of any length."""
    at, num = 0, len(columns["loss"])
    while at < num:
        end = at + int(10 ** random.uniform(0, 3.3))
        yield {name: values[at:end] for name, values in columns.items()}
        at = end


def follow(detector: SpikeDetector, part: Columns) -> None:
    detector.follow(part["loss"], part.get("norm"), part["step"], part.get("undone"))


def follow_one_by_one(detector: SpikeDetector, part: Columns) -> None:
    for i in range(len(part["loss"])):
        row = {name: values[i : i + 1] for name, values in part.items()}
        detector.update(row["loss"], row.get("norm"), row["step"], undone_K=row.get("undone"))


def assert_same_at_each_part(seed: int, most: int) -> None:
    random = np.random.default_rng(seed)
    columns, rules = random_columns(random, int(random.integers(60, most))), random_rules(random)
    all_steps = float(random.choice([math.inf, columns["step"][-1] + 1]))
    together, alone = SpikeDetector(1, rules, all_steps), SpikeDetector(1, rules, all_steps)
    for part in parts(columns, random):
        follow(together, part)
        follow_one_by_one(alone, part)
        assert repr(together.state_dict()) == repr(alone.state_dict())  # of NaN too
        assert repr(together.record()) == repr(alone.record())
        if random.uniform() < 0.2:  # as from a checkpoint
            state, together = together.state_dict(), SpikeDetector(1, rules, all_steps)
            together.load_state_dict(state)


@pytest.mark.parametrize("seed", range(12))
def test_losses_judged_together_leave_the_same_state_as_one_by_one(seed: int) -> None:
    assert_same_at_each_part(seed, 900)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_losses_judged_together_leave_the_same_state_as_one_by_one(seed: int) -> None:
    assert_same_at_each_part(seed, 3000)


@pytest.mark.parametrize("learned", [8.0, 0.0, 0.2])
def test_most_losses_of_a_calm_run_are_judged_together(monkeypatch: pytest.MonkeyPatch, learned: float) -> None:
    random, alone = np.random.default_rng(0), list[int]()
    update = _Member.update

    def counted(member: _Member, loss: float, norm: float | None, step: int, undone: int) -> bool:
        alone.append(step)
        return update(member, loss, norm, step, undone)

    monkeypatch.setattr(_Member, "update", counted)
    detector = SpikeDetector(1, StoppingConfig(early_stop=False))
    detector.follow(2 + learned * np.exp(-np.arange(3000) / 1000) + random.normal(0, 0.05, 3000))
    assert detector.record().num_steps == 3000
    assert len(alone) < 300


def test_a_run_that_resumes_far_above_its_past_goes_on_as_one_that_did_not_stop() -> None:
    loss_N = np.concatenate([np.geomspace(10, 2, 300), np.geomspace(9, 6, 200), np.full(100, 2.5)])
    for stop in range(420, 520, 7):
        straight, resumed = (SpikeDetector(1, StoppingConfig(early_stop=False)) for _ in range(2))
        for loss in loss_N[:stop].tolist():
            straight.update(loss)
        resumed.load_state_dict(straight.state_dict())
        for loss in loss_N[stop:].tolist():
            straight.update(loss)
            resumed.update(loss)
        assert resumed.record() == straight.record()
