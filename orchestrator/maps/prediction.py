"""The edge and the best rate at a size that was not trained, from the smaller sizes of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import hidden
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import count
from orchestrator.detection.relative import lr_axis
from orchestrator.maps.backtest import Backtest, backtest
from orchestrator.maps.bend import BENDS_FROM, best_bends, edge_bends
from orchestrator.maps.confirmation import Confirmation, judged
from orchestrator.maps.edges import STABLE, Interval, StableRule
from orchestrator.maps.form import LOSS_SCALE, Form, usual_prior
from orchestrator.maps.ladder import Ladder, is_stable_above, log_size, pooled, read_ladder
from orchestrator.maps.law import Law
from orchestrator.maps.lengths import STEPS
from orchestrator.maps.table import SweepTable
from orchestrator.maps.target import Target

THEORIES = (0.0, -0.5, -1.0)
FEWEST_SIZES, LEAST_SPAN, FARTHEST = 3, 4.0, 4.0
_SAFE = 2.0  # below the edge's interval, where no loss says which rate is best
_COPIES = 16  # of each draw, where runs at the target weigh them
_CURVE_POINTS = 40
_BASE_RATE, _SHARE = "lr", "_lr"  # an axis such as mlp_lr is the share of a group of layers
_SETTINGS = ("warmup", "beta2", "eps", "clip", "batch", "batch_size")  # for which the rate to take holds


@dataclass(frozen=True, slots=True)
class Exponent:
    """The exponent of an axis at the target with its 95 % interval, and the ``theories`` that lie inside.

    ``bend`` is its change for each doubling of the size with a 99 % interval, None with few sizes. ``binds`` says, of
    the share of the rate that a group of layers has, whether the edge falls as it grows; else None. ``saturates`` is
    the value of the axis beyond which it has no effect, with its 95 % interval; None where there may be none.
    """

    at: float
    low: float
    high: float
    theories: tuple[float, ...]
    is_assumed: bool
    binds: bool | None = None
    bend: Interval | None = None
    saturates: Interval | None = None

    @property
    def bends(self) -> bool:
        """Whether the exponent surely changes over the sizes."""
        return self.bend is not None and not self.bend.low <= 0 <= self.bend.high


@dataclass(frozen=True, slots=True)
class Point:
    """A law at one value of the axis that is drawn."""

    size: float
    at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The edge at ``target``, the best rate, its loss and edge / best rate there, and the rate to ``take``.

    What losses tell is None without some to compare.

    ``regret`` is the loss that the law left on the table at the largest trained size; ``p_stable`` is P(stable) at
    ``rate``, and ``settings`` what all runs share of what else moves the edge. ``doubts`` are reasons not to trust the
    answer, which come first; for those in ``refused`` it is ``withheld``. If ``confirmation``, from runs at the target,
    voids the prediction, there is neither an edge nor a rate.
    """

    sweep: str
    along: str
    target: Mapping[str, float]
    edge: Interval | None
    best_lr: Interval | None
    best_loss: Interval | None
    headroom: Interval | None
    take: float | None
    exponents: Mapping[str, Exponent]
    best_exponents: Mapping[str, Exponent]
    backtest: Backtest | None
    regret: float | None
    rate: float | None
    p_stable: float | None
    num_runs: int
    num_sizes: int
    settings: Mapping[str, Any]
    doubts: tuple[str, ...]
    refused: tuple[str, ...]
    axis: str = hidden()  # that is drawn
    ladder: Ladder = hidden()
    law: Law = hidden()
    edge_curve: tuple[Point, ...] = hidden()
    best_curve: tuple[Point, ...] = hidden()
    confirmation: Confirmation | None = None

    @property
    def target_name(self) -> str:
        """The target in words."""
        return " ".join(f"{name}={format_value(value)}" for name, value in self.target.items())

    @property
    def is_void(self) -> bool:
        """Whether runs at the target show that it is not as on the ladder."""
        return self.confirmation is not None and self.confirmation.is_void

    @property
    def is_withheld(self) -> bool:
        """Whether there is no number, since the prediction is not to be trusted."""
        return self.edge is None and not self.is_void

    def withheld(self) -> Prediction:
        """Return the prediction without its numbers where it is refused."""
        return self._without_numbers() if self.refused else self

    def _without_numbers(self) -> Prediction:
        return replace(self, edge=None, best_lr=None, best_loss=None, headroom=None, take=None, p_stable=None)

    def law_target(self) -> Target:
        """Return what the law alone says of the edge at the target, in enough draws for runs there to weigh."""
        return self.law.at(log_size(self.target, self.ladder.names), _COPIES)

    def target_edge(self) -> Target:
        """Return what is known of the edge at the target."""
        return self.law_target() if self.confirmation is None else self.confirmation.edge


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
    along = along or usual_rate(table)
    if along in at:
        raise InputError(Problem("--at", along, "is the axis along which the edge lies", "name sizes: --at width=2048"))
    ladder = read_ladder(table, tuple(at), along, rule)
    at = {name: at[name] for name in ladder.names}
    _check_has_both_sides(table.name, ladder)
    assumed = [name for name in at if not carries(ladder, name, at[name])]
    if assumed and assume is None:
        raise InputError(*(_too_few(ladder, name, usual_assumption(len(assumed))) for name in assumed))
    if not is_far:
        _check_is_near(ladder, at)
    form = usual_form(ladder, at, assumed, assume)
    axis = next((name for name in at if _is_beyond(ladder, name, at[name])), next(iter(at)))
    target_K = log_size(at, ladder.names)
    law = form.edge_law(ladder)
    exponent_K = np.array([law.exponent(i, target_K)[0] for i in range(len(ladder.names))])
    few = pooled(ladder, axis, exponent_K) if ladder.is_scattered else ladder
    best, losses, test = form.best_law(few), form.loss_law(few), backtest(few, at, axis, form)
    refused = _refused(test)
    exponents = _exponents(ladder, law, target_K, assumed, edge_bends(few))
    best_exponents = {} if best is None else _exponents(ladder, best, target_K, assumed, best_bends(few))
    edge = _interval(law, target_K)
    best_lr = None if best is None else _interval(best, target_K)
    return Prediction(
        sweep=table.name,
        along=along,
        target=dict(at),
        edge=edge,
        best_lr=best_lr,
        best_loss=None if losses is None else _interval(losses, target_K, LOSS_SCALE),
        headroom=_headroom(edge, best_lr),
        take=_taken(edge, best_lr),
        exponents=exponents,
        best_exponents=best_exponents,
        backtest=test,
        regret=None if test is None else test.regret,
        rate=rate,
        p_stable=None if rate is None else law.at(target_K).p_stable(math.log(rate)),
        num_runs=ladder.num_runs,
        num_sizes=len(ladder.sizes),
        settings=_settings(ladder),
        doubts=(*refused, *_doubts(test), *_bent(ladder, at, exponents)),
        refused=refused,
        axis=axis,
        ladder=ladder,
        law=law,
        edge_curve=_curve(ladder, law, at, axis),
        best_curve=() if best is None else _curve(ladder, best, at, axis),
    )


def usual_form(ladder: Ladder, at: Mapping[str, float], assumed: Sequence[str], assume: float | None) -> Form:
    """Return the form of a law for a target: sizes share what lies beyond them, and bend along what they enclose."""
    is_beyond = [_is_beyond(ladder, name, at[name]) for name in ladder.names]
    may_bend = [len(ladder.values(name)) >= BENDS_FROM for name in ladder.names]
    places = range(len(ladder.names))
    assumed_places = tuple(ladder.names.index(name) for name in assumed)
    return Form(
        usual_prior(len(ladder.names), assumed_places, assume),
        tuple(i for i in places if is_beyond[i]),
        tuple(i for i in places if may_bend[i] and not is_beyond[i]),
        assumed_places,
    )


def _settings(ladder: Ladder) -> dict[str, Any]:
    configs = [run.config for size in ladder.sizes for run in size.runs]
    shared = (name for name in _SETTINGS if all(name in each and each[name] == configs[0][name] for each in configs))
    return {name: configs[0][name] for name in shared if name not in (ladder.along, *ladder.names)}


def _headroom(edge: Interval, best_lr: Interval | None) -> Interval | None:
    """The quotient of edge and best rate, which are fitted apart."""
    if best_lr is None:
        return None
    at = edge.at / best_lr.at
    below = math.hypot(math.log(edge.at / edge.low), math.log(best_lr.high / best_lr.at))
    above = math.hypot(math.log(edge.high / edge.at), math.log(best_lr.at / best_lr.low))
    return Interval(at, at * math.exp(-below), at * math.exp(above))


def _taken(edge: Interval, best_lr: Interval | None) -> float:
    return edge.low / _SAFE if best_lr is None else min(best_lr.at, edge.low)


def confirmed(found: Prediction, trials: Sequence[TrialResult], rule: StableRule = STABLE) -> Prediction:
    """Return the prediction after the ``trials`` at its target: updated, or void if that is not as on the ladder."""
    size_K = log_size(found.target, found.ladder.names)
    confirmation = judged(found.ladder, found.law_target(), size_K, trials, rule)
    if confirmation.is_void:
        return replace(found, confirmation=confirmation, refused=())._without_numbers()
    target = confirmation.edge
    doubts = found.doubts
    if not confirmation.is_bracketed:
        missing = "no whole one was stable" if confirmation.has_broken else "none broke"
        doubts = (f"the runs at {found.target_name} do not bracket its edge: {missing}", *doubts)
    edge = Interval(*map(math.exp, target.interval()))
    return replace(
        found,
        edge=edge,
        headroom=_headroom(edge, found.best_lr),
        take=_taken(edge, found.best_lr),
        p_stable=None if found.rate is None else target.p_stable(math.log(found.rate)),
        doubts=doubts,
        refused=() if confirmation.is_bracketed else found.refused,  # the edge was seen where it is asked for
        confirmation=confirmation,
    )


def usual_rate(table: SweepTable) -> str:
    """Return the axis along which the edge of a sweep lies by default. Raises InputError if it has none."""
    names = [axis.name for axis in table.axes]
    if not names:
        raise InputError(Problem(table.name, "", "has no axis", "name an import's with `--axis`"))
    return table.edge_axis or lr_axis(names) or names[0]


# --- what is refused -------------------------------------------------------------------------------------------


def _check_has_both_sides(sweep: str, ladder: Ladder) -> None:
    unstable = [each for size in ladder.sizes for each in size.unstable]
    if not unstable:
        raise InputError(Problem(sweep, "", "no run has an outcome", "`sweep status NAME` says what is missing"))
    if all(unstable) or not any(unstable):
        side, other = ("lower", "not stable") if all(unstable) else ("higher", "stable")
        remedy = f"the edge lies beyond the axis: add {side} values of {ladder.along}"
        raise InputError(Problem(sweep, ladder.along, f"each run is {other}", remedy))
    if is_stable_above(ladder.sizes):
        remedy = "name an axis whose high values break a run: --along lr"
        raise InputError(Problem(sweep, ladder.along, "is stable above its edge, and a law has it below", remedy))


def _is_beyond(ladder: Ladder, name: str, value: float) -> bool:
    values = ladder.values(name)
    return not values[0] <= value <= values[-1]


def carries(ladder: Ladder, name: str, value: float) -> bool:
    """Return whether the sizes show the exponent of an axis well enough for a target at ``value``."""
    values = ladder.values(name)
    return not _is_beyond(ladder, name, value) or (len(values) >= FEWEST_SIZES and values[-1] >= LEAST_SPAN * values[0])


def usual_assumption(num: int) -> float:
    """Return the exponent of each of ``num`` axes that grow together: in all -1, as a theory of width has it."""
    return -1 / num


def _too_few(ladder: Ladder, name: str, assumption: float) -> Problem:
    values = ladder.values(name)
    span = values[-1] / values[0]
    message = f"{count(len(values), 'size')} over a factor of {span:.3g} cannot show its exponent"
    smaller = format_value(values[-1] / LEAST_SPAN)
    remedy = (
        f"train {FEWEST_SIZES} sizes or more, from {smaller} or below to {format_value(values[-1])}; or assume an "
        f"exponent: --assume {assumption:.2g}"
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


def _refused(test: Backtest | None) -> tuple[str, ...]:
    """Say why the law is not to be trusted: it was wrong at a size that was trained, and not by chance."""
    if test is None:
        return ()
    return (*([_missed(test)] if test.misses else []), *([_beaten(test)] if test.loses else []))


def _doubts(test: Backtest | None) -> list[str]:
    if test is None:
        return ["no backtest: without the largest size too little is left, or its edge is not on the axis"]
    found = [_missed(test)] if test.is_off and not test.misses else []
    found += [_beaten(test)] if test.is_beaten and not test.loses else []
    if test.copies_better:
        found.append(
            "copying the best rate of the largest size leaves less loss on the table in the backtest: "
            f"{test.copied_regret:.2g} against {test.regret:.2g}"
        )
    return found


def _bent(ladder: Ladder, at: Mapping[str, float], exponents: Mapping[str, Exponent]) -> list[str]:
    """Say along which axes beyond the sizes the edge bends, since its law is straight."""
    return [
        f"the edge bends along {name}, and its law is straight: the exponent changes by {each.bend.at:.2g} "
        f"({each.bend.low:.2g} to {each.bend.high:.2g}, 99 %) for each doubling"
        for name, each in exponents.items()
        if each.bends and each.bend is not None and _is_beyond(ladder, name, at[name])
    ]


def _missed(test: Backtest) -> str:
    where = ", ".join(f"{name}={format_value(value)}" for name, value in test.at.items())
    at_least = f", or {test.at_least:.2g} at least" if f"{test.at_least:.2g}" != f"{test.factor:.2g}" else ""
    return f"the law misses the edge at {where}, which was trained, by a factor of {test.factor:.2g}{at_least}"


def _beaten(test: Backtest) -> str:
    rule, factor = min(
        ("copying the edge of the largest size", test.copied),
        ("the mean edge of all sizes", test.no_effect),
        key=lambda each: each[1],
    )
    return f"{rule} is nearer in the backtest: a factor of {factor:.2g} against {test.factor:.2g}"


# --- laws ------------------------------------------------------------------------------------------------------


def _interval(law: Law, size_K: np.ndarray, scale: float = 1.0) -> Interval:
    return Interval(*(math.exp(log / scale) for log in law.interval(size_K)))


def _exponents(
    ladder: Ladder, law: Law, target_K: np.ndarray, assumed: Sequence[str], bends: Mapping[str, Interval]
) -> dict[str, Exponent]:
    found = {}
    for i, name in enumerate(ladder.names):
        at, low, high = law.exponent(i, target_K)
        theories = tuple(theory for theory in THEORIES if low <= theory <= high and name != STEPS)
        is_group = ladder.along == _BASE_RATE and name.endswith(_SHARE)
        binds = high < 0 if is_group else None
        place = law.saturates_at(i, target_K)
        saturates = None if place is None else Interval(*map(math.exp, place))
        found[name] = Exponent(at, low, high, theories, name in assumed, binds, bends.get(name), saturates)
    return found


def _curve(ladder: Ladder, law: Law, at: Mapping[str, float], axis: str) -> tuple[Point, ...]:
    values = [*ladder.values(axis), at[axis]]
    points = []
    for size in np.geomspace(min(values), max(values), _CURVE_POINTS):
        found = _interval(law, log_size({**at, axis: size}, ladder.names))
        points.append(Point(float(size), found.at, found.low, found.high))
    return tuple(points)
