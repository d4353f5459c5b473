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
from orchestrator.maps.optimum import FLAT

MOST_OFF = 1.5  # of a backtest that can be trusted
_CLEARLY = 1.1  # factor by which a naive rule is nearer than the law, and not by chance


@dataclass(frozen=True, slots=True)
class Backtest:
    """The sizes ``at`` the largest value of an axis, predicted from the others.

    ``factor`` is how far the predicted edge is from the middle of the bracket (median over ``num_sizes``), ``at_least``
    how far from the bracket, and ``num_inside`` counts the intervals that meet it. ``copied`` and ``no_effect`` are the
    factors of copying the edge of the largest other size, and of the mean of all. ``edge``, ``bracket_low`` and
    ``bracket_high`` are of the size nearest to the target, ``regret`` the loss that the predicted best rate leaves
    there on the table, and ``copied_regret`` what the best rate of the largest other size leaves.
    """

    at: Mapping[str, float]
    factor: float
    at_least: float
    num_sizes: int
    num_inside: int
    copied: float
    no_effect: float
    edge: Interval
    bracket_low: float
    bracket_high: float
    regret: float | None
    copied_regret: float | None
    num_within: int = hidden()
    least_naive: float = hidden()  # at_least of the better naive rule
    sees_effect: bool = hidden()  # whether the law of the others excludes that the edge does not move
    flat: float = hidden()  # loss that is no matter

    @property
    def is_off(self) -> bool:
        """Whether the predicted edge may be too far from the one that was trained."""
        return self.factor > MOST_OFF

    @property
    def is_beaten(self) -> bool:
        """Whether a naive rule is nearer, though the prediction is further off than the grid is fine."""
        naive = min(self.copied, self.no_effect)
        is_nearer = self.factor > naive and not math.isclose(self.factor, naive)  # on a grid ties are common
        return is_nearer and 2 * self.num_within < self.num_sizes

    @property
    def copies_better(self) -> bool:
        """Whether copying the best rate leaves less loss on the table, by more than is no matter."""
        if self.regret is None or self.copied_regret is None:
            return False
        return self.regret > self.copied_regret + self.flat

    @property
    def misses(self) -> bool:
        """Whether the predicted edge is too far from the one that was trained, wherever in its bracket that lies."""
        return self.at_least > MOST_OFF

    @property
    def loses(self) -> bool:
        """Whether a naive rule is nearer though the law excludes it, so that the law and not chance is wrong."""
        return self.is_beaten and self.sees_effect and self.at_least > _CLEARLY * self.least_naive


def backtest(ladder: Ladder, at: Mapping[str, float], axis: str, form: Form) -> Backtest | None:
    """Predict the largest value of ``axis`` from the others, or return None if that cannot be judged."""
    largest = ladder.values(axis)[-1]
    rest = ladder.without(axis, largest)
    tested = [size for size in ladder.sizes if size.setting[axis] == largest and size.edge is not None]
    unstable = [each for size in rest.sizes for each in size.unstable]
    if not tested or len(rest.values(axis)) < 2 or all(unstable) or not any(unstable):
        return None
    law, best = form.edge_law(rest), form.best_law(rest)
    places = [log_size(size.setting, ladder.names) for size in tested]
    predicted = [law.interval(place_K) for place_K in places]
    by_law = [found[0] for found in predicted]
    copied = [_nearest(rest, size, axis).edge_or_bound for size in tested]
    mean = [fmean(size.edge_or_bound for size in rest.sizes)] * len(tested)
    near = min(range(len(tested)), key=lambda i: _distance(tested[i], at, ladder.names))
    _, least, most = law.exponent(ladder.names.index(axis), places[near])
    optima = [
        (size.optimum, best.interval(place_K)[0], _nearest(rest, size, axis).optimum)
        for size, place_K in zip(tested, places, strict=True)
        if best is not None and size.optimum is not None
    ]
    regrets = [optimum.regret(rate) for optimum, rate, _ in optima]
    copied_regrets = [optimum.regret(other.centre) for optimum, _, other in optima if other is not None]
    pairs = list(zip(predicted, map(_bracket, tested), strict=True))
    return Backtest(
        at={axis: largest},
        factor=_factor(by_law, tested),
        at_least=_at_least(by_law, tested),
        num_sizes=len(tested),
        num_inside=sum(found[1] <= high and found[2] >= low for found, (low, high) in pairs),
        copied=_factor(copied, tested),
        no_effect=_factor(mean, tested),
        edge=Interval(*map(math.exp, predicted[near])),
        bracket_low=math.exp(_bracket(tested[near])[0]),
        bracket_high=math.exp(_bracket(tested[near])[1]),
        regret=median(regrets) if regrets else None,
        copied_regret=median(copied_regrets) if copied_regrets else None,
        num_within=sum(low <= found[0] <= high for found, (low, high) in pairs),
        least_naive=min(_at_least(rule, tested) for rule in (copied, mean)),
        sees_effect=not least <= 0 <= most,
        flat=FLAT * median(abs(min(optimum.costs)) for optimum, *_ in optima) if optima else 0.0,
    )


def _bracket(size: Size) -> tuple[float, float]:
    return size.low or 0.0, size.high or 0.0


def _factor(log_edges: Sequence[float], sizes: Sequence[Size]) -> float:
    """Return the median factor between edges and the middles of brackets."""
    return math.exp(median(abs(edge - size.edge_or_bound) for edge, size in zip(log_edges, sizes, strict=True)))


def _at_least(log_edges: Sequence[float], sizes: Sequence[Size]) -> float:
    """Return the median factor between edges and the nearer ends of brackets, 1 inside."""
    pairs = zip(log_edges, map(_bracket, sizes), strict=True)
    return math.exp(median(max(0.0, low - edge, edge - high) for edge, (low, high) in pairs))


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
