"""Changes of a sweep file before it is checked: by options of the command line, or to refine a trained sweep."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import SCALES, is_number
from orchestrator.sweepfile.sections import SeedsSection
from orchestrator.sweepfile.strict_yaml import Document, dotted, parse_document, parse_scalar

_MAX_PARTS = 10  # of a key
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""", re.DOTALL)  # one word of text as YAML writes it


@dataclass(frozen=True, slots=True)
class Overrides:
    """Changes from the command line: axes, keys, seeds, steps, name, and axes to leave out."""

    axes: Sequence[str] = ()
    sets: Sequence[str] = ()
    seeds: str | None = None
    steps: int | None = None
    name: str | None = None
    drops: Sequence[str] = ()  # axes of the file, removed before all other changes


def apply(overrides: Overrides, document: Document) -> None:
    """Apply ``overrides`` to ``document``. Raises InputError naming the option."""
    data = document.data
    for name in overrides.drops:
        if name not in (axes := _section(data, "axes", document)):
            remedy = f"axes: {', '.join(axes) or 'none'}"
            raise InputError(Problem(f"--drop {name}", f"axes.{name}", "is not an axis of the sweep", remedy))
        del axes[name]
    for text in overrides.axes:
        name, section = _parse_axis(text)
        _section(data, "axes", document)[name] = section
        _section(data, "fixed", document).pop(name, None)
        document.set_place(("axes", name), f"--axis {text}")
    for text in overrides.sets:
        path, value = parse_set(text)
        if path[0] == "fixed" and len(path) == 2 and path[1] in _section(data, "axes", document):
            raise InputError(_axis_problem(text, path[1]))
        target = data
        for part in path[:-1]:
            target = _section(target, part, document)
        target[path[-1]] = value
        document.set_place(path, f"--set {text}")
        _keep_one_length(path, data)
    if overrides.seeds is not None:
        data["seeds"] = [parse_scalar(seed.strip()) for seed in overrides.seeds.split(",")]
        document.set_place(("seeds",), f"--seeds {overrides.seeds}")
    for key in ("steps", "name"):
        if (value := getattr(overrides, key)) is not None:
            data[key] = value
            document.set_place((key,), f"--{key} {value}")
            _keep_one_length((key,), data)


def _keep_one_length(path: tuple[str, ...], data: dict[str, Any]) -> None:
    """Remove the file's tokens if the command line gives steps, and its steps if it gives tokens."""
    if other := {"steps": "tokens", "tokens": "steps"}.get(dotted(path)):
        data.pop(other, None)


def _axis_problem(text: str, name: str) -> Problem:
    """Return the problem of a ``--set text`` that fixes an axis, with a remedy for each possible intention."""
    value = text.partition("=")[2]
    keep = f"--set 'axes.{name}={{values: [{value}]}}'" if value[:1] == "[" else f"--axis {name}=values:{value}"
    quoted = f"'{text}'" if "[" in text else text
    return Problem(
        f"--set {text}",
        f"fixed.{name}",
        f"{name} is an axis of the sweep, and its other values would be gone from the map",
        f"`{keep}` keeps the axis with this one value; `--drop {name} --set {quoted}` makes a sweep without the axis, "
        "which needs a --name of its own if there are results",
    )


def _section(data: dict[str, Any], key: str, document: Document) -> dict[str, Any]:
    if data.get(key) is None:
        data[key] = {}
    if not isinstance(data[key], dict):
        raise InputError(document.problem((key,), "is not a mapping of keys to values"))
    return data[key]


def _parse_axis(text: str) -> tuple[str, dict[str, Any]]:
    name, equals, rest = text.partition("=")
    scale, colon, listed = rest.partition(":")
    if not (name and equals and colon) or scale not in SCALES:
        remedy = "write e.g. lr=log:1e-4,1e-1,7 or beta2=log1m:0.5,0.9999,7 or clip=values:none,1,0.3"
        raise InputError(Problem(f"--axis {text}", "", "is not NAME=SCALE:NUMBERS", remedy))
    if listed.lstrip()[:1] in ("[", "{"):
        remedy = f"write --set 'axes.{name}={{values: [{listed}]}}'"
        raise InputError(Problem(f"--axis {text}", "", "has lists as values, which commas cannot separate", remedy))
    values = [parse_scalar(word.strip()) for word in listed.split(",")]
    if scale == "values":
        return name, {"values": values}
    if len(values) not in (2, 3):
        remedy = f"write {name}={scale}:1e-4,1e-1,7"
        raise InputError(Problem(f"--axis {text}", "", f"a {scale} axis is low,high,num", remedy))
    return name, {scale: values[:2], **({"num": values[2]} if len(values) == 3 else {})}


def parse_set(text: str, option: str = "--set") -> tuple[tuple[str, ...], Any]:
    """Return the key path and the value of the KEY=VALUE of an ``option``. Raises InputError.

    A value in brackets, braces or quotes is read as YAML reads it.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")) or key.count(".") >= _MAX_PARTS:
        raise InputError(Problem(f"{option} {text}", "", "is not KEY=VALUE", "write e.g. fixed.batch_size=16"))
    if value and (value[0] in "[{" or _QUOTED.fullmatch(value)):
        return tuple(key.split(".")), parse_document(f"value: {value}", f"{option} {text}").data["value"]
    return tuple(key.split(".")), parse_scalar(value)


def refined(document: Document, along: str | None, num_known: int, num_more: int, factor: float) -> Document:
    """Add a search for the edge to the sweep file ``document``: ``num_more`` trials besides the ``num_known`` at hand.

    The search ends when the edge is known within ``factor``. ``along`` is by default the axis of the file's search,
    else the first with numbers. Raises InputError if there is none, or if ``along`` is an axis without numbers.
    """
    data = copy.deepcopy(document.data)
    ranges = [name for name, section in (data.get("axes") or {}).items() if _has_numbers(section)]
    before = data.get("search") or {}
    chosen = along or before.get("along") or next(iter(ranges), None)
    if chosen not in ranges:
        what = "no axis has at least two numbers" if chosen is None else f"{chosen!r} is not an axis of numbers"
        known = f"axes of numbers: {', '.join(ranges)}" if ranges else "a search for an edge needs one"
        raise InputError(Problem("--along", "", what, known))
    data.pop("sample", None)
    if isinstance(data.get("seeds"), dict):
        data["seeds"] = list(range(SeedsSection.model_validate(data["seeds"]).up_to))
    search = {"trials": num_known + num_more, "precision": factor, "refines": num_known}
    kept = {key: before[key] for key in ("seed", "batch", "level") if before.get("method") == "edge" and key in before}
    data["search"] = {"method": "edge", "along": chosen, **search, **kept}
    return replace(document, data=data, places=dict(document.places))


def _has_numbers(section: Mapping[str, Any]) -> bool:
    """Whether an axis is a range, or has at least two numbers and nothing else."""
    values = section.get("values")
    return section.get("num") != 1 if values is None else len(values) > 1 and all(map(is_number, values))


def at_cell(
    document: Document,
    name: str,
    cell: Mapping[str, Any],
    along: str,
    rates: Sequence[float],
    seed: int,
    steps: int | None,
) -> Document:
    """Return the sweep ``name`` that trains the ``rates`` of the axis ``along`` at one ``cell`` of ``document``.

    With ``steps`` its runs are that long. What limits, ranks or draws the trials of the whole sweep is left out.
    """
    data = copy.deepcopy(document.data)
    for key in ("sample", "search", "zip", "budget", "max_trials"):
        data.pop(key, None)
    (data.get("stopping") or {}).pop("slow", None)
    data["name"], data["seeds"] = name, [seed]
    data["fixed"] = {key: value for key, value in (data.get("fixed") or {}).items() if key not in cell}
    data["axes"] = {along: {"values": sorted(rates)}, **{key: {"values": [value]} for key, value in cell.items()}}
    if steps is not None:
        data.pop("tokens", None)
        data["steps"] = steps
    return replace(document, data=data, places={}, comment="")
