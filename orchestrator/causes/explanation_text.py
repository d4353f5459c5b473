"""An explanation in words and as JSON: which mechanism dominates which part of the unstable region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.base.space import format_value
from orchestrator.causes.explanation import UNEXPLAINED, Explanation, Key
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.small_sweep import CURVATURE_EVERY
from orchestrator.detection.outcomes import is_known
from orchestrator.maps.stability import StabilityMap


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """Each cell of the map with its state and its mechanism; null if the cell is stable or unexplained."""
    stability = explanation.stability
    names = [axis.name for axis in (stability.x, stability.y) if axis is not None]
    return {
        "sweep": stability.name,
        "note": stability.note,
        "cells": [
            {
                "setting": dict(zip(names, key, strict=False)),
                "state": cell.state,
                "mechanism": None if (mechanism := explanation.mechanism(key)) == UNEXPLAINED else mechanism,
            }
            for key, cell in stability.cells.items()
        ],
    }


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Which mechanism dominates which part of the unstable region, the largest part first."""
    stability = explanation.stability
    num_known = sum(is_known(cell.state) for cell in stability.cells.values())
    note = f" ({stability.note})" if stability.note else ""
    yield f"{stability.name}: {len(explanation.causes)} of {num_known} known cells are not stable{note}"
    if explanation.num_controlled:
        yield f"control rules acted in {explanation.num_acted} of the {explanation.num_controlled} trials that have any"
    keys: dict[str, list[Key]] = {key: [] for key in (*MECHANISMS, UNEXPLAINED)}
    for key, cause in explanation.causes.items():
        keys[cause.mechanism].append(key)
    for mechanism, cells in sorted(keys.items(), key=lambda item: -len(item[1])):
        if cells:
            title = MECHANISMS[mechanism].title if mechanism in MECHANISMS else mechanism
            yield f"{title}: {len(cells)} cell{'s' if len(cells) > 1 else ''}"
            yield from (f"  {text}" for text in _where(stability, cells))
    if any(explanation.causes[key].lacks_curvature for key in keys[UNEXPLAINED]):
        yield f"the curvature was not measured; measure it with telemetry: {{curvature: {CURVATURE_EVERY}}}"


def _where(stability: StabilityMap, cells: Sequence[Key]) -> Iterator[str]:
    """The ranges of x that these cells cover, by value of y; equal rows share a line."""
    if stability.is_sampled:
        for x, y in cells:
            yield _at(stability.x.name, [x]) + (f", {_at(stability.y.name, [y])}" if stability.y else "")
        return
    covered = set(cells)
    rows: list[tuple[tuple[Any, ...], list[Any]]] = []
    for y in stability.y_values:
        row = tuple(x for x in stability.x_values if (x, y) in covered)
        if row and rows and rows[-1][0] == row and _follow(stability.y_values, rows[-1][1][-1], y):
            rows[-1][1].append(y)
        elif row:
            rows.append((row, [y]))
    for row, values in rows:
        stretches = " and ".join(_range(stretch) for stretch in _stretches(row, stability.x_values))
        yield f"{stability.x.name} {stretches}" + (f" at {stability.y.name} {_range(values)}" if stability.y else "")


def _stretches(values: Sequence[Any], all_values: Sequence[Any]) -> list[list[Any]]:
    """``values`` split at gaps in the order of ``all_values``."""
    parts: list[list[Any]] = []
    for value in values:
        if parts and _follow(all_values, parts[-1][-1], value):
            parts[-1].append(value)
        else:
            parts.append([value])
    return parts


def _follow(all_values: Sequence[Any], a: Any, b: Any) -> bool:
    return list(all_values).index(b) == list(all_values).index(a) + 1


def _range(values: Sequence[Any]) -> str:
    ends = [values[0], values[-1]] if len(values) > 1 else values
    return " .. ".join(format_value(value) for value in ends)


def _at(name: str, values: Sequence[Any]) -> str:
    return f"{name} {_range(values)}"
