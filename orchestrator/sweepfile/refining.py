"""From a sweep that has been trained to the search that finds its edge more precisely."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis, is_number, on_natural_scale
from orchestrator.sweepfile.sections import SeedsSection
from orchestrator.sweepfile.strict_yaml import Document


def refined(document: Document, along: str | None, num_trials: int, factor: float) -> Document:
    """The sweep file of a search for the edge over the axes of ``document``, with at most ``num_trials`` trials.

    It ends when the edge is known within ``factor``. Ranges lose their ``num``; listed numbers become a range on the
    scale that they suggest; words, and lists with null, stay as they are. ``along`` is by default the axis of the
    file's search, else the first range. Raises InputError where there is none, or ``along`` is not one.
    """
    data = copy.deepcopy(document.data)
    axes: dict[str, Any] = {name: _as_range(name, section) for name, section in (data.get("axes") or {}).items()}
    ranges = [name for name, section in axes.items() if "values" not in section]
    before = data.get("search") or {}
    chosen = along or before.get("along") or next(iter(ranges), None)
    if chosen not in ranges:
        what = "there is no axis of two numbers or more" if chosen is None else f"{chosen!r} is no axis of numbers"
        known = f"axes of numbers: {', '.join(ranges)}" if ranges else "a search for an edge needs one"
        raise InputError(Problem("--along", "", what, known))
    data["axes"] = axes
    data.pop("sample", None)
    if isinstance(data.get("seeds"), dict):
        data["seeds"] = list(range(SeedsSection.model_validate(data["seeds"]).up_to))
    search = {"method": "edge", "along": chosen, "trials": num_trials, "precision": factor}
    kept = {key: before[key] for key in ("seed", "batch", "level") if before.get("method") == "edge" and key in before}
    data["search"] = search | kept
    return Document(document.name, data, dict(document.places))


def _as_range(name: str, section: Any) -> dict[str, Any]:
    given = {key: value for key, value in section.items() if key != "num"}
    values: Sequence[Any] = given.get("values") or ()
    if len(values) < 2 or not all(map(is_number, values)):
        return given
    axis = on_natural_scale(Axis(name, "values", tuple(values)))
    return {"linear" if axis.scale == "values" else axis.scale: [min(values), max(values)]}
