"""A sweep in one sentence: where its edge is, which setting to take and why, and the command that comes next.

It is made here alone, and every surface shows it first. No cell of the sweep refutes it: what holds for known cells
alone says so, and a sweep without an edge has a sentence of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.files import is_locked
from orchestrator.base.space import Axis, Cell, is_number, is_ordered
from orchestrator.base.vocabulary import DEGRADED
from orchestrator.base.words import count, joined
from orchestrator.ledger.facts import IMPORTED_FACT, PACKED_FACT
from orchestrator.maps.axes import axis_number, existing, value_labels
from orchestrator.maps.edges import STABLE
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.recommendation import Candidate, Recommendation, recommended
from orchestrator.maps.table import SweepTable

_DIGITS = 3
_NEAR = 1.5  # an edge within this factor needs no refinement
_BEYOND = 2  # values that are added beyond an axis without an edge
_EVEN = 1e-6  # how equal the factors of a log axis are


@dataclass(frozen=True, slots=True)
class Sentence:
    """Its parts. ``command`` is what to run next, and ``purpose`` what for.

    ``stable`` are the ends of the values ``along`` the axis between which every known cell is inside the edge, and
    ``setting`` is the one to take; None without.
    """

    edge: str
    take: str
    command: str
    purpose: str
    along: str | None = None
    stable: tuple[Any, Any] | None = None
    setting: Cell | None = None

    @property
    def finding(self) -> str:
        """The edge and the setting to take."""
        text = "; ".join(filter(None, (self.edge, self.take)))
        return f"{text[:1].upper()}{text[1:]}."

    @property
    def text(self) -> str:
        """The whole sentence, whose command stands between backquotes."""
        return f"{self.finding[:-1]}; next: `{self.command}` {self.purpose}."

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class _Edge:
    """The edge in words, along which axis, where all is inside it, and the factor within which it is known."""

    text: str
    along: Axis | None = None
    stable: tuple[Any, Any] | None = None
    within: float | None = None
    is_all_stable: bool = False
    is_all_unstable: bool = False


def sentence_of(table: SweepTable, *, is_running: bool | None = None, found: Recommendation | None = None) -> Sentence:
    """Return the sentence about a sweep.

    ``is_running`` is by default read off the lock of its folder, and ``found`` what is recommended without options.
    """
    running = is_locked(table.ledger.path.parent) if is_running is None else is_running
    num_over = sum(trial.outcome is not None or trial.status == "errored" for trial in table.trials)
    missing = len(table.trials) - num_over
    edge = _edge(table)
    found = found or recommended(table)
    so_far = f"{num_over} of {count(len(table.trials), 'trial')} over: " if missing else ""
    command, purpose = _next(table, edge, found, missing, running)
    return Sentence(
        edge=so_far + edge.text,
        take="" if found is None else _take(found, edge),
        command=command,
        purpose=purpose,
        along=None if edge.along is None else edge.along.name,
        stable=edge.stable,
        setting=None if found is None or found.chosen is None else found.chosen.setting,
    )


# --- the edge ----------------------------------------------------------------------------------------


def _edge(table: SweepTable) -> _Edge:
    states = table.states()
    sides = {cell: STABLE.of_state(state) for cell, state in states.items()}
    known = [side for side in sides.values() if side is not None]
    cells = count(len(sides), "cell") if len(known) == len(sides) else f"{len(known)} of {len(sides)} cells known"
    if not known:
        return _Edge("no cell has a result on every seed, so no edge is known")
    if not table.axes:
        return _Edge(_without_axes(table))
    is_complete = len(known) == len(sides)
    known_text = "" if is_complete else f" ({cells})"
    one = "the one cell" if is_complete else "1 known cell"
    what = f"{count(len(known), 'cell')} are" if len(known) > 1 else f"{one} is"
    if all(known):
        worse = _degraded(states.values())
        which = f"{'all ' if len(known) > 1 else ''}{what} {'inside the edge' + worse if worse else 'stable'}"
        so = ", so the edge is not in what was tried" if is_complete else ""
        return _Edge(f"{which}{known_text}{so}", is_all_stable=True)
    if not any(known):
        which = f"none of {count(len(known), 'cell')} is stable" if len(known) > 1 else f"{one} is not stable"
        so = ", so all that was tried is over the edge" if is_complete else ""
        return _Edge(f"{which}{known_text}{so}", is_all_unstable=True)
    try:
        return _of_grid(table, states, sides) if table.is_grid else _of_surface(table)
    except InputError:  # too few scattered trials, or axes whose values have no order
        return _Edge(f"{sum(known)} of {count(len(known), 'cell')} are stable{known_text}, and no edge is known")


def _without_axes(table: SweepTable) -> str:
    judged = [run for run in table.runs if run.outcome is not None]
    stable = sum(STABLE.of_trial(run) is True for run in judged)
    return f"{stable} of {count(len(judged), 'seed')} are stable, and an edge needs an axis"


def _degraded(states: Iterable[str]) -> str:
    """How many of the ``states`` of cells are degraded, in brackets."""
    num = sum(state == DEGRADED for state in states)
    return f" ({num} degraded)" if num else ""


def _of_grid(table: SweepTable, states: Mapping[Cell, str], sides: Mapping[Cell, bool | None]) -> _Edge:
    """Where on the steepest axis every known cell is inside the edge, and what the next values have."""
    axis = GridMap(table).steepest.along
    values = existing(axis, axis.values)
    known = sum(side is not None for side in sides.values())
    if not is_ordered(values):
        return _Edge(f"{sum(map(bool, sides.values()))} of {count(known, 'cell')} are stable")
    at = {value: [side for cell, side in sides.items() if cell[axis.name] == value] for value in values}
    labels = dict(zip(values, value_labels(values, _DIGITS), strict=True))
    others = [other.name for other in table.axes if other.name not in {axis.name, *axis.zipped}]
    elsewhere = _elsewhere(axis, sides)
    first, last = _longest_run([None not in at[v] and all(at[v]) for v in values])
    if first == last:
        first, last = _longest_run([any(s is not None for s in at[v]) and False not in at[v] for v in values])
    if first == last:
        by_rows = _by_rows(table, axis, others)
        return replace(by_rows, text=by_rows.text + elsewhere)
    low, high = values[first], values[last - 1]
    worse = _degraded(state for cell, state in states.items() if cell[axis.name] in values[first:last])
    has_gap = any(None in at[value] for value in values[first:last])
    subject = "every known cell is " if has_gap else ""
    word = f"{subject}{'inside the edge' if worse else 'stable'}{worse}"
    where = _between(axis.name, labels[low], labels[high], first > 0, last < len(values))
    others = [name for name in others if name not in dict(axis.when)]
    every = f" at every {joined(others)}" if others and not has_gap else ""
    beyond = [f"{_share_lost(at[v])}at {labels[v]}" for v in _beside(values, first, last) if False in at[v]]
    text = f"{word} {where}{every}" + (f", not {joined(beyond)}" if beyond else "") + elsewhere
    ends = [(values[i], values[j]) for i, j in ((first - 1, first), (last - 1, last)) if i >= 0 and j < len(values)]
    return _Edge(text, axis, (low, high), _widest(axis, ends))


def _elsewhere(axis: Axis, sides: Mapping[Cell, bool | None]) -> str:
    """In how many cells without ``axis``, which exists for some values of other axes, training is not stable."""
    known = [side for cell, side in sides.items() if cell[axis.name] is None and side is not None] if axis.when else []
    if all(known):
        return ""
    lost = known.count(False)
    return f"; without {axis.name}, {lost} of {count(len(known), 'cell')} {'is' if lost == 1 else 'are'} over the edge"


def _longest_run(flags: Sequence[bool]) -> tuple[int, int]:
    """The start and the end of the longest run of true ``flags``, both 0 without one."""
    runs = (list(run) for flag, run in itertools.groupby(range(len(flags)), key=lambda i: flags[i]) if flag)
    longest = max(runs, key=len, default=[])
    return (longest[0], longest[-1] + 1) if longest else (0, 0)


def _between(name: str, low: str, high: str, has_below: bool, has_above: bool) -> str:
    if has_below and has_above:
        return f"at {name} {low}" if low == high else f"from {name} {low} to {high}"
    return f"up to {name} {high}" if has_above else f"from {name} {low} up"


def _beside(values: Sequence[Any], first: int, last: int) -> Iterator[Any]:
    """The values below and above a run."""
    yield from values[first - 1 : first] if first else ()
    yield from values[last : last + 1]


def _share_lost(sides: Sequence[bool | None]) -> str:
    """In how many of several known cells training is not stable."""
    known = [side for side in sides if side is not None]
    return "" if len(known) == 1 else f"in {known.count(False)} of {count(len(known), 'cell')} "


def _by_rows(table: SweepTable, axis: Axis, others: Sequence[str]) -> _Edge:
    """The range of the edge over rows, where no value is stable in every row."""
    rows = GridMap(table, x=axis.name, reduce=None).rows()
    single = [row.edges[0] for row in rows if len(row.edges) == 1 and not row.not_known]
    edges = [edge for edge in single if edge.at is not None]
    in_rows = f"in {len(edges)} of {count(len(rows), 'row')}" if len(edges) < len(rows) else "in every row"
    by = f" of {joined(others)}" if others else ""
    nowhere = f"no {axis.name} is stable{by and f' at every {joined(others)}'}"
    if not edges:
        return _Edge(f"{nowhere}, and no row{by} has one clear edge", axis)
    low, high = (axis_number(axis, pick(edge.at for edge in edges if edge.at is not None)) for pick in (min, max))
    where = f"at {low}" if low == high else f"between {low} and {high}"
    text = f"{nowhere}; its edge lies {where} {in_rows}{by}"
    return _Edge(text, axis, None, _widest(axis, [(edge.low, edge.high) for edge in edges]))


def _widest(axis: Axis, brackets: Sequence[tuple[Any, Any]]) -> float | None:
    """The largest factor between the ends of brackets; None without one that is finite."""
    factors = [axis.factor(low, high) for low, high in brackets if is_number(low) and is_number(high)]
    return max(filter(math.isfinite, factors), default=None)


def _of_surface(table: SweepTable) -> _Edge:
    """The range of the fitted edge over the rows that are shown."""
    from orchestrator.maps.surface_map import surface_map

    surface = surface_map(table)
    axis, rows = surface.along, surface.rows()
    edges = [edge for row in rows for edge in row.edges if edge.at is not None]
    fitted = f"fitted to {count(surface.num_trials, 'trial')}"
    if not edges:
        return _Edge(f"a surface {fitted} shows no edge along {axis.name}", axis)
    number = partial(axis_number, axis)
    low, high = (number(pick(edge.at for edge in edges if edge.at is not None)) for pick in (min, max))
    known = [(edge.low, edge.high) for edge in edges if edge.low is not None and edge.high is not None]
    sure = ""
    if len(known) == len(edges):
        ends = number(min(each[0] for each in known)), number(max(each[1] for each in known))
        sure = f", 95 % from {' to '.join(ends)}"
    with_edge = sum(bool(row.edges) for row in rows)
    in_rows = "" if with_edge == len(rows) else f" in {with_edge} of {len(rows)} rows"
    one_side = {edge.is_stable_below for edge in edges}
    side = {True: "stable below", False: "stable above"}[one_side.pop()] if len(one_side) == 1 else "the edge lies at"
    at = f"{axis.name} {low}" if low == high else f"{axis.name} {low} to {high}, by row"
    return _Edge(f"{side} {at}{in_rows} ({fitted}{sure})", axis, None, _widest(axis, known))


# --- the setting -------------------------------------------------------------------------------------


def _take(found: Recommendation, edge: _Edge) -> str:
    chosen, measure = found.chosen, found.measure
    if chosen is not None:
        loss = f"median {measure.words} {chosen.loss:.3g}"
        seeds = "one seed" if chosen.num_seeds == 1 else f"{chosen.num_seeds} seeds"
        return f"take {chosen.name} ({loss}, {seeds}, {_margin(chosen)})"
    if not found.candidates:
        return "" if edge.is_all_unstable else "no cell is stable on all of its seeds, so none can be taken"
    widest = max(found.candidates, key=lambda each: (each.margin, -measure.cost(each.loss)))
    far = f"the farthest, {widest.name}, a factor {widest.margin:.3g}"
    return f"no stable setting is known to be a factor {found.margin:g} from the edge ({far})"


def _margin(chosen: Candidate) -> str:
    if not chosen.margins:
        return "without a margin, since no axis has an order"
    if math.isfinite(chosen.margin):
        return f"at least {chosen.margin:.3g} times from the edge"
    return "no edge on any side in what was tried"


# --- what comes next ---------------------------------------------------------------------------------


def _next(table: SweepTable, edge: _Edge, found: Recommendation | None, missing: int, running: bool) -> tuple[str, str]:
    """The command that comes next, and what it is for."""
    name = table.ledger.path.parent.name
    is_own_code = table.facts.get("objective") == "python" or PACKED_FACT in table.facts
    imports = " --allow-import" if is_own_code else ""
    if running and missing:
        return f"sweep status {name} --watch", "follows the run"
    if IMPORTED_FACT in table.facts:
        return f"sweep boundary {name}", "lists the edge row by row"
    errored = any(trial.status == "errored" for trial in table.trials)
    if missing and errored and not any(trial.outcome for trial in table.trials):
        return f"sweep run {name} --retry-errored{imports}", "trains all of them once the error is mended"
    if missing:
        return f"sweep run {name}{imports}", f"trains the {count(missing, 'trial')} without a result"
    if errored:
        return f"sweep run {name} --retry-errored{imports}", "trains the errored trials again"
    if not table.axes and any(STABLE.of_trial(run) is False for run in table.runs):
        return f"sweep diagnose {name}", "says why"
    if edge.is_all_unstable:
        return f"sweep explain {name}", "says why"
    if edge.is_all_stable and (option := _wider(table)):
        return f"sweep run {name} --axis {option}{imports}", "looks for the edge beyond"
    axis = edge.along
    needs_more = edge.within is None or edge.within > _NEAR or found is None or found.chosen is None
    if axis is not None and needs_more and _can_be_refined(axis, table):
        return f"sweep run {name} --refine --along {axis.name}{imports}", "narrows the edge down"
    if table.axes and not edge.is_all_stable:
        return f"sweep explain {name}", "says why the rest is lost"
    if found is not None:
        return f"sweep recommend {name}", "lists the margins"
    if not table.is_grid and any(_can_be_refined(each, table) for each in table.axes):
        return f"sweep run {name} --refine{imports}", "adds trials, since these are too few"
    return f"sweep status {name}", "lists the outcomes"


def _can_be_refined(axis: Axis, table: SweepTable) -> bool:
    is_range = bool(axis.ends) or (len(axis.values) > 1 and all(map(is_number, axis.values)))
    return is_range and not any(each.zipped or each.when for each in table.axes)


def _wider(table: SweepTable) -> str:
    """The option that extends the first log axis upwards by its own factor, and so keeps its trials; else empty."""
    for axis in table.axes if table.is_grid else ():
        values = axis.values
        if axis.scale != "log" or len(values) < 2 or axis.zipped or not all(map(is_number, values)):
            continue
        factors = [high / low for low, high in itertools.pairwise(values)]
        if max(factors) > (1 + _EVEN) * min(factors):
            continue
        end = float(f"{values[-1] * (values[-1] / values[0]) ** (_BEYOND / (len(values) - 1)):.12g}")
        return f"{axis.name}=log:{values[0]!r},{end!r},{len(values) + _BEYOND}"
    return ""
