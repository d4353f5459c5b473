"""Ledger -> stability maps: outcomes over two axes, seeds as replicates."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.detection.outcomes import cell_state, is_known
from orchestrator.errors import InputError, Problem
from orchestrator.intervals import wilson
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.axis_values import value_label, value_labels, value_meant
from orchestrator.space import Axis, is_number

METRICS: Mapping[str, str] = {
    "final_loss": "median final loss",
    "validation_loss": "median validation loss",
    "best_loss": "median best loss",
    "peak_loss": "median peak of the spikes",
    "onset_step": "median onset step",
    "num_spikes": "median number of spikes",
    "steps_done": "median steps trained",
    "spike_score": "median spike score: share of steps over 6 sigma of the last 128",
    "edge_crossings": "median times over the edge of stability, second half",
}
REDUCTIONS = ("worst", "median", "best")


@dataclass(frozen=True, slots=True)
class MapCell:
    """One cell of a stability map; ``state`` is that of ``cell_state``: stable only when every seed asked for is.

    Numbers are of the ``num_finished`` seeds that have a result, of ``num_seeds`` that were asked for.
    ``fraction_stable``, its 95 % Wilson ``interval`` and ``value`` (of the map's metric) are None without one; so is
    each of ``medians`` (of METRICS) that no seed has. ``total_spikes`` is the number of spikes in all its seeds.
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
    value: float | None
    state: str


@dataclass(frozen=True, slots=True)
class StabilityMap:
    """Cells over two axes (one of them may be missing), in the order of the axes' values.

    ``note`` says what was fixed, and how axes that are not shown were reduced. ``facet`` is the axis and the
    value that this map of several stands for.
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

    def state(self, key: tuple[Any, Any]) -> str:
        """The state of the cell at x and y; not_run where the sweep has none there."""
        return self.cells[key].state if key in self.cells else "not_run"


def sweep_axes(ledger: LedgerReader) -> list[Axis]:
    """The axes of the sweep, their values as found in its trials."""
    values = axis_values([trial["cell"] for trial in ledger.trials()])
    return [
        Axis(fact["name"], fact["scale"], values.get(fact["name"], ()), tuple(fact["ends"]) if fact["ends"] else None)
        for fact in json.loads(ledger.facts().get("axes", "[]"))
    ]


def axis_values(cells: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The values of each axis that ``cells`` have, in order."""
    names = list(cells[0]) if cells else []
    return {name: tuple(ordered(list(dict.fromkeys(cell[name] for cell in cells)))) for name in names}


def stability_map(
    ledger: LedgerReader,
    x: str | None = None,
    y: str | None = None,
    metric: str = "final_loss",
    where: Mapping[str, Any] | None = None,
    reduce: str = "worst",
    measured: Mapping[str, Mapping[str, float]] | None = None,
) -> StabilityMap:
    """The map over axes ``x`` and ``y`` (by default the first two), limited to the cells of ``where``.

    ``where`` gives axes a value, or its text (``value_meant``). Where other axes are left, a cell of the map is the
    ``reduce`` of their cells: the worst, the median or the best by fraction of stable seeds, then by the metric; it
    is unknown where cells without a result decide which that is. ``measured`` are the metrics of trials that are not
    in the ledger's table (``curve_metrics``). Raises InputError for an axis, a value, a metric or a reduction that
    there is not.
    """
    facts, axes = ledger.facts(), {axis.name: axis for axis in sweep_axes(ledger)}
    if metric not in METRICS:
        raise InputError(Problem("--metric", "", f"{metric!r} is unknown", f"choose one of {', '.join(METRICS)}"))
    if not axes:
        raise InputError(Problem(str(ledger.path), "", "the sweep has no axes, so there is no map to draw"))
    trials, notes = _filtered(ledger.trials(), axes, where or {})
    extra = measured or {}
    trials = [{**trial, **{name: of.get(trial["trial_id"]) for name, of in extra.items()}} for trial in trials]
    x_name, y_name = _chosen(axes, x, y, where or {})
    is_sampled = facts.get("is_sampled") == "true"
    return make_map(trials, axes, x_name, y_name, metric, reduce, facts.get("name", ""), notes, is_sampled)


def make_map(
    trials: Sequence[Mapping[str, Any]],
    axes: Mapping[str, Axis],
    x: str,
    y: str | None,
    metric: str,
    reduce: str,
    name: str,
    notes: Sequence[str] = (),
    is_sampled: bool = False,
) -> StabilityMap:
    """The map of rows of a ledger over the axes named ``x`` and ``y``; ``notes`` say which rows they are.

    Raises InputError for a reduction that there is not.
    """
    if reduce not in REDUCTIONS:
        raise InputError(Problem("--reduce", "", f"{reduce!r} is unknown", f"choose {', '.join(REDUCTIONS)}"))
    others = [axis for axis in axes if axis not in (x, y) and len({trial["cell"][axis] for trial in trials}) > 1]
    grouped: dict[tuple[Any, Any], dict[tuple[Any, ...], list[Mapping[str, Any]]]] = {}
    for trial in trials:
        cell = trial["cell"]
        key = (cell[x], cell[y] if y else None)
        grouped.setdefault(key, {}).setdefault(tuple(cell[axis] for axis in others), []).append(trial)
    xs, ys = ({key[place] for key in grouped} for place in (0, 1))
    cells = {
        key: _reduced([_cell(*key, members, metric) for members in inner.values()], reduce)
        for key, inner in grouped.items()
    }
    return StabilityMap(
        name=name,
        x=axes[x],
        y=axes[y] if y else None,
        x_values=tuple(value for value in axes[x].values if value in xs),
        y_values=tuple(value for value in axes[y].values if value in ys) if y else (None,),
        cells=cells,
        metric=metric,
        is_sampled=is_sampled,
        note="; ".join([*notes, *([f"{reduce} over {', '.join(others)}"] if others else [])]),
    )


def facet_maps(ledger: LedgerReader, facet: str, where: Mapping[str, Any], **options: Any) -> list[StabilityMap]:
    """One map for each value of the axis ``facet``, in order; ``options`` are those of ``stability_map``.

    Raises InputError as ``stability_map`` does, and for an axis that is also fixed or drawn.
    """
    axes = {axis.name: axis for axis in sweep_axes(ledger)}
    if facet not in axes:
        raise InputError(Problem("--facet", "", f"{facet!r} is not an axis", f"axes: {', '.join(axes)}"))
    if facet in (*where, options.get("x"), options.get("y")):
        raise InputError(Problem("--facet", "", f"{facet!r} is fixed or drawn already", "choose another axis"))
    maps = []
    for value, label in zip(axes[facet].values, value_labels(axes[facet].values), strict=True):
        stability = stability_map(ledger, where={**where, facet: value}, **options)
        others = [part for part in stability.note.split("; ") if part != f"{facet} = {label}"]
        maps.append(replace(stability, note="; ".join(others), facet=(facet, label)))
    return maps


def _cell(x: Any, y: Any, trials: Sequence[Mapping[str, Any]], metric: str) -> MapCell:
    labels = [trial["outcome"] or trial["status"] for trial in trials]
    finished = [trial for trial in trials if trial["outcome"]]
    counts = Counter(labels)
    medians = {name: median(trial.get(name) for trial in finished) for name in METRICS}
    return MapCell(
        x=x,
        y=y,
        num_seeds=len(trials),
        num_finished=len(finished),
        outcomes=dict(counts),
        fraction_stable=counts["stable"] / len(finished) if finished else None,
        interval=wilson(counts["stable"], len(finished)) if finished else None,
        medians=medians,
        total_spikes=sum(trial.get("num_spikes") or 0 for trial in finished),
        value=medians[metric],
        state=cell_state(labels),
    )


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None, None without one."""
    known = sorted(value for value in values if value is not None)
    middle = len(known) // 2
    return (known[middle] + known[~middle]) / 2 if known else None


def _reduced(cells: Sequence[MapCell], how: str) -> MapCell:
    """One of ``cells``: the worst, the best, or (the worse of two) the middle one.

    Cells that are not known may stand anywhere in the order. Where that leaves open whether the cell asked for is
    stable, it is one of those that are not known: the one of which most has been trained.
    """

    def badness(cell: MapCell) -> tuple[float, float]:
        return -(cell.fraction_stable or 0.0), math.inf if cell.value is None else cell.value

    known = sorted((cell for cell in cells if is_known(cell.state)), key=badness)
    unknown = [cell for cell in cells if not is_known(cell.state)]
    place = {"best": 0, "median": len(cells) // 2, "worst": len(cells) - 1}[how]
    num_stable = sum(cell.state == "stable" for cell in known)
    if num_stable <= place < num_stable + len(unknown):
        return max(unknown, key=lambda cell: (cell.num_finished, "errored" in cell.outcomes))
    return known[place if place < num_stable else place - len(unknown)]


def _filtered(
    trials: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis], where: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The trials of ``where``, and what it says in words."""
    kept, values = trials_where("--where", trials, axes, where)
    return kept, [f"{name} = {value_label(axes[name], value)}" for name, value in values.items()]


def trials_where(
    option: str, trials: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis], where: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    """The trials whose cells have the values of ``where`` (as ``value_meant`` reads them), and these values.

    Raises InputError naming ``option`` for an axis or a value that there is not, and where no cell has them all.
    """
    values = {}
    for name, wanted in where.items():
        if name not in axes:
            raise InputError(Problem(option, name, "is not an axis", f"axes: {', '.join(axes) or 'none'}"))
        values[name] = value_meant(option, axes[name], wanted)
    kept = [trial for trial in trials if all(trial["cell"][name] == value for name, value in values.items())]
    if where and not kept:
        written = ",".join(f"{name}={wanted}" for name, wanted in where.items())
        raise InputError(Problem(option, written, "the sweep has no such cell", "see `sweep status NAME`"))
    return kept, values


def _chosen(axes: Mapping[str, Axis], x: str | None, y: str | None, where: Mapping[str, str]) -> tuple[str, str | None]:
    for option, name in (("--x", x), ("--y", y)):
        if name is not None and name not in axes:
            raise InputError(Problem(option, "", f"{name!r} is not an axis", f"axes: {', '.join(axes)}"))
    if x is not None and x == y:
        raise InputError(Problem("--y", "", f"{y!r} is also --x", "choose two different axes"))
    free = [name for name in axes if name not in (x, y, *where)]
    if x is None:
        x = free.pop(0) if free else next(name for name in axes if name != y)
    if y is None and free:
        y = free.pop(0)
    return x, y


def ordered(values: Sequence[Any]) -> list[Any]:
    """Numbers ascend, with none (no clipping: the loosest) last; words keep their order."""
    others = [value for value in values if not is_number(value)]
    if others in ([], [None]):
        return [*sorted(value for value in values if is_number(value)), *others]
    return list(values)
