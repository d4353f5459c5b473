"""Changes that the command line makes to a sweep file: axes, keys, seeds, steps, name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import SCALES
from orchestrator.sweepfile.strict_yaml import Document, parse_document, parse_scalar

_MAX_PARTS = 10  # of a key


@dataclass(frozen=True, slots=True)
class Overrides:
    """Changes that the command line makes to a sweep file."""

    axes: Sequence[str] = ()
    sets: Sequence[str] = ()
    seeds: str | None = None
    steps: int | None = None
    name: str | None = None
    drops: Sequence[str] = ()  # axes of the file; removed before other changes


def apply(overrides: Overrides, document: Document) -> None:
    """Change ``document`` as given on the command line. Raises InputError naming the option."""
    data = document.data
    for name in overrides.drops:
        _drop(name, document)
    for text in overrides.axes:
        name, section = _parse_axis(text)
        _section(data, "axes", document)[name] = section
        _section(data, "fixed", document).pop(name, None)
        _say_where(document, ("axes", name), f"--axis {text}")
    for text in overrides.sets:
        path, value = parse_set(text)
        if path[0] == "fixed" and len(path) == 2 and path[1] in _section(data, "axes", document):
            raise InputError(_would_lose_axis(text, path[1]))
        target = data
        for part in path[:-1]:
            target = _section(target, part, document)
        target[path[-1]] = value
        _say_where(document, path, f"--set {text}")
        _keep_one_length(path, data)
    if overrides.seeds is not None:
        data["seeds"] = [parse_scalar(seed.strip()) for seed in overrides.seeds.split(",")]
        _say_where(document, ("seeds",), f"--seeds {overrides.seeds}")
    for key in ("steps", "name"):
        if (value := getattr(overrides, key)) is not None:
            data[key] = value
            _say_where(document, (key,), f"--{key} {value}")
            _keep_one_length((key,), data)


def _keep_one_length(path: tuple[str, ...], data: dict[str, Any]) -> None:
    """Steps from the command line replace the tokens of the file, and tokens its steps."""
    if path == ("steps",):
        data.pop("tokens", None)
    if path == ("tokens",):
        data.pop("steps", None)


def _drop(name: str, document: Document) -> None:
    axes = _section(document.data, "axes", document)
    if name not in axes:
        remedy = f"axes: {', '.join(axes)}" if axes else "there are no axes"
        raise InputError(Problem(f"--drop {name}", f"axes.{name}", "is not an axis of the sweep", remedy))
    del axes[name]


def _would_lose_axis(text: str, name: str) -> Problem:
    """``--set text`` fixes a field that is an axis; explains how to do either of the two possible intentions."""
    value = text.partition("=")[2]
    one = f"--set 'axes.{name}={{values: [{value}]}}'" if value[:1] == "[" else f"--axis {name}=values:{value}"
    return Problem(
        f"--set {text}",
        f"fixed.{name}",
        f"{name} is an axis of the sweep, and its other values would be gone from the map",
        f"`{one}` keeps the axis with this one value; `--drop {name} --set {_quoted(text)}` makes a sweep without the "
        "axis, which needs a --name of its own where there are results",
    )


def _quoted(text: str) -> str:
    return f"'{text}'" if "[" in text else text


def _say_where(document: Document, path: tuple[str | int, ...], option: str) -> None:
    """Record ``option`` as the place where all of ``path`` was written, instead of a line of the file."""
    for place in [place for place in document.places if place[: len(path)] == path]:
        del document.places[place]
    document.places[path] = option


def _section(data: dict[str, Any], key: str, document: Document) -> dict[str, Any]:
    if data.get(key) is None:
        data[key] = {}
    if not isinstance(data[key], dict):
        raise InputError(Problem(document.place((key,)), key, "is not a mapping of keys to values"))
    return data[key]


def _parse_axis(text: str) -> tuple[str, dict[str, Any]]:
    name, equals, rest = text.partition("=")
    scale, colon, listed = rest.partition(":")
    if not (name and equals and colon) or scale not in SCALES:
        raise InputError(
            Problem(
                f"--axis {text}",
                "",
                "is not NAME=SCALE:NUMBERS",
                "write e.g. lr=log:1e-4,1e-1,7 or beta2=log1m:0.5,0.9999,7 or clip=values:none,1,0.3",
            )
        )
    if listed.lstrip()[:1] in ("[", "{"):
        remedy = f"write --set 'axes.{name}={{values: [{listed}]}}'"
        raise InputError(Problem(f"--axis {text}", "", "has lists as values, which commas cannot tell apart", remedy))
    values = [parse_scalar(word.strip()) for word in listed.split(",")]
    if scale == "values":
        return name, {"values": values}
    if len(values) not in (2, 3):
        raise InputError(
            Problem(f"--axis {text}", "", f"a {scale} axis is low,high,num", f"write {name}={scale}:1e-4,1e-1,7")
        )
    section: dict[str, Any] = {scale: values[:2]}
    return name, section | ({"num": values[2]} if len(values) == 3 else {})


def parse_set(text: str) -> tuple[tuple[str, ...], Any]:
    """The key path and the value of a `--set KEY=VALUE`. Raises InputError."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")) or key.count(".") >= _MAX_PARTS:
        raise InputError(Problem(f"--set {text}", "", "is not KEY=VALUE", "write e.g. fixed.batch_size=16"))
    if value[:1] in "[{" and value:
        return tuple(key.split(".")), parse_document(f"value: {value}", f"--set {text}").data["value"]
    return tuple(key.split(".")), parse_scalar(value)
