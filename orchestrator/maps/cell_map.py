"""The cells of a sweep over two axes, with seeds as replicates and further axes reduced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.base.columns import METRICS
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import FINAL_LOSS, Measure
from orchestrator.base.space import Axis, Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.facts import short_note
from orchestrator.maps.axes import led, together, value_label
from orchestrator.maps.cells import REDUCTIONS, CellSummary, cell_summary, reduced
from orchestrator.maps.curve_metrics import Measured
from orchestrator.maps.edges import STABLE, StableRule
from orchestrator.maps.table import SweepTable, axis_named, base_notes, length_notes, repeated_runs, repeats_text

MOST_SEPARATE = 24  # small maps in one picture


@dataclass(frozen=True, slots=True)
class CellMap:
    """Cells over the axis ``x`` and, unless the map has one row, ``y``, in the order of the axes' values.

    ``note`` says what was fixed, and how the axes ``further`` were reduced. ``facet`` has axes and values of this map
    among several. ``rule`` says which cells are over the edge.
    """

    name: str
    x: Axis
    y: Axis | None
    x_values: tuple[Any, ...]
    y_values: tuple[Any, ...]
    cells: Mapping[tuple[Any, Any], CellSummary]
    measure: Measure
    is_grid: bool
    note: str
    facet: tuple[tuple[str, str], ...] = ()
    rule: StableRule = STABLE
    further: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """The metric of its second panel."""
        return self.measure.column

    def is_over_edge(self, key: tuple[Any, Any]) -> bool:
        """Whether the cell at x and y is known to be over the edge."""
        return self.rule.is_over(self.state(key))

    def state(self, key: tuple[Any, Any]) -> str:
        """The state of the cell at x and y; not_run without a cell there."""
        return self.cells[key].state if key in self.cells else "not_run"


def cell_map(
    table: SweepTable,
    x: str | None = None,
    y: str | None = None,
    metric: str | None = None,
    where: Mapping[str, Any] | None = None,
    reduce: str = "worst",
    measured: Measured | None = None,
    rule: StableRule = STABLE,
) -> CellMap:
    """Map a sweep over axes ``x`` and ``y`` (by default the first two), limited to the cells of ``where``.

    ``where`` has values of axes, or their texts. Further axes are reduced to their worst, median or best cell, by
    fraction of stable seeds, then by the metric; the result is unknown if it depends on cells without a result. The
    metric is by default the score of the sweep, or else the final loss.
    ``measured`` has metrics that are computed from curves. Raises InputError for an unknown axis, value, metric or
    reduction.
    """
    axes = {axis.name: axis for axis in table.axes}
    measure = FINAL_LOSS if table.measure.is_loss else table.measure
    if metric is not None:
        measure = table.column_measure(metric)
        check_metric(table, measure.column)
    if not axes:
        raise InputError(Problem(str(table.ledger.path), "", "the sweep has no axes, so there is no map to draw"))
    shown = table.where("--where", where or {})
    x_name, y_name = _chosen(table.axes, x, y, where or {})
    notes = shown.fixed_notes()
    notes += [note] if (note := short_note(table.facts)) is not None else []
    notes += base_notes([axis for axis in (x_name, y_name) if axis is not None], table.ties)
    return map_of_trials(
        shown.trials, axes, x_name, y_name, measure, reduce, table.name, notes, table.is_grid, measured, rule
    )


def map_of_trials(
    trials: Sequence[TrialResult],
    axes: Mapping[str, Axis],
    x: str,
    y: str | None,
    measure: Measure = FINAL_LOSS,
    reduce: str = "worst",
    name: str = "",
    notes: Sequence[str] = (),
    is_grid: bool = True,
    measured: Measured | None = None,
    rule: StableRule = STABLE,
) -> CellMap:
    """Map trials over the axes named ``x`` and ``y``; ``notes`` describe which trials they are.

    Raises InputError for an unknown reduction.
    """
    if reduce not in REDUCTIONS:
        raise InputError(Problem("--reduce", "", f"{reduce!r} is unknown", f"choose {', '.join(REDUCTIONS)}"))
    drawn = together(axes, (x, y))
    others = [axis for axis in axes if axis not in drawn and len({trial.cell[axis] for trial in trials}) > 1]
    grouped: dict[tuple[Any, Any], dict[Cell, list[TrialResult]]] = {}
    for trial in trials:
        key = (trial.cell[x], trial.cell[y] if y else None)
        grouped.setdefault(key, {}).setdefault(trial.cell.only(others), []).append(trial)
    along = [f"{name} advances with {x if name in axes[x].zipped else y}" for name in axes if name in drawn - {x, y}]
    xs, ys = ({key[place] for key in grouped} for place in (0, 1))
    cells = {
        key: reduced(
            [cell_summary(members, measure.column, measured, *key) for members in inner.values()], measure, reduce
        )
        for key, inner in grouped.items()
    }
    if repeats := repeated_runs(trials):
        notes = [*notes, repeats_text(len(repeats))]
    notes = [*notes, *length_notes(trials)]
    return CellMap(
        name=name,
        x=axes[x],
        y=axes[y] if y else None,
        x_values=tuple(value for value in axes[x].values if value in xs),
        y_values=tuple(value for value in axes[y].values if value in ys) if y else (None,),
        cells=cells,
        measure=measure,
        is_grid=is_grid,
        note="; ".join([*notes, *along, *([f"{reduce} over {', '.join(others)}"] if others else [])]),
        rule=rule,
        further=tuple(others),
    )


def facet_maps(table: SweepTable, facet: str, where: Mapping[str, Any], **options: Any) -> list[CellMap]:
    """Map a sweep once for each value of the axis ``facet``, in order, with the ``options`` of ``cell_map``.

    Raises InputError as ``cell_map`` does, and for an axis that is also fixed or drawn.
    """
    values = table.axis(facet, "--by").values
    if facet in (*where, options.get("x"), options.get("y")):
        raise InputError(Problem("--by", "", f"{facet!r} is fixed or drawn already", "choose another axis"))
    return [_facet(table, Cell({facet: value}), where, options) for value in values]


def separate_maps(table: SweepTable, whole: CellMap, where: Mapping[str, Any], **options: Any) -> list[CellMap]:
    """Map a sweep once for each combination of the further axes of ``whole``, on its axes.

    Only where these do not cross, so that its cells hold different combinations: small maps show what it cannot.
    """
    trials = table.where("--where", where).trials
    if not whole.is_grid or len(whole.further) < 2:
        return []
    combinations = {trial.cell.only(whole.further) for trial in trials}
    crossed = math.prod(len({cell[name] for cell in combinations}) for name in whole.further)
    if len(combinations) == crossed or len(combinations) > MOST_SEPARATE:
        return []
    places = {axis.name: {value: i for i, value in enumerate(axis.values)} for axis in table.axes}
    ordered = sorted(combinations, key=lambda cell: [places[name][cell[name]] for name in whole.further])
    maps = (_facet(table, cell, where, options) for cell in ordered)
    return [replace(each, x_values=whole.x_values, y_values=whole.y_values) for each in maps]


def _facet(table: SweepTable, values: Cell, where: Mapping[str, Any], options: Mapping[str, Any]) -> CellMap:
    stability = cell_map(table, where={**where, **values}, **options)
    facet = tuple((name, value_label(table.axis(name, "--by"), value)) for name, value in values.items())
    others = [part for part in stability.note.split("; ") if part not in map(" = ".join, facet)]
    return replace(stability, note="; ".join(others), facet=facet)


def check_metric(table: SweepTable, metric: str, option: str = "--metric") -> None:
    """Raise InputError for a metric that no cell of a map has."""
    known = [*METRICS, *table.printed_metrics]
    if metric not in known:
        raise InputError(Problem(option, "", f"{metric!r} is unknown", f"choose one of {', '.join(known)}"))


def check_two_axes(axes: Iterable[Axis], x: str | None, y: str | None) -> None:
    """Raise InputError for an unknown axis, or one that is named twice."""
    for option, name in (("--x", x), ("--y", y)):
        if name is not None:
            axis_named(name, axes, option)
    if x is not None and x == y:
        raise InputError(Problem("--y", "", f"{y!r} is also --x", "choose two different axes"))


def _chosen(of_sweep: Sequence[Axis], x: str | None, y: str | None, where: Mapping[str, str]) -> tuple[str, str | None]:
    check_two_axes(of_sweep, x, y)
    axes = {axis.name: axis for axis in of_sweep}
    taken = together(axes, (x, y, *where)) | led(axes.values())
    free = [name for name in axes if name not in taken]
    if x is None:
        x = free.pop(0) if free else next(name for name in axes if name != y)
        free = [name for name in free if name not in together(axes, (x,))]
    if y is None and free:
        y = free.pop(0)
    return x, y
