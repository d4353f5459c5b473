"""Judgements of a training that need the others of its sweep: its share, its learning rate, and how it began.

Plain numbers in, plain numbers and labels out; who compares with whom is for the caller to say.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.base.vocabulary import OSCILLATING, PRUNED, RIGHT, TOO_SLOW, UNKNOWN, UNSURE
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.trend import TINY, blow_up_line

if TYPE_CHECKING:  # commands that read no curve start without it
    import numpy as np

# Shapes: N steps.

# Shares of a smaller fall of the loss, relative to the start, would be shares of noise.
_LEAST_FALL = 0.01

# An axis of such a name has learning rates: the field, or what custom trainers and tables call it. Not so a factor of
# some layers, a floor or a decay.
_LR_NAME = re.compile(
    r"[-_]*(?:(?:optim|optimizer|trainer|training|train|model|args|config|hparams)[._/])*"
    r"(?:(?:peak|max|base|initial|init)[-_ ]?)?(?:lr|learning[-_ ]?rate)(?:[-_](?:max|peak|base))?",
    re.IGNORECASE,
)
# Final losses differ by more than noise above this many standard deviations of the seeds of a cell: 5 % of pairs of
# equal cells are farther apart than 2.8, and the same seed on both sides shares most of its noise.
BEYOND_NOISE = 2.0
# A smaller share of the loss is no difference, however little the seeds scatter.
LEAST_DIFFERENCE = 0.02
# The same for a single seed: the final loss of a seed of gpt scatters by about one percent.
LEAST_OF_ONE_SEED = 0.05
# Below this share of the initial loss all is learned, and no difference matters.
ALL_LEARNED = 1e-4
# Step-to-step noise of this many times the noise at the next lower learning rate, on the same batches. The noise of
# batches grows by less: with the level of the loss.
SHAKING = 3.0
_TAIL = 0.25  # share of the steps in which step-to-step noise is measured
_FEWEST = 8  # losses in that tail
_BEGUN = 3  # trainings at lower learning rates that say where one begins
_TO_DEVIATION = 1 / (
    0.6745 * math.sqrt(6.0)
)  # of independent normal losses, from the median size of second differences


def learned_shares(results: Sequence[tuple[str | None, float | None, float | None]]) -> list[float | None]:
    """Return (start - final loss) / (start - best final loss) for each (outcome, initial loss, final loss) of a sweep.

    The best final loss is the lowest of trials that were not lost. The start is the initial loss, at most the lower
    quartile of the sweep's initial losses: an initial blow-up is not what was learned. A share is None without losses,
    and if no trial of the sweep has learned anything.
    """
    initials = sorted(_finite(initial for _, initial, _ in results))
    finals = _finite(final for outcome, _, final in results if outcome in ("stable", "spiked"))
    if not initials or not finals:
        return [None] * len(results)
    usual, best = initials[(len(initials) - 1) // 4], min(finals)
    return [_share(*result, usual, best) for result in results]


def _share(outcome: str | None, initial: float | None, final: float | None, usual: float, best: float) -> float | None:
    if outcome in (None, UNKNOWN) or initial is None or final is None:
        return None
    start = min(initial, usual)
    if start - best <= _LEAST_FALL * abs(start):
        return None
    share = (start - final) / (start - best)
    return share if math.isfinite(share) else None


def _finite(losses: Iterable[float | None]) -> list[float]:
    return [loss for loss in losses if loss is not None and math.isfinite(loss)]


class Training(NamedTuple):
    """A training at a learning ``rate``. ``is_degraded`` says whether it learned too little to measure noise on."""

    rate: float
    seed: int
    outcome: str | None
    initial_loss: float | None
    final_loss: float | None
    is_degraded: bool = False


class LrHealth(NamedTuple):
    """The label of a training's learning rate, and by how much its final loss exceeds the best one of its seed."""

    label: str | None = None
    regret: float | None = None


def is_learning_rate(name: str) -> bool:
    """Return whether an axis of this ``name`` has learning rates."""
    return _LR_NAME.fullmatch(name) is not None


def lr_axis(names: Collection[str]) -> str | None:
    """Return the axis of learning rates among ``names``, the first of several; None without one."""
    return next((name for name in names if is_learning_rate(name)), None)


def lr_health(trainings: Sequence[Training], noise_of: Callable[[int], float] | None = None) -> list[LrHealth]:
    """Return label and regret of each of ``trainings``, which differ in learning rate and seed alone.

    Only cells whose seeds are all stable or stalled have a label; ``RIGHT`` means that no other learning rate ends
    lower by more than noise. ``noise_of`` gives the ``step_noise`` of a training's loss by its index. With it, a right
    learning rate is oscillating if its loss shakes for nothing: from step to step ``SHAKING`` times as much as at the
    next lower learning rate with the same seed, by an amount that matters, without ending lower.
    """
    cells: dict[float, list[int]] = {}
    for i, training in enumerate(trainings):
        if training.outcome not in (None, PRUNED, UNKNOWN):
            cells.setdefault(training.rate, []).append(i)
    if len(cells) < 2:
        return [LrHealth()] * len(trainings)
    row = _row(trainings, [cells[rate] for rate in sorted(cells)])
    made = [LrHealth()] * len(trainings)
    for i in row.judged:
        best = row.best(trainings[i].seed)
        regret = None if best is None else max(0.0, row.final(i) - row.final(best))
        made[i] = LrHealth(row.label(i, best), regret)
    if noise_of is not None:
        right = {i for i, health in enumerate(made) if health.label == RIGHT}
        for i in row.shaking(right, noise_of):
            made[i] = made[i]._replace(label=OSCILLATING)
    return made


@dataclass(frozen=True, slots=True)
class _Row:
    """Trainings along the learning rate, by their index in ``trainings``.

    ``judged`` are in cells without a training off its trend. ``calm`` maps a seed to its trainings in cells whose
    trainings are all stable; both ascend in the learning rate. ``noise`` is the standard deviation of the final losses
    of a cell's seeds, the median of the calm cells that are not degraded: where little is learned, seeds differ by what
    they began with. It is None with single seeds. ``lowest`` and ``highest`` are the ends of the learning rates that
    have a result.
    """

    trainings: Sequence[Training]
    judged: tuple[int, ...]
    calm: Mapping[int, Sequence[int]]
    noise: float | None
    lowest: float
    highest: float

    def final(self, i: int) -> float:
        """Return the final loss of a training that has one."""
        loss = self.trainings[i].final_loss
        assert loss is not None
        return loss

    def best(self, seed: int) -> int | None:
        """Return the calm training of ``seed`` with the lowest final loss, or None without one."""
        return min(self.calm.get(seed, ()), key=self.final, default=None)

    def differs(self, higher: float, lower: float, initial: float | None) -> bool:
        """Return whether a final loss is higher than another by more than noise."""
        least = LEAST_OF_ONE_SEED if self.noise is None else LEAST_DIFFERENCE
        floor = max(least * abs(higher), ALL_LEARNED * abs(initial or 0.0))
        return higher - lower > max(BEYOND_NOISE * (self.noise or 0.0), floor)

    def label(self, i: int, best: int | None) -> str:
        """Return the label of a training's learning rate; ``best`` is the best calm one of its seed."""
        training, loss = self.trainings[i], self.final(i)
        others = [other for other in self.calm.get(training.seed, ()) if other != i]
        if best is None or not others:
            return UNSURE
        if self.differs(loss, self.final(best), training.initial_loss):
            if self.trainings[best].rate > training.rate:
                return TOO_SLOW
            return OSCILLATING if training.outcome == "stable" else UNSURE
        if training.outcome == "stalled":
            return UNSURE
        if training.rate not in (self.lowest, self.highest):
            return RIGHT
        nearest = min(others, key=lambda other: _distance(self.trainings[other].rate, training.rate))
        is_alone = self.differs(self.final(nearest), loss, training.initial_loss)
        return UNSURE if is_alone else RIGHT

    def shaking(self, right: Collection[int], noise_of: Callable[[int], float]) -> list[int]:
        """Return the calm trainings at ``right`` learning rates whose loss shakes for nothing."""
        shaking = []
        for of_seed in self.calm.values():
            for lower, i in itertools.pairwise(of_seed):
                loss = self.final(i)
                if i not in right or self.differs(self.final(lower), loss, self.trainings[i].initial_loss):
                    continue  # it pays for its noise
                own, other = noise_of(i), noise_of(lower)
                if own > SHAKING * other and own > LEAST_DIFFERENCE * abs(loss):
                    shaking.append(i)
        return shaking


def _row(trainings: Sequence[Training], cells: Sequence[Sequence[int]]) -> _Row:
    """Return the row of ``cells``, which ascend in the learning rate."""

    def with_loss(chosen: Sequence[Sequence[int]]) -> tuple[int, ...]:
        return tuple(i for cell in chosen for i in cell if trainings[i].final_loss is not None)

    quiet = [cell for cell in cells if {trainings[i].outcome for i in cell} <= {"stable", "stalled"}]
    calm = [cell for cell in cells if all(trainings[i].outcome == "stable" for i in cell)]
    learned = [cell for cell in calm if not any(trainings[i].is_degraded for i in cell)]
    losses = [[loss for i in cell if (loss := trainings[i].final_loss) is not None] for cell in learned]
    spreads = [stdev(of_cell) for of_cell in losses if len(of_cell) > 1]
    by_seed: dict[int, list[int]] = {}
    for i in with_loss(calm):
        by_seed.setdefault(trainings[i].seed, []).append(i)
    ends = trainings[cells[0][0]].rate, trainings[cells[-1][0]].rate
    return _Row(trainings, with_loss(quiet), by_seed, median(spreads) if spreads else None, *ends)


def _distance(rate: float, other: float) -> float:
    """Return the distance of two learning rates on the logarithmic scale, infinite from a rate of zero."""
    return abs(math.log(rate / other)) if other > 0 else math.inf


class Start(NamedTuple):
    """The highest first ``loss`` of the ``num`` trainings at lower learning rates."""

    loss: float
    num: int


def unseen_blow_ups(
    trainings: Sequence[Training],
    rules: StoppingConfig,
    places: Sequence[Sequence[float]] | None = None,
    *,
    is_zipped: bool = False,
) -> dict[int, Start]:
    """Return the ``trainings`` that blew up before their first loss was printed and did not come back, by index.

    They differ in learning rate and seed alone, or in other settings too, whose numbers are in ``places``. One has
    blown up if its first and its final loss are both above the line of a start-up blow-up, drawn from the highest first
    loss of at least three trainings at lower learning rates. Higher ones say nothing: a slow training may end above the
    first losses of all that learn faster. Equal first losses of one learning rate, as of seeds that repeat a run, count
    once. The lower ones must lie around a training in all other settings, so that one of them begins as high as it
    does, if first losses rise or fall along each setting. Where another setting changes with the learning rate
    (``is_zipped``), first losses may rise once more by as much as they differ.
    """
    blown: dict[int, Start] = {}
    begun: dict[tuple[float, float], list[int]] = {}
    lowest, highest = math.inf, 0.0
    by_rate = sorted(range(len(trainings)), key=lambda i: trainings[i].rate)
    for rate, of_rate in itertools.groupby(by_rate, key=lambda i: trainings[i].rate):
        here, above = list(of_rate), set[int]()
        if len(begun) >= _BEGUN and highest > 0:
            line = blow_up_line(highest * (highest / max(lowest, TINY) if is_zipped else 1.0), rules)
            start = Start(highest, len(begun))
            above = {i for i in here if _stayed_above(line, trainings[i])}
            lower = [places[i] for of_loss in begun.values() for i in of_loss] if places and above else []
            blown |= {i: start for i in above if places is None or _lies_within(places[i], lower)}
        for i in here:
            loss = trainings[i].initial_loss
            if trainings[i].outcome != "diverged" and i not in above and loss is not None and math.isfinite(loss):
                begun.setdefault((rate, loss), []).append(i)
                lowest, highest = min(lowest, loss), max(highest, loss)
    return blown


def _lies_within(place: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
    """Return whether some of ``others`` lie in each direction from ``place``: above or below it in each number."""
    offsets = [[there - here for there, here in zip(other, place, strict=True)] for other in others]

    def has_any(signs: Sequence[int]) -> bool:
        return any(all(sign * by >= 0 for sign, by in zip(signs, offset, strict=True)) for offset in offsets)

    return all(map(has_any, itertools.product((1, -1), repeat=len(place))))


def _stayed_above(line: float, training: Training) -> bool:
    first, final = training.initial_loss, training.final_loss
    is_open = training.outcome in ("stable", "spiked", "stalled")
    return is_open and first is not None and final is not None and min(first, final) > line


def step_noise(loss_N: np.ndarray) -> float:
    """Return the standard deviation of the loss from step to step over its last quarter, or 0 for a short one.

    It is measured on second differences, which a smooth descent hardly has.
    """
    import numpy as np

    tail = loss_N[len(loss_N) - int(len(loss_N) * _TAIL) :]
    finite = tail[np.isfinite(tail)]
    if len(finite) < _FEWEST:
        return 0.0
    return float(np.median(np.abs(np.diff(finite, 2))) * _TO_DEVIATION)
