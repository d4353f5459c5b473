"""The front of a sweep: the stable settings that no other beats in both loss and margin, or loss and steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from orchestrator.base.columns import METRICS
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import Axis, Cell, format_value
from orchestrator.maps.boundary import Margin
from orchestrator.maps.candidates import (
    TriedCells,
    candidates,
    margins_by,
    median_of_all,
    setting_name,
    smallest,
    tried_cells,
)
from orchestrator.maps.curve_metrics import measured
from orchestrator.maps.fitted import Fit
from orchestrator.maps.pareto import unbeaten
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.table import SweepTable
from orchestrator.maps.target_steps import target_steps

Kind = Literal["front", "beaten", "no candidate"]
MARGIN, STEPS = "margin", "steps"
_STEPS_COLUMN = "steps_to_target"
FRONT_COLUMNS = ("state", "num_seeds", "loss", "against", "kind", "limit")  # of the table, after those of the axes
_HIGH = (MARGIN, "learned_share")  # of all else, less is better


@dataclass(frozen=True, slots=True)
class FrontCell:
    """A cell with its median ``loss`` and what that is weighed ``against``; None if it is not known.

    A margin is a factor, infinite where everything that was tried is stable in all directions; ``limit`` is the
    direction in which it is smallest. A cell that is no candidate has no margin. ``beaten_by`` is the cell of the front
    with the lowest loss that is as good in both and better in one.
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
        """Loss and what it is weighed against, of a cell that has both."""
        assert self.loss is not None
        assert self.against is not None
        return self.loss, self.against


@dataclass(frozen=True, slots=True)
class Front:
    """The cells of a sweep in its order, and by what they are compared.

    ``along`` is the axis of margins, None for all; ``target`` the training loss to which steps are counted, None if
    they are not. ``is_high`` says whether more of ``against`` is better. ``fitted`` is the surface that margins are
    from, where cells are scattered.
    """

    sweep: str
    metric: str
    against: str
    along: str | None
    target: float | None
    is_high: bool = hidden()
    axes: tuple[Axis, ...] = hidden()
    cells: tuple[FrontCell, ...] = hidden()
    fitted: Fit | None = hidden()

    @reported
    def is_fitted(self) -> bool:
        """Whether margins are from a surface."""
        return self.fitted is not None

    @reported
    def front(self) -> list[dict[str, Any]]:
        """The members by ascending loss."""
        return [self._row(cell) for cell in self.members]

    @reported
    def beaten(self) -> list[dict[str, Any]]:
        """The candidates that are not on the front, by ascending loss, with the member that beats each."""
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

    @property
    def members(self) -> list[FrontCell]:
        """The cells of the front by ascending loss."""
        found = [cell for cell in self.cells if cell.kind == "front"]
        return sorted(found, key=lambda cell: cell.numbers[0])

    @property
    def beaten_cells(self) -> list[FrontCell]:
        """The candidates that are not on the front, by ascending loss."""
        found = [cell for cell in self.cells if cell.kind == "beaten"]
        return sorted(found, key=lambda cell: cell.numbers[0])


def front(
    table: SweepTable,
    metric: str | None = None,
    against: str = MARGIN,
    along: str | None = None,
    target: float | None = None,
    rule: StableRule = STABLE,
) -> Front:
    """The stable cells that no other beats in both a low ``metric`` and ``against``.

    Candidates and margins are those of ``recommend``; ``along`` takes only the margins along one axis. `steps` are
    those after which the training loss is as low as ``target``, by default the highest final loss of a stable trial,
    which all of them reach. ``against`` may also be a metric of maps or one that a custom trainer prints, of which less
    is better but for ``learned_share``. With ``counts_degraded`` degraded cells are over the edge.

    Raises InputError for a ``metric`` that is no loss, an unknown ``against``, one without values, an axis without
    margins, a target for what has none, and too few scattered cells to fit a surface to.
    """
    tried = tried_cells(table, metric)
    _check(table, tried, against, along, target)
    way = margins_by(table, tried, rule) if against == MARGIN else None
    column = _STEPS_COLUMN if against == STEPS else against
    if against == STEPS:
        target = _usual_target(tried) if target is None else target
    if way is None:
        values = _values(table, tried, column, target)
        cells = [_cell(tried, key, values[key]) for key in tried.trials]
    else:
        cells = _with_margins(tried, way.margins_of, along)
    is_high = column in _HIGH
    marked = tuple(_marked(cells, is_high))
    name, fitted = table.name, None if way is None else way.fitted
    return Front(name, tried.metric, column, along, target, is_high, tried.axes, marked, fitted)


def _check(table: SweepTable, tried: TriedCells, against: str, along: str | None, target: float | None) -> None:
    known = [MARGIN, STEPS, *METRICS, *table.printed_metrics]
    if against not in known:
        raise InputError(Problem("--against", "", f"{against!r} is unknown", f"choose one of {', '.join(known)}"))
    if against == tried.metric:
        raise InputError(Problem("--against", "", f"{against} is the loss itself", "choose margin or steps"))
    if target is not None and against != STEPS:
        what = f"has no meaning for {against}: it is the loss to which steps are counted"
        raise InputError(Problem("--target", "", what, "leave it out, or choose --against steps"))
    if along is None:
        return
    if against != MARGIN:
        what = f"has no meaning for {against}: a margin is along an axis"
        raise InputError(Problem("--along", "", what, "leave it out, or choose --against margin"))
    table.axis(along, "--along")


def _usual_target(tried: TriedCells) -> float | None:
    """The highest final loss of a stable trial, which all of them reach; None without one."""
    stable = (trial for key, trials in tried.trials.items() if tried.states[key] == "stable" for trial in trials)
    return max((trial.final_loss for trial in stable if trial.final_loss is not None), default=None)


def _values(table: SweepTable, tried: TriedCells, column: str, target: float | None) -> dict[Cell, float | None]:
    """The median of a column in each cell. Raises InputError where no stable cell has one."""
    if target is not None:
        own: Mapping[str, float] | None = target_steps(table, target)
    else:
        own = measured(table, [column]).get(column)
    found = {
        key: median_of_all(getattr(t, column, None) if own is None else own.get(t.trial_id) for t in trials)
        for key, trials in tried.trials.items()
    }
    stable = [key for key, state in tried.states.items() if state == "stable"]
    if stable and all(found[key] is None for key in stable):
        what = f"no stable cell has {column.replace('_', ' ')} on all its seeds"
        remedy = "choose margin or steps" if target is None else "raise the target"
        raise InputError(Problem("--against" if target is None else "--target", "", what, remedy))
    return found


def _cell(tried: TriedCells, key: Cell, against: float | None) -> FrontCell:
    return FrontCell(key, tried.tied(key), tried.states[key], len(tried.trials[key]), tried.loss(key), against)


def _with_margins(tried: TriedCells, margins_of: Callable[[Cell], list[Margin]], along: str | None) -> list[FrontCell]:
    """All cells, with margins for those that are candidates. Raises InputError for an axis that has no margins."""
    found = {candidate.setting: candidate.margins for candidate in candidates(tried, margins_of)}
    have = {margin.axis for own in found.values() for margin in own}
    if found and not have:
        what = "no axis has values in an order, so there are no margins"
        raise InputError(Problem("--against", "", what, "choose steps or a metric"))
    if along is not None and have and along not in have:
        what = f"{along} has no margins: its values have no order, or it advances with another axis"
        raise InputError(Problem("--along", "", what, f"choose {' or '.join(sorted(have))}"))
    cells = []
    for key in tried.trials:
        cell = _cell(tried, key, None)
        if key in found:
            own = [margin for margin in found[key] if along in (None, margin.axis)]
            cell = replace(cell, against=smallest(own), limit=_limit(own))
        cells.append(cell)
    return cells


def _limit(margins: list[Margin]) -> str | None:
    """The direction of the smallest margin, None if all are open."""
    closed = [margin for margin in margins if not margin.is_open]
    if not closed:
        return None
    nearest = min(closed, key=lambda margin: margin.known)
    return f"{nearest.axis} {'up' if nearest.is_upwards else 'down'}"


def _marked(cells: list[FrontCell], is_high: bool) -> list[FrontCell]:
    """The cells with their kinds; a candidate is stable on all seeds and has both numbers."""
    places = [
        i for i, cell in enumerate(cells)
        if cell.state == "stable" and cell.loss is not None and cell.against is not None
    ]  # fmt: skip
    points = [(loss, -other if is_high else other) for loss, other in (cells[i].numbers for i in places)]
    on_front = unbeaten(points)
    marked = list(cells)
    for at in on_front:
        marked[places[at]] = replace(cells[places[at]], kind="front")
    for at, place in enumerate(places):
        if at not in on_front:
            best = next(i for i in on_front if points[i][0] <= points[at][0] and points[i][1] <= points[at][1])
            marked[place] = replace(cells[place], kind="beaten", beaten_by=marked[places[best]])
    return marked


def front_table(found: Front) -> pd.DataFrame:
    """A row for each cell in the order of the sweep: the values of the axes, then ``FRONT_COLUMNS``.

    ``loss`` and ``against`` have the names of what they are; an open margin is infinite.
    """
    rows = [
        [*map(_told, cell.setting.values()), cell.state, cell.num_seeds, cell.loss, cell.against, cell.kind, cell.limit]
        for cell in found.cells
    ]
    columns = [{"loss": found.metric, "against": found.against}.get(name, name) for name in FRONT_COLUMNS]
    return pd.DataFrame(rows, columns=[*(axis.name for axis in found.axes), *columns], dtype=object)


def _told(value: Any) -> Any:
    """A value of an axis as tables have it: numbers as they are, none and files as they are shown."""
    return value if isinstance(value, str | int | float) else format_value(value)
