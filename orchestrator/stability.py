"""Ledger -> tidy table -> stability maps: outcomes over two axes, seeds as replicates."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from orchestrator.errors import InputError, Problem
from orchestrator.intervals import wilson
from orchestrator.ledger import Ledger
from orchestrator.outcomes import OUTCOMES, cell_state
from orchestrator.space import Axis, format_value

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
_RESULTS = (
    "status", "outcome", "onset_step", "num_spikes", "steps", "steps_done", "initial_loss", "best_loss",
    "final_loss", "peak_loss", "validation_loss", "reason", "num_attempts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MapCell:
    """One cell of a stability map. ``state`` is the commonest outcome that is not stable, if any.

    ``state`` is stable only when every seed that was asked for is; errored and not_run mean that no seed
    finished. ``fraction_stable``, its 95 % Wilson ``interval`` and ``value`` (of the map's metric) are None
    without a finished seed; so is each of ``medians`` (of METRICS) that no seed has. ``total_spikes`` is the
    number of spikes in all its seeds.
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


def trial_table(ledger: Ledger) -> pd.DataFrame:
    """One row per trial of the sweep: trial_id, seed, every config field, results.

    A field of the configuration keeps its name; onset_step and the like are missing where there is none.
    """
    rows = []
    for trial in ledger.trials():
        row = {"trial_id": trial["trial_id"], **trial["config"], **trial["cell"], "seed": trial["seed"]}
        row |= {name: trial[name] for name in _RESULTS}
        done = trial["steps_done"]
        row["saved_steps"] = None if done is None else trial["steps"] - done
        rows.append(row)
    return pd.DataFrame(rows)


def sweep_axes(ledger: Ledger) -> list[Axis]:
    """The axes of the sweep, their values as found in its trials."""
    cells = [trial["cell"] for trial in ledger.trials()]
    axes = []
    for fact in json.loads(ledger.facts().get("axes", "[]")):
        name = fact["name"]
        values = list(dict.fromkeys(cell[name] for cell in cells))
        ends = tuple(fact["ends"]) if fact["ends"] else None
        axes.append(Axis(name, fact["scale"], tuple(ordered(values)), ends))
    return axes


def stability_map(
    ledger: Ledger,
    x: str | None = None,
    y: str | None = None,
    metric: str = "final_loss",
    where: Mapping[str, str] | None = None,
    reduce: str = "worst",
    measured: Mapping[str, Mapping[str, float]] | None = None,
) -> StabilityMap:
    """The map over axes ``x`` and ``y`` (by default the first two), limited to the cells of ``where``.

    Where other axes are left, a cell of the map is the ``reduce`` of their cells: the worst, the median or
    the best by fraction of stable seeds, then by the metric. ``measured`` are the metrics of trials that
    are not in the ledger's table (``curve_metrics``). Raises InputError for an axis, a value, a metric or a
    reduction that there is not.
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
    cells = {
        key: _reduced([_cell(*key, members, metric) for members in inner.values()], reduce)
        for key, inner in grouped.items()
    }
    return StabilityMap(
        name=name,
        x=axes[x],
        y=axes[y] if y else None,
        x_values=tuple(v for v in axes[x].values if any(key[0] == v for key in grouped)),
        y_values=tuple(v for v in axes[y].values if any(key[1] == v for key in grouped)) if y else (None,),
        cells=cells,
        metric=metric,
        is_sampled=is_sampled,
        note="; ".join([*notes, *([f"{reduce} over {', '.join(others)}"] if others else [])]),
    )


def facet_maps(ledger: Ledger, facet: str, where: Mapping[str, str], **options: Any) -> list[StabilityMap]:
    """One map for each value of the axis ``facet``, in order; ``options`` are those of ``stability_map``.

    Raises InputError as ``stability_map`` does, and for an axis that is also fixed or drawn.
    """
    axes = {axis.name: axis for axis in sweep_axes(ledger)}
    if facet not in axes:
        raise InputError(Problem("--facet", "", f"{facet!r} is not an axis", f"axes: {', '.join(axes)}"))
    if facet in (*where, options.get("x"), options.get("y")):
        raise InputError(Problem("--facet", "", f"{facet!r} is fixed or drawn already", "choose another axis"))
    maps = []
    for value in map(format_value, axes[facet].values):
        stability = stability_map(ledger, where={**where, facet: value}, **options)
        others = [part for part in stability.note.split("; ") if part != f"{facet} = {value}"]
        maps.append(replace(stability, note="; ".join(others), facet=(facet, value)))
    return maps


def map_table(stability: StabilityMap) -> pd.DataFrame:
    """The map as a tidy table, one row per cell; ``attrs["note"]`` says what was fixed and reduced."""
    rows = []
    for cell in stability.cells.values():
        row: dict[str, Any] = {stability.x.name: cell.x}
        if stability.y is not None:
            row[stability.y.name] = cell.y
        low, high = cell.interval or (None, None)
        row |= {"num_seeds": cell.num_seeds, "num_finished": cell.num_finished, "state": cell.state}
        row |= {"fraction_stable": cell.fraction_stable, "fraction_low": low, "fraction_high": high}
        row |= {f"num_{outcome}": cell.outcomes.get(outcome, 0) for outcome in OUTCOMES}
        row |= {"num_errored": cell.outcomes.get("errored", 0), "total_spikes": cell.total_spikes}
        row |= {f"median_{name}": math.nan if value is None else value for name, value in cell.medians.items()}
        rows.append(row)
    table = pd.DataFrame(rows)
    table.attrs["note"] = stability.note
    return table


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
        total_spikes=sum(trial["num_spikes"] or 0 for trial in finished),
        value=medians[metric],
        state=cell_state(labels),
    )


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None, None without one."""
    known = sorted(value for value in values if value is not None)
    middle = len(known) // 2
    return (known[middle] + known[~middle]) / 2 if known else None


def _reduced(cells: Sequence[MapCell], how: str) -> MapCell:
    """One of ``cells``: the worst, the best, or (the worse of two) the middle one."""

    def badness(cell: MapCell) -> tuple[float, float]:
        # A cell that has no result is neither good nor bad: it comes last whichever end is asked for.
        return -(cell.fraction_stable or 0.0), math.inf if cell.value is None else cell.value

    known = sorted((cell for cell in cells if cell.fraction_stable is not None), key=badness)
    if not known:
        return cells[0]
    return {"best": known[0], "median": known[len(known) // 2], "worst": known[-1]}[how]


def _filtered(
    trials: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis], where: Mapping[str, str]
) -> tuple[list[Mapping[str, Any]], list[str]]:
    kept = list(trials)
    for name, wanted in where.items():
        if name not in axes:
            raise InputError(Problem("--where", name, "is not an axis", f"axes: {', '.join(axes)}"))
        kept = [trial for trial in kept if _matches(trial["cell"][name], wanted)]
        if not kept:
            values = ", ".join(format_value(value) for value in axes[name].values)
            raise InputError(Problem("--where", name, f"no cell has {wanted}", f"values: {values}"))
    return kept, [f"{name} = {value}" for name, value in where.items()]


def _matches(value: Any, wanted: str) -> bool:
    if format_value(value) == wanted:
        return True
    try:
        return isinstance(value, int | float) and math.isclose(value, float(wanted), rel_tol=1e-4)
    except ValueError:
        return False


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


def ordered(values: list[Any]) -> list[Any]:
    """Numbers ascend, with none (no clipping: the loosest) last; words keep their order."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    others = [value for value in values if value not in numbers]
    if others in ([], [None]):
        return [*sorted(numbers), *others]
    return values
