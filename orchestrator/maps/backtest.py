"""A law tested on what is known: the largest size predicted from the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from orchestrator.base.query import hidden
from orchestrator.maps.edges import Interval
from orchestrator.maps.form import Form
from orchestrator.maps.ladder import Ladder, Size, log_size

MOST_OFF = 1.5  # of a backtest that can be trusted


@dataclass(frozen=True, slots=True)
class Backtest:
    """The sizes ``at`` the largest value of an axis, predicted from the others.

    ``factor`` is how far the predicted edge is from the middle of the bracket (median over ``num_sizes``), and
    ``num_inside`` counts the intervals that meet the bracket. ``copied`` and ``no_effect`` are the factors of copying
    the edge of the largest other size, and of the mean of all. ``edge``, ``bracket_low`` and ``bracket_high`` are of
    the size nearest to the target, ``regret`` the loss that the predicted best rate leaves there on the table.
    """

    at: Mapping[str, float]
    factor: float
    num_sizes: int
    num_inside: int
    copied: float
    no_effect: float
    edge: Interval
    bracket_low: float
    bracket_high: float
    regret: float | None
    num_within: int = hidden()

    @property
    def loses(self) -> bool:
        """Whether a naive rule is nearer, though the prediction is further off than the grid is fine."""
        naive = min(self.copied, self.no_effect)
        is_nearer = self.factor > naive and not math.isclose(self.factor, naive)  # on a grid ties are common
        return is_nearer and 2 * self.num_within < self.num_sizes

    @property
    def misses(self) -> bool:
        """Whether the predicted edge is too far from the one that was trained."""
        return self.factor > MOST_OFF

    @property
    def is_passed(self) -> bool:
        """Whether the prediction is near enough, and no naive rule is better."""
        return not (self.misses or self.loses)


def backtest(ladder: Ladder, at: Mapping[str, float], axis: str, form: Form) -> Backtest | None:
    """Predict the largest value of ``axis`` from the others, or return None if that cannot be judged."""
    largest = ladder.values(axis)[-1]
    rest = ladder.without(axis, largest)
    tested = [size for size in ladder.sizes if size.setting[axis] == largest and size.edge is not None]
    unstable = [each for size in rest.sizes for each in size.unstable]
    if not tested or len(rest.values(axis)) < 2 or all(unstable) or not any(unstable):
        return None
    law, best = form.edge_law(rest), form.best_law(rest)
    predicted = [law.interval(log_size(size.setting, ladder.names)) for size in tested]
    naive = fmean(size.edge_or_bound for size in rest.sizes)
    brackets = [(size.low or 0.0, size.high or 0.0) for size in tested]
    near = min(range(len(tested)), key=lambda i: _distance(tested[i], at, ladder.names))
    regrets = [
        size.optimum.regret(best.interval(log_size(size.setting, ladder.names))[0])
        for size in tested
        if best is not None and size.optimum is not None
    ]
    return Backtest(
        at={axis: largest},
        factor=_factor([found[0] for found in predicted], tested),
        num_sizes=len(tested),
        num_inside=sum(
            found[1] <= high and found[2] >= low for found, (low, high) in zip(predicted, brackets, strict=True)
        ),
        copied=_factor([_nearest(rest, size, axis).edge_or_bound for size in tested], tested),
        no_effect=_factor([naive] * len(tested), tested),
        edge=Interval(*map(math.exp, predicted[near])),
        bracket_low=math.exp(brackets[near][0]),
        bracket_high=math.exp(brackets[near][1]),
        regret=median(regrets) if regrets else None,
        num_within=sum(low <= found[0] <= high for found, (low, high) in zip(predicted, brackets, strict=True)),
    )


def _factor(log_edges: Sequence[float], sizes: Sequence[Size]) -> float:
    """Return the median factor between edges and the middles of brackets."""
    return math.exp(median(abs(edge - size.edge_or_bound) for edge, size in zip(log_edges, sizes, strict=True)))


def _nearest(rest: Ladder, size: Size, axis: str) -> Size:
    """Return the largest other size with the most similar values of the other axes."""
    top = rest.values(axis)[-1]
    others = [name for name in rest.names if name != axis]
    return min(
        (each for each in rest.sizes if each.setting[axis] == top),
        key=lambda each: _distance(each, size.setting, others),
    )


def _distance(size: Size, at: Mapping[str, float], names: Sequence[str]) -> float:
    return float(np.abs(log_size(size.setting, names) - log_size(at, names)).sum())
