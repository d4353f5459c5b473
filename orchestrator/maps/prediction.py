"""The edge and the best rate at a size that was not trained, from the smaller sizes of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import hidden
from orchestrator.base.space import format_value
from orchestrator.base.words import count
from orchestrator.maps.edges import STABLE, Interval, StableRule
from orchestrator.maps.ladder import Ladder, Size, log_size, read_ladder
from orchestrator.maps.law import Exponents, Law, fit_centres, fit_edges
from orchestrator.maps.table import SweepTable

THEORIES = (0.0, -0.5, -1.0)
FEWEST_SIZES, LEAST_SPAN, FARTHEST = 3, 4.0, 4.0
MOST_OFF = 1.5  # of a backtest that can be trusted
_SAFE = 2.0  # below the edge's interval, where no loss says which rate is best
_ASSUMED_SD = 1e-3
_CURVE_POINTS = 40
_LEAST_OPTIMA = 2
_BENDS_FROM = 4  # values of an axis that can show a bend


@dataclass(frozen=True, slots=True)
class Exponent:
    """The exponent of an axis at the target with its 95 % interval, and the ``theories`` that lie inside."""

    at: float
    low: float
    high: float
    theories: tuple[float, ...]
    is_assumed: bool


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
        """Whether a naive rule is nearer, though the prediction is not as near as the grid can tell."""
        return self.factor > min(self.copied, self.no_effect) and 2 * self.num_within < self.num_sizes

    @property
    def is_passed(self) -> bool:
        """Whether the prediction is near enough, and no naive rule is better."""
        return self.factor <= MOST_OFF and not self.loses


@dataclass(frozen=True, slots=True)
class Point:
    """A law at one value of the axis that is drawn."""

    size: float
    at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The edge at ``target``, the best rate there (None without losses to compare) and the rate to ``take``.

    ``regret`` is the loss that the law left on the table at the largest trained size; ``p_stable`` is P(stable) at
    ``rate``. ``doubts`` are reasons not to trust the answer, which come first.
    """

    sweep: str
    along: str
    target: Mapping[str, float]
    edge: Interval
    best_lr: Interval | None
    headroom: float | None
    take: float
    exponents: Mapping[str, Exponent]
    best_exponents: Mapping[str, Exponent]
    backtest: Backtest | None
    regret: float | None
    rate: float | None
    p_stable: float | None
    num_runs: int
    num_sizes: int
    doubts: tuple[str, ...]
    axis: str = hidden()  # that is drawn
    ladder: Ladder = hidden()
    edge_curve: tuple[Point, ...] = hidden()
    best_curve: tuple[Point, ...] = hidden()


def predict(
    table: SweepTable,
    at: Mapping[str, float],
    along: str | None = None,
    rate: float | None = None,
    assume: float | None = None,
    is_far: bool = False,
    rule: StableRule = STABLE,
) -> Prediction:
    """Predict the edge along a rate at the size ``at``.

    ``assume`` is the exponent of axes with too few sizes. Raises InputError if the sizes cannot carry a law, or the
    target is too far away.
    """
    along = along or _usual_rate(table)
    if along in at:
        raise InputError(Problem("--at", along, "is the axis along which the edge lies", "name sizes: --at width=2048"))
    ladder = read_ladder(table, tuple(at), along, rule)
    _check_has_both_sides(table.name, ladder)
    assumed = [name for name in at if not _carries(ladder, name, at[name])]
    if assumed and assume is None:
        raise InputError(*(_too_few(ladder, name) for name in assumed))
    if not is_far:
        _check_is_near(ladder, at)
    form = Form(
        usual_prior(len(at), [ladder.names.index(name) for name in assumed], assume),
        tuple(i for i, name in enumerate(at) if _is_beyond(ladder, name, at[name])),
        tuple(
            i
            for i, name in enumerate(at)
            if not _is_beyond(ladder, name, at[name]) and len(ladder.values(name)) >= _BENDS_FROM
        ),
    )
    axis = next((name for name in at if _is_beyond(ladder, name, at[name])), next(iter(at)))
    target_K = log_size(at, ladder.names)
    law, best = form.edge_law(ladder), form.best_law(ladder)
    edge = _interval(law, target_K)
    best_lr = None if best is None else _interval(best, target_K)
    backtest = _backtest(ladder, at, axis, form)
    return Prediction(
        sweep=table.name,
        along=along,
        target=dict(at),
        edge=edge,
        best_lr=best_lr,
        headroom=None if best_lr is None else edge.at / best_lr.at,
        take=edge.low / _SAFE if best_lr is None else min(best_lr.at, edge.low),
        exponents=_exponents(ladder, law, target_K, assumed),
        best_exponents={} if best is None else _exponents(ladder, best, target_K, assumed),
        backtest=backtest,
        regret=None if backtest is None else backtest.regret,
        rate=rate,
        p_stable=None if rate is None else law.at(target_K).p_stable(math.log(rate)),
        num_runs=ladder.num_runs,
        num_sizes=len(ladder.sizes),
        doubts=tuple(_doubts(ladder, backtest)),
        axis=axis,
        ladder=ladder,
        edge_curve=_curve(ladder, law, at, axis),
        best_curve=() if best is None else _curve(ladder, best, at, axis),
    )


def _usual_rate(table: SweepTable) -> str:
    names = [axis.name for axis in table.axes]
    if not names:
        raise InputError(Problem(table.name, "", "has no axis", "name an import's with `--axis`"))
    return table.edge_axis or ("lr" if "lr" in names else names[0])


# --- what is refused -------------------------------------------------------------------------------------------


def _check_has_both_sides(sweep: str, ladder: Ladder) -> None:
    unstable = [each for size in ladder.sizes for each in size.unstable]
    if not unstable:
        raise InputError(Problem(sweep, "", "no run has an outcome", "`sweep status NAME` says what is missing"))
    if all(unstable) or not any(unstable):
        side, other = ("lower", "not stable") if all(unstable) else ("higher", "stable")
        remedy = f"the edge lies beyond the axis: add {side} values of {ladder.along}"
        raise InputError(Problem(sweep, ladder.along, f"each run is {other}", remedy))


def _is_beyond(ladder: Ladder, name: str, value: float) -> bool:
    values = ladder.values(name)
    return not values[0] <= value <= values[-1]


def _carries(ladder: Ladder, name: str, value: float) -> bool:
    values = ladder.values(name)
    return not _is_beyond(ladder, name, value) or (len(values) >= FEWEST_SIZES and values[-1] >= LEAST_SPAN * values[0])


def _too_few(ladder: Ladder, name: str) -> Problem:
    values = ladder.values(name)
    span = values[-1] / values[0]
    message = f"{count(len(values), 'size')} over a factor of {span:.3g} cannot show its exponent"
    smaller = format_value(values[-1] / LEAST_SPAN)
    remedy = (
        f"train {FEWEST_SIZES} sizes or more, from {smaller} or below to {format_value(values[-1])}; or assume an "
        "exponent: --assume -1"
    )
    return Problem("--at", name, message, remedy)


def _check_is_near(ladder: Ladder, at: Mapping[str, float]) -> None:
    for name, value in at.items():
        values = ladder.values(name)
        if not values[0] / FARTHEST <= value <= values[-1] * FARTHEST:
            message = f"{format_value(value)} is more than {FARTHEST:g} times beyond the trained sizes"
            ends = f"{format_value(values[0])} to {format_value(values[-1])}"
            remedy = f"train nearer sizes (now {ends}), or add --far to have it nevertheless"
            raise InputError(Problem("--at", name, message, remedy))


def usual_prior(num: int, assumed: Sequence[int] = (), assume: float | None = None) -> Exponents:
    """Return the prior of ``num`` exponents, those at the places ``assumed`` being ``assume``."""
    prior = Exponents.usual(num)
    if assume is None:
        return prior
    is_assumed_K = np.isin(np.arange(num), assumed)
    return Exponents(np.where(is_assumed_K, assume, prior.mean_K), np.where(is_assumed_K, _ASSUMED_SD, prior.sd_K))


def _doubts(ladder: Ladder, backtest: Backtest | None) -> list[str]:
    if backtest is None:
        return ["no backtest: without the largest size too little is left, or its edge is not on the axis"]
    found = []
    if backtest.factor > MOST_OFF:
        where = ", ".join(f"{name}={format_value(value)}" for name, value in backtest.at.items())
        found.append(f"the law misses the edge at {where}, which was trained, by a factor of {backtest.factor:.2g}")
    if backtest.loses:
        rule, factor = min(
            ("copying the edge of the largest size", backtest.copied),
            ("the mean edge of all sizes", backtest.no_effect),
            key=lambda each: each[1],
        )
        found.append(f"{rule} is nearer in the backtest: a factor of {factor:.2g} against {backtest.factor:.2g}")
    return found


# --- laws ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the laws: the prior of exponents, axes whose values make groups, and axes that may bend."""

    prior: Exponents
    shared: tuple[int, ...]
    bent: tuple[int, ...]

    def edge_law(self, ladder: Ladder) -> Law:
        """Fit the law of the edge, which is straight: brackets are too coarse to show a bend."""
        return fit_edges(*ladder.outcomes(), self.prior, self.shared)

    def best_law(self, ladder: Ladder) -> Law | None:
        """Fit the law of the centres of flat optima; None without a centre that lies on the axis."""
        optima = ladder.optima()
        if len(optima) < _LEAST_OPTIMA or all(optimum.beyond for _, optimum in optima):
            return None
        sizes = np.array([log_size(size.setting, ladder.names) for size, _ in optima])
        known = [(optimum.centre, optimum.spread, optimum.beyond) for _, optimum in optima]
        centre_R, spread_R, beyond_R = np.array(known).T
        return fit_centres(sizes, centre_R, spread_R, beyond_R, self.prior, self.shared, self.bent)


def _interval(law: Law, size_K: np.ndarray) -> Interval:
    return Interval(*map(math.exp, law.interval(size_K)))


def _exponents(ladder: Ladder, law: Law, target_K: np.ndarray, assumed: Sequence[str]) -> dict[str, Exponent]:
    found = {}
    for i, name in enumerate(ladder.names):
        at, low, high = law.exponent(i, target_K)
        theories = tuple(theory for theory in THEORIES if low <= theory <= high)
        found[name] = Exponent(at, low, high, theories, name in assumed)
    return found


def _curve(ladder: Ladder, law: Law, at: Mapping[str, float], axis: str) -> tuple[Point, ...]:
    values = [*ladder.values(axis), at[axis]]
    points = []
    for size in np.geomspace(min(values), max(values), _CURVE_POINTS):
        found = _interval(law, log_size({**at, axis: size}, ladder.names))
        points.append(Point(float(size), found.at, found.low, found.high))
    return tuple(points)


# --- the backtest ------------------------------------------------------------------------------------------------


def _backtest(ladder: Ladder, at: Mapping[str, float], axis: str, form: Form) -> Backtest | None:
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
