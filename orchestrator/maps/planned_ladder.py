"""Which small sizes predict a large one best for a number of trials, by simulation from the prior of the law."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from orchestrator.maps.edges import Interval
from orchestrator.maps.law import fit_edges, prior_draw
from orchestrator.surface.gaussian import one_thread

_NEAREST = 4  # the largest proxy is this much smaller than the target
_RATIO = 2
_NUM_VALUES = (3, 4, 5)  # of an axis, a factor of _RATIO apart
_MOST_SIZES = 27
_RANGE = math.log(1e5)  # of rates that are searched
_DRAWS = 15
SEED = 0


@dataclass(frozen=True, slots=True)
class PlannedLadder:
    """Values of each size axis, and by what factor the interval is wide that they give: median and quartiles.

    ``cost`` is in runs at the target of the same length, if a step costs as much as the square of the width times
    each other size.
    """

    values: Mapping[str, tuple[int, ...]]
    width: Interval
    cost: float


def plan_ladder(target: Mapping[str, int], num_trials: int) -> PlannedLadder | None:
    """Return the ladder with the narrowest interval at ``target``; None if no size is small enough."""
    with one_thread():
        ladders = [_planned(values, target, num_trials) for num in _NUM_VALUES if (values := _values(target, num))]
    known = [ladder for ladder in ladders if ladder is not None]
    return min(known, key=lambda ladder: ladder.width.at) if known else None


def _values(target: Mapping[str, int], num: int) -> dict[str, tuple[int, ...]] | None:
    """Whole sizes below the target, None if there are too few on an axis."""
    values = {}
    for name, size in target.items():
        largest = size // _NEAREST
        values[name] = tuple(sorted({largest // _RATIO**i for i in range(num)} - {0}))
        if len(values[name]) < num:
            return None
    return values if num ** len(values) <= _MOST_SIZES else None


def _planned(values: Mapping[str, tuple[int, ...]], target: Mapping[str, int], num_trials: int) -> PlannedLadder | None:
    sizes = np.array(list(itertools.product(*values.values())), float)
    if num_trials < 2 * len(sizes):
        return None
    target_K = np.array([target[name] for name in values], float)
    power_K = np.array([2 if name == "width" else 1 for name in values])
    cost = num_trials * float(np.prod((sizes / target_K) ** power_K, axis=1).mean())
    generators = (np.random.default_rng([SEED, i]) for i in range(_DRAWS))
    widths = [_width(np.log(sizes), np.log(target_K), num_trials, each) for each in generators]
    low, at, high = np.quantile(widths, [0.25, 0.5, 0.75])
    return PlannedLadder(values, Interval(float(at), float(low), float(high)), cost)


def _width(size_RK: np.ndarray, target_K: np.ndarray, num_trials: int, draw: np.random.Generator) -> float:
    """The width of the interval of one law that is drawn: each size is searched by halving."""
    edge_R, width = prior_draw(size_RK, draw)
    outcomes: list[tuple[int, float, bool]] = []
    start = float(edge_R.mean()) - _RANGE * draw.uniform(0.3, 0.7)
    for row, num in enumerate(_shares(num_trials, len(size_RK))):
        low, high = start, start + _RANGE
        for _ in range(num):
            rate = (low + high) / 2
            is_unstable = bool(draw.random() < expit((rate - edge_R[row]) / width))
            low, high = (low, rate) if is_unstable else (rate, high)
            outcomes.append((row, rate, is_unstable))
    rows, rates, unstable = zip(*outcomes, strict=True)
    _, low, high = fit_edges(size_RK[list(rows)], np.array(rates), np.array(unstable)).interval(target_K)
    return math.exp(high - low)


def _shares(num: int, parts: int) -> Sequence[int]:
    return [num // parts + (i < num % parts) for i in range(parts)]
