"""The front of a sweep: the stable settings that no other beats in both loss (or score) and margin, or steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from orchestrator.base.columns import METRICS
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import Measure
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import Axis, Cell, format_value
from orchestrator.maps.curve_metrics import measured
from orchestrator.maps.edges import STABLE, Margin, StableRule
from orchestrator.maps.recommendation import candidates, measure_of, median_of_all, setting_name, smallest
from orchestrator.maps.stability_map import StabilityMap, map_of
from orchestrator.maps.table import SweepTable, tied_settings

Kind = Literal["front", "beaten", "island", "no candidate"]
MARGIN, STEPS = "margin", "steps"
_STEPS_COLUMN = "steps_to_target"
FRONT_COLUMNS = ("state", "num_seeds", "loss", "against", "kind", "limit")  # of the table, after those of the axes
_IN_A_ROW = 10  # losses whose median is a level, as in the columns final_loss and best_loss


@dataclass(frozen=True, slots=True)
class FrontCell:
    """A cell with its median ``loss`` and what that is weighed ``against``, None if unknown.

    A margin is a factor, infinite if everything that was tried is stable in all directions; ``limit`` is the direction
    in which it is smallest. Only candidates have margins. ``beaten_by`` is the cell of the front with the lowest loss
    that is as good in both and better in one.
    """

    setting: Cell
    tied: Mapping[str, Any]
    state: str
    num_seeds: int
    loss: float | None
    against: float | None
    limit: str | None = None
    kind: Kind = "no candidate"
    beaten_by: FrontCell | None = None

    @property
    def name(self) -> str:
        """The setting in words."""
        return setting_name(self.setting, self.tied)

    @property
    def numbers(self) -> tuple[float, float]:
        """Loss and what it is weighed against, for a cell that has both."""
        assert self.loss is not None
        assert self.against is not None
        return self.loss, self.against


@dataclass(frozen=True, slots=True)
class Front:
    """The cells of a sweep in its order, and by what they are compared.

    ``along`` is the axis of margins, None for all; ``target`` the training loss that steps are counted to, None
    without steps. ``is_high`` says whether more of ``against`` is better. Margins are from ``stability``.
    """

    sweep: str
    against: str
    along: str | None
    target: float | None
    measure: Measure = hidden()
    is_high: bool = hidden()
    axes: tuple[Axis, ...] = hidden()
    cells: tuple[FrontCell, ...] = hidden()
    stability: StabilityMap | None = hidden(default=None)

    @reported
    def metric(self) -> str:
        """The name of what is weighed."""
        return self.measure.name

    @reported
    def maximize(self) -> bool:
        """Whether a higher value is better."""
        return self.measure.maximize

    @reported
    def is_fitted(self) -> bool:
        """Whether margins are from a surface."""
        return self.stability is not None and self.stability.is_fitted

    @reported
    def front(self) -> list[dict[str, Any]]:
        """The members, the best loss or score first."""
        return [self._row(cell) for cell in self.members]

    @reported
    def beaten(self) -> list[dict[str, Any]]:
        """The candidates that are not on the front, the best first, with the member that beats each."""
        return [
            {**self._row(cell), "beaten_by": cell.beaten_by.setting}
            for cell in self.beaten_cells
            if cell.beaten_by is not None
        ]

    def _row(self, cell: FrontCell) -> dict[str, Any]:
        """A candidate; an open margin is infinite."""
        loss, other = cell.numbers
        row = {"setting": cell.setting, "num_seeds": cell.num_seeds, self.metric: loss, self.against: other}
        return row | ({"is_open": math.isinf(other), "limit": cell.limit} if self.against == MARGIN else {})

    @reported
    def islands(self) -> list[Cell]:
        """The stable settings that are cut off from the stable region."""
        return [cell.setting for cell in self.cells if cell.kind == "island"]

    @property
    def members(self) -> list[FrontCell]:
        """The cells of the front, the best loss or score first."""
        return self._ranked("front")

    @property
    def beaten_cells(self) -> list[FrontCell]:
        """The candidates that are not on the front, the best loss or score first."""
        return self._ranked("beaten")

    def _ranked(self, kind: Kind) -> list[FrontCell]:
        found = [cell for cell in self.cells if cell.kind == kind]
        return sorted(found, key=lambda cell: self.measure.cost(cell.numbers[0]))


def front(
    table: SweepTable,
    metric: str | None = None,
    against: str = MARGIN,
    along: str | None = None,
    target: float | None = None,
    rule: StableRule = STABLE,
    maximize: bool | None = None,
) -> Front:
    """Find the stable cells that no other beats in both a good ``metric`` and ``against``.

    Candidates, islands and margins are as for ``recommend``, except that scattered cells have islands for margins only;
    ``along`` takes only the margins along one axis. `steps` are counted until the training loss is as low as
    ``target``, by default the highest final loss of a stable trial, which all stable trials reach. ``against`` may also
    be a metric of maps, where less is better except for ``learned_share`` and a score, or what a custom trainer
    printed, with its direction ``maximize``.

    Raises InputError for a ``metric`` without a direction, an unknown ``against``, one without values, an axis without
    margins, a target without steps, and too few scattered cells to fit a surface to.
    """
    is_printed = against in table.printed_metrics
    measure = measure_of(table, metric, None if is_printed else maximize)
    against_name, is_high = against, against == MARGIN
    if against not in (MARGIN, STEPS):
        weighed = measure_of(table, against, maximize, "--against") if is_printed else table.column_measure(against)
        against, against_name, is_high = weighed.column, weighed.name, weighed.maximize
    _check(table, measure, against, along, target)
    column = _STEPS_COLUMN if against == STEPS else against
    if against == STEPS:
        target = _usual_target(table) if target is None else target
    stability = map_of(table, rule=rule) if against == MARGIN or table.is_grid else None
    if against != MARGIN or stability is None:
        values = _values(table, column, target)
        cells = [replace(cell, against=values[cell.setting]) for cell in _cells(table, measure)]
    else:
        cells = _with_margins(table, measure, stability, along)
    if stability is not None:
        islands = stability.islands(cell.setting for cell in cells if cell.state == "stable")
        cells = [replace(cell, kind="island") if cell.setting in islands else cell for cell in cells]
    marked = tuple(_marked(cells, measure, is_high))
    shown = _STEPS_COLUMN if against == STEPS else against_name
    return Front(table.name, shown, along, target, measure, is_high, table.axes, marked, stability)


def _check(table: SweepTable, measure: Measure, against: str, along: str | None, target: float | None) -> None:
    known = [MARGIN, STEPS, *METRICS, *table.printed_metrics]
    if against not in known:
        raise InputError(Problem("--against", "", f"{against!r} is unknown", f"choose one of {', '.join(known)}"))
    if against == measure.column:
        raise InputError(Problem("--against", "", f"{against} is the {measure.kind} itself", "choose margin or steps"))
    if target is not None and against != STEPS:
        what = f"has no meaning for {against}: it is the loss to which steps are counted"
        raise InputError(Problem("--target", "", what, "leave it out, or choose --against steps"))
    if along is None:
        return
    if against != MARGIN:
        what = f"has no meaning for {against}: a margin is along an axis"
        raise InputError(Problem("--along", "", what, "leave it out, or choose --against margin"))
    table.axis(along, "--along")


def _usual_target(table: SweepTable) -> float | None:
    """The highest final loss of a stable trial, which all stable trials reach; None without one."""
    states = table.states()
    losses = (run.final_loss for run in table.runs if states[run.cell] == "stable")
    return max((loss for loss in losses if loss is not None), default=None)


def _values(table: SweepTable, column: str, target: float | None) -> dict[Cell, float | None]:
    """The median of a column in each cell. Raises InputError if no stable cell has one."""
    if target is not None:
        own: Mapping[str, float] | None = target_steps(table, target)
    else:
        own = measured(table, [column]).get(column)
    values = {
        cell: median_of_all(getattr(run, column, None) if own is None else own.get(run.trial_id) for run in runs)
        for cell, runs in table.by_cell().items()
    }
    stable = [cell for cell, state in table.states().items() if state == "stable"]
    if stable and all(values[cell] is None for cell in stable):
        what = f"no stable cell has {column.replace('_', ' ')} on all its seeds"
        remedy = "choose margin or steps" if target is None else "raise the target"
        raise InputError(Problem("--against" if target is None else "--target", "", what, remedy))
    return values


def _cells(table: SweepTable, measure: Measure) -> list[FrontCell]:
    """All cells with their losses or scores."""
    states = table.states()
    return [
        FrontCell(
            setting=cell,
            tied=tied_settings(runs[0], table.ties),
            state=states[cell],
            num_seeds=len(runs),
            loss=median_of_all(map(measure.of, runs)),
            against=None,
        )
        for cell, runs in table.by_cell().items()
    ]


def _with_margins(table: SweepTable, measure: Measure, stability: StabilityMap, along: str | None) -> list[FrontCell]:
    """All cells, with margins for candidates. Raises InputError for an axis without margins."""
    settings = [candidate.setting for candidate in candidates(table, measure, stability)]
    margins = dict(zip(settings, stability.margins_of(settings), strict=True)) if settings else {}
    have = {margin.axis for own in margins.values() for margin in own}
    if margins and not have:
        what = "no axis has values in an order, so there are no margins"
        raise InputError(Problem("--against", "", what, "choose steps or a metric"))
    if along is not None and have and along not in have:
        what = f"{along} has no margins: its values have no order, or it advances with another axis"
        raise InputError(Problem("--along", "", what, f"choose {' or '.join(sorted(have))}"))
    cells = []
    for cell in _cells(table, measure):
        if cell.setting in margins:
            own = [margin for margin in margins[cell.setting] if along in (None, margin.axis)]
            cell = replace(cell, against=smallest(own), limit=_limit(own))
        cells.append(cell)
    return cells


def _limit(margins: list[Margin]) -> str | None:
    """The direction of the smallest margin, or None if all are open."""
    closed = [margin for margin in margins if not margin.is_open]
    if not closed:
        return None
    nearest = min(closed, key=lambda margin: margin.known)
    return f"{nearest.axis} {'up' if nearest.is_upwards else 'down'}"


def _marked(cells: list[FrontCell], measure: Measure, is_high: bool) -> list[FrontCell]:
    """The cells with their kinds; a candidate is stable on all seeds, no island, and has both numbers."""
    places = [
        i for i, cell in enumerate(cells)
        if cell.state == "stable" and cell.kind != "island" and None not in (cell.loss, cell.against)
    ]  # fmt: skip
    points = [(measure.cost(loss), -other if is_high else other) for loss, other in (cells[i].numbers for i in places)]
    on_front = unbeaten(points)
    marked = list(cells)
    for at in on_front:
        marked[places[at]] = replace(cells[places[at]], kind="front")
    for at, place in enumerate(places):
        if at not in on_front:
            best = next(i for i in on_front if points[i][0] <= points[at][0] and points[i][1] <= points[at][1])
            marked[place] = replace(cells[place], kind="beaten", beaten_by=marked[places[best]])
    return marked


def unbeaten(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of the points that no other point beats, by ascending first number; equal points are all listed.

    A point beats another if it is as low in both numbers and lower in one.
    """
    order = sorted(range(len(points)), key=lambda i: points[i])
    kept, lowest = list[int](), math.inf
    for _, group in itertools.groupby(order, key=lambda i: points[i][0]):
        tied = list(group)
        second = points[tied[0]][1]
        if second < lowest or not kept:
            kept += [i for i in tied if points[i][1] == second]
            lowest = second
    return kept


def front_table(found: Front) -> pd.DataFrame:
    """A row for each cell in the order of the sweep: the values of the axes, then ``FRONT_COLUMNS``.

    ``loss`` and ``against`` have the names of what they are; an open margin is infinite.
    """
    rows = [
        [
            *map(table_value, cell.setting.values()),
            cell.state,
            cell.num_seeds,
            cell.loss,
            cell.against,
            cell.kind,
            cell.limit,
        ]
        for cell in found.cells
    ]
    columns = [{"loss": found.metric, "against": found.against}.get(name, name) for name in FRONT_COLUMNS]
    return pd.DataFrame(rows, columns=[*(axis.name for axis in found.axes), *columns], dtype=object)


def table_value(value: Any) -> Any:
    """A value of an axis as tables show it: numbers as they are, none and files in words."""
    return value if isinstance(value, str | int | float) else format_value(value)


def steps_to_target(step_N: np.ndarray, loss_N: np.ndarray, target: float) -> int | None:
    """The step at which the median of ten losses in a row is first as low as ``target``; None if it never is."""
    if len(loss_N) < _IN_A_ROW:
        return None
    level_M = np.median(np.lib.stride_tricks.sliding_window_view(loss_N, _IN_A_ROW), axis=1)
    reached = np.flatnonzero(level_M <= target)
    return int(step_N[reached[0] + _IN_A_ROW - 1]) if len(reached) else None


def target_steps(table: SweepTable, target: float) -> dict[str, float]:
    """``steps_to_target`` of each run that reached it, by its id."""
    reached = {}
    for run in table.runs:
        trace = table.ledger.trace(run.trial_id, ("step", "loss"))
        steps = steps_to_target(trace["step"], trace["loss"], target) if "loss" in trace else None
        if steps is not None:
            reached[run.trial_id] = float(steps)
    return reached
