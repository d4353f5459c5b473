"""Reports as JSON text, for executors whose workers write files. Parsed strictly, since a file may be damaged."""

from __future__ import annotations

import base64
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union

import numpy as np

from orchestrator.base.packs import Ending, Report

_SHOWN = 60


def report_as_text(report: Report) -> str:
    """Return ``report`` as one line; NaN and infinities are written as in Python's json."""
    return json.dumps(_plain(report), separators=(",", ":"))


def report_from_text(text: str | bytes) -> Report:
    """Return the report in ``text``; columns are float64, or int64 if named step.

    Raises ValueError for anything but a complete report.
    """
    try:
        return _built(Report, json.loads(text), "report")
    except RecursionError:
        raise ValueError("report: is nested too deeply") from None


def _plain(value: Any) -> Any:
    """Convert ``value`` to JSON types."""
    if isinstance(value, Ending):
        return {"kind": type(value).__name__, **_plain_fields(value)}
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


def _plain_fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _built(kind: Any, value: Any, where: str) -> Any:
    """Build the type ``kind`` from ``value``. Raises ValueError naming ``where`` if it does not fit."""
    if isinstance(kind, type) and is_dataclass(kind):
        # `orchestrator.base.packs` imports numpy for its annotations alone.
        hints = typing.get_type_hints(kind, localns={"np": np})
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise ValueError(f"{where}: does not have the fields of {kind.__name__}")
        return kind(**{name: _built(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
    if kind is Any and _is_plain(value):
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        choices = {choice.__name__: choice for choice in inner if choice is not type(None)}
        if len(choices) == 1:
            (only,) = choices.values()
            return _built(only, value, where)
        # For one of several dataclasses the value names the class.
        name = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in choices:
            raise ValueError(f"{where}: {_shown(name)} is not one of {', '.join(choices)}")
        return _built(choices[name], {key: item for key, item in value.items() if key != "kind"}, where)
    if origin is tuple and isinstance(value, list):
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(_built(kind, item, f"{where}.{i}") for i, (kind, item) in pairs)
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        if inner[1] is np.ndarray:
            return _curve(value, where)
        return {name: _built(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    elif kind in _SCALARS:
        accepts, build = _SCALARS[kind]
        if type(value) in accepts:
            try:
                return build(value)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{where}: {error}") from None
    raise ValueError(f"{where}: {_shown(value)} is not valid here")


def _is_plain(value: Any) -> bool:
    """Whether ``value`` is a JSON scalar, or a mapping of names to such values."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str | bool | int | float)


def _curve(value: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    """Build a curve: columns of equal length."""
    columns = {name: _column(name, values, f"{where}.{name}") for name, values in value.items()}
    if "step" not in columns or len({len(column) for column in columns.values()}) > 1:
        raise ValueError(f"{where}: is not a curve: its columns are {', '.join(columns)}")
    return columns


def _column(name: str, values: Any, where: str) -> np.ndarray:
    """Build one column of a curve."""
    accepts, dtype = ((int,), np.int64) if name == "step" else ((int, float), np.float64)
    if not isinstance(values, list) or not all(type(value) in accepts for value in values):
        raise ValueError(f"{where}: {_shown(values)} is not a list of numbers")
    try:
        return np.array(values, dtype=dtype)
    except OverflowError as error:
        raise ValueError(f"{where}: {error}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# For each type of a field: the accepted JSON types, and the conversion.
_SCALARS: Mapping[Any, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    str: ((str,), str),
    bool: ((bool,), bool),
    int: ((int,), int),
    float: ((int, float), float),
    bytes: ((str,), lambda text: base64.b64decode(text, validate=True)),
}
