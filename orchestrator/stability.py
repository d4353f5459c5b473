"""Ledger -> tidy table -> stability maps: outcomes over two axes, seeds as replicates."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator.errors import InputError, Problem
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
}
_RESULTS = (
    "status", "outcome", "onset_step", "num_spikes", "steps", "steps_done", "initial_loss", "best_loss",
    "final_loss", "peak_loss", "validation_loss", "reason", "num_attempts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MapCell:
    """One cell of a stability map. ``state`` is the commonest outcome that is not stable, if any.

    ``state`` is stable only when every seed that was asked for is; errored and not_run mean that no seed
    finished. ``fraction_stable`` and ``value`` (of the map's metric) are None without a finished seed.
    """

    x: Any
    y: Any
    num_seeds: int
    num_finished: int
    outcomes: Mapping[str, int]
    fraction_stable: float | None
    value: float | None
    state: str


@dataclass(frozen=True, slots=True)
class StabilityMap:
    """Cells over two axes (one of them may be missing), in the order of the axes' values."""

    name: str
    x: Axis
    y: Axis | None
    x_values: tuple[Any, ...]
    y_values: tuple[Any, ...]
    cells: Mapping[tuple[Any, Any], MapCell]
    metric: str
    is_sampled: bool
    note: str


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
        axes.append(Axis(name, fact["scale"], tuple(_ordered(values)), ends))
    return axes


def stability_map(
    ledger: Ledger,
    x: str | None = None,
    y: str | None = None,
    metric: str = "final_loss",
    where: Mapping[str, str] | None = None,
) -> StabilityMap:
    """The map over axes ``x`` and ``y`` (by default the first two), limited to the cells of ``where``.

    Axes beyond the two are pooled with the seeds, and the map's note says so. Raises InputError for an
    axis, a value or a metric that the sweep does not have.
    """
    facts, axes = ledger.facts(), {axis.name: axis for axis in sweep_axes(ledger)}
    if metric not in METRICS:
        raise InputError(Problem("--metric", "", f"{metric!r} is unknown", f"choose one of {', '.join(METRICS)}"))
    if not axes:
        raise InputError(Problem(str(ledger.path), "", "the sweep has no axes, so there is no map to draw"))
    trials, fixed_note = _filtered(ledger.trials(), axes, where or {})
    x_name, y_name = _chosen(axes, x, y, where or {})
    x_axis, y_axis = axes[x_name], axes[y_name] if y_name else None
    grouped: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for trial in trials:
        key = (trial["cell"][x_name], trial["cell"][y_name] if y_name else None)
        grouped.setdefault(key, []).append(trial)
    pooled = [name for name in axes if name not in (x_name, y_name, *(where or {})) and len(axes[name].values) > 1]
    notes = fixed_note + ([f"pooled over {', '.join(pooled)}"] if pooled else [])
    return StabilityMap(
        name=facts.get("name", ""),
        x=x_axis,
        y=y_axis,
        x_values=tuple(v for v in x_axis.values if any(key[0] == v for key in grouped)),
        y_values=tuple(v for v in y_axis.values if any(key[1] == v for key in grouped)) if y_axis else (None,),
        cells={key: _cell(*key, members, metric) for key, members in grouped.items()},
        metric=metric,
        is_sampled=facts.get("is_sampled") == "true",
        note="; ".join(notes),
    )


def map_table(stability: StabilityMap) -> pd.DataFrame:
    """The map as a tidy table, one row per cell."""
    rows = []
    for cell in stability.cells.values():
        row: dict[str, Any] = {stability.x.name: cell.x}
        if stability.y is not None:
            row[stability.y.name] = cell.y
        row |= {"num_seeds": cell.num_seeds, "num_finished": cell.num_finished, "state": cell.state}
        row["fraction_stable"] = cell.fraction_stable
        row |= {f"num_{outcome}": cell.outcomes.get(outcome, 0) for outcome in OUTCOMES}
        row["num_errored"] = cell.outcomes.get("errored", 0)
        row[f"median_{stability.metric}"] = cell.value
        rows.append(row)
    return pd.DataFrame(rows)


def _cell(x: Any, y: Any, trials: Sequence[Mapping[str, Any]], metric: str) -> MapCell:
    labels = [trial["outcome"] or trial["status"] for trial in trials]
    finished = [trial for trial in trials if trial["outcome"]]
    values = sorted(trial[metric] for trial in finished if trial[metric] is not None)
    middle = len(values) // 2
    counts = Counter(labels)
    return MapCell(
        x=x,
        y=y,
        num_seeds=len(trials),
        num_finished=len(finished),
        outcomes=dict(counts),
        fraction_stable=counts["stable"] / len(finished) if finished else None,
        value=(values[middle] + values[~middle]) / 2 if values else None,
        state=cell_state(labels),
    )


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


def _ordered(values: list[Any]) -> list[Any]:
    """Numbers ascend, with none (no clipping: the loosest) last; words keep their order."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    others = [value for value in values if value not in numbers]
    if others in ([], [None]):
        return [*sorted(numbers), *others]
    return values
