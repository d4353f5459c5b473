"""Ledger -> stability maps: outcomes over two axes, seeds as replicates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from orchestrator.base.columns import METRICS
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.intervals import wilson
from orchestrator.base.space import Axis
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, RIGHT, UNSURE
from orchestrator.detection.outcomes import cell_state, is_known
from orchestrator.ledger.facts import short_note
from orchestrator.maps.axes import led, together, value_labels
from orchestrator.maps.curve_metrics import Measured
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.table import SweepTable, axis_named, base_notes, distinct_runs, repeated_runs, repeats_text

# The rank of the chosen cell among those reduced to one cell of the map, from the best (0) to the worst (1).
REDUCTIONS: Mapping[str, float] = {"worst": 1.0, "median": 0.5, "best": 0.0}


@dataclass(frozen=True, slots=True)
class MapCell:
    """One cell of a stability map; ``state`` is that of ``cell_state``: stable only if all its seeds are.

    ``outcomes`` counts the labels of its seeds: outcomes, degraded for a stable seed that is, or statuses.

    Numbers are of the ``num_finished`` of ``num_seeds`` seeds that have a result. Without one, ``fraction_stable``, its
    95 % Wilson ``interval`` and ``value`` (of the map's metric) are None; so is each of ``medians`` (of METRICS) that
    no seed has. ``total_spikes`` is the number of spikes in all its seeds, ``num_risen`` that of the seeds that gave up
    much of what they had learned in a slow rise. ``lr_health`` is the word of most of its seeds on the learning rate;
    None where nothing is said.
    """

    x: Any
    y: Any
    num_seeds: int
    num_finished: int
    outcomes: Mapping[str, int]
    fraction_stable: float | None
    interval: tuple[float, float] | None
    medians: Mapping[str, float | None]
    total_spikes: int
    num_risen: int
    value: float | None
    state: str
    lr_health: str | None = None

    @property
    def num_stable(self) -> int:
        """Seeds whose outcome is stable, degraded ones among them."""
        return self.outcomes.get("stable", 0) + self.outcomes.get(DEGRADED, 0)


@dataclass(frozen=True, slots=True)
class StabilityMap:
    """Cells over two axes (one of them may be missing), in the order of the axes' values.

    ``note`` says what was fixed, and how axes that are not shown were reduced. ``facet`` is the axis and value of this
    map among several. With ``counts_degraded`` degraded cells are over the edge.
    """

    name: str
    x: Axis
    y: Axis | None
    x_values: tuple[Any, ...]
    y_values: tuple[Any, ...]
    cells: Mapping[tuple[Any, Any], MapCell]
    metric: str
    is_sampled: bool
    note: str
    facet: tuple[str, str] | None = None
    rule: StableRule = STABLE

    def is_over_edge(self, key: tuple[Any, Any]) -> bool:
        """Whether the cell at x and y is known to be over the edge."""
        return self.rule.is_over(self.state(key))

    def state(self, key: tuple[Any, Any]) -> str:
        """The state of the cell at x and y; not_run where the sweep has none there."""
        return self.cells[key].state if key in self.cells else "not_run"


def stability_map(
    table: SweepTable,
    x: str | None = None,
    y: str | None = None,
    metric: str = "final_loss",
    where: Mapping[str, Any] | None = None,
    reduce: str = "worst",
    measured: Measured | None = None,
    rule: StableRule = STABLE,
) -> StabilityMap:
    """The map over axes ``x`` and ``y`` (by default the first two), limited to the cells of ``where``.

    ``where`` gives values of axes, or their texts (``value_meant``). If further axes remain, a cell of the map is the
    ``reduce`` of their cells: the worst, the median or the best by fraction of stable seeds, then by the metric; it is
    unknown where this depends on cells without a result. ``measured`` are metrics of trials that are not in the
    ledger's table (``curve_metrics``). Raises InputError for an unknown axis, value, metric or reduction.
    """
    axes = {axis.name: axis for axis in table.axes}
    if metric not in METRICS and metric not in table.printed_metrics:
        known = ", ".join([*METRICS, *table.printed_metrics])
        raise InputError(Problem("--metric", "", f"{metric!r} is unknown", f"choose one of {known}"))
    if not axes:
        raise InputError(Problem(str(table.ledger.path), "", "the sweep has no axes, so there is no map to draw"))
    shown = table.where("--where", where or {})
    x_name, y_name = _chosen(table.axes, x, y, where or {})
    notes = shown.fixed_notes()
    notes += [note] if (note := short_note(table.facts)) is not None else []
    notes += base_notes([axis for axis in (x_name, y_name) if axis is not None], table.ties)
    made = make_map(shown.trials, axes, x_name, y_name, metric, reduce, table.name, notes, not table.is_grid, measured)
    return replace(made, rule=rule)


def make_map(
    trials: Sequence[TrialResult],
    axes: Mapping[str, Axis],
    x: str,
    y: str | None,
    metric: str,
    reduce: str,
    name: str,
    notes: Sequence[str] = (),
    is_sampled: bool = False,
    measured: Measured | None = None,
) -> StabilityMap:
    """The map of rows of a ledger over the axes named ``x`` and ``y``; ``notes`` describe the selection of rows.

    Raises InputError for an unknown reduction.
    """
    if reduce not in REDUCTIONS:
        raise InputError(Problem("--reduce", "", f"{reduce!r} is unknown", f"choose {', '.join(REDUCTIONS)}"))
    drawn = together(axes, (x, y))
    others = [axis for axis in axes if axis not in drawn and len({trial.cell[axis] for trial in trials}) > 1]
    grouped: dict[tuple[Any, Any], dict[tuple[Any, ...], list[TrialResult]]] = {}
    for trial in trials:
        cell = trial.cell
        key = (cell[x], cell[y] if y else None)
        grouped.setdefault(key, {}).setdefault(tuple(cell[axis] for axis in others), []).append(trial)
    along = [f"{name} advances with {x if name in axes[x].zipped else y}" for name in axes if name in drawn - {x, y}]
    xs, ys = ({key[place] for key in grouped} for place in (0, 1))
    cells = {
        key: _reduced([map_cell(*key, members, metric, measured or {}) for members in inner.values()], metric, reduce)
        for key, inner in grouped.items()
    }
    if repeats := repeated_runs(trials):
        notes = [*notes, repeats_text(len(repeats))]
    return StabilityMap(
        name=name,
        x=axes[x],
        y=axes[y] if y else None,
        x_values=tuple(value for value in axes[x].values if value in xs),
        y_values=tuple(value for value in axes[y].values if value in ys) if y else (None,),
        cells=cells,
        metric=metric,
        is_sampled=is_sampled,
        note="; ".join([*notes, *along, *([f"{reduce} over {', '.join(others)}"] if others else [])]),
    )


def facet_maps(table: SweepTable, facet: str, where: Mapping[str, Any], **options: Any) -> list[StabilityMap]:
    """One map for each value of the axis ``facet``, in order; ``options`` are those of ``stability_map``.

    Raises InputError as ``stability_map`` does, and for an axis that is also fixed or drawn.
    """
    values = table.axis(facet, "--by").values
    if facet in (*where, options.get("x"), options.get("y")):
        raise InputError(Problem("--by", "", f"{facet!r} is fixed or drawn already", "choose another axis"))
    maps = []
    for value, label in zip(values, value_labels(values), strict=True):
        stability = stability_map(table, where={**where, facet: value}, **options)
        others = [part for part in stability.note.split("; ") if part != f"{facet} = {label}"]
        maps.append(replace(stability, note="; ".join(others), facet=(facet, label)))
    return maps


def map_cell(x: Any, y: Any, trials: Sequence[TrialResult], metric: str, measured: Measured) -> MapCell:
    """The cell at ``x`` and ``y`` whose seeds are ``trials``; seeds that repeat a run count once."""
    trials = distinct_runs(trials)
    labels = [trial.label for trial in trials]
    finished = [trial for trial in trials if trial.is_judged]
    counts = Counter(labels)
    num_stable = counts["stable"] + counts[DEGRADED]
    medians = {name: _median_of(name, finished, measured) for name in dict.fromkeys([*METRICS, *measured, metric])}
    return MapCell(
        x=x,
        y=y,
        num_seeds=len(trials),
        num_finished=len(finished),
        outcomes=dict(counts),
        fraction_stable=num_stable / len(finished) if finished else None,
        interval=wilson(num_stable, len(finished)) if finished else None,
        medians=medians,
        total_spikes=sum(trial.num_spikes or 0 for trial in finished),
        num_risen=sum(trial.risen_share is not None for trial in finished),
        value=medians[metric],
        state=cell_state(labels),
        lr_health=_word_of_most([trial.lr_health for trial in finished if trial.lr_health is not None]),
    )


def _word_of_most(words: Sequence[str]) -> str | None:
    """The word of more than half of the seeds; where they disagree right if one says so, else unknown; None of none."""
    if not words:
        return None
    word, count = Counter(words).most_common(1)[0]
    return word if 2 * count > len(words) else RIGHT if RIGHT in words else UNSURE


def _median_of(name: str, trials: Sequence[TrialResult], measured: Measured) -> float | None:
    """The median of a metric over the trials that have it, None without one."""
    if name in measured:
        values = [measured[name].get(trial.trial_id) for trial in trials]
    else:
        values = [getattr(trial, name, None) for trial in trials]
    known = [value for value in values if value is not None]
    return median(known) if known else None


def from_best(cells: Sequence[MapCell], metric: str) -> list[MapCell]:
    """The cells in order: stable ones, degraded ones, those that are not known, those that are not stable.

    Known cells are ordered by their fraction of stable seeds, then by ``metric``, the lowest first; unknown ones by how
    much of them has been trained, the most first. Ties keep their order.
    """

    def place(cell: MapCell) -> tuple[int, float, float]:
        if not is_known(cell.state):
            return 2, -cell.num_finished, "errored" not in cell.outcomes
        value = cell.medians[metric]
        return (
            {"stable": 0, DEGRADED: 1}.get(cell.state, 3),
            -(cell.fraction_stable or 0.0),
            math.inf if value is None else value,
        )

    return sorted(cells, key=place)


def _reduced(cells: Sequence[MapCell], metric: str, how: str) -> MapCell:
    """One of ``cells``: the worst, the best, or the middle one (the worse of two).

    Unknown cells may turn out stable or not. If the state of the result depends on them, the first unknown cell is
    returned.
    """
    ordered = from_best(cells, metric)
    place = min(int(REDUCTIONS[how] * len(ordered)), len(ordered) - 1)
    taken = ordered[place]
    unknown = [cell for cell in ordered if not is_known(cell.state)]
    num_stable = sum(cell.state == "stable" for cell in ordered)
    depends = not is_known(taken.state) or (taken.state == DEGRADED and place < num_stable + len(unknown))
    return unknown[0] if depends else taken


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
