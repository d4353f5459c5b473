"""Names and numbers in a line of text, a cell or a JSON object."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.logs.columns import plain_name

LONGEST_NAME = 250  # characters of a metric's name, as in MLflow
_LONGEST_TEXT = 4000  # characters searched in a line

_NUMBER = r"[-+]?(?:\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_WORD = r"(?!(?:nan|inf|infinity|info|debug|warning)\b)[A-Za-z_][\w/.\-]{0,249}+"
# A name of up to three words, an optional colon or equals sign, a number with an optional unit. Both may be quoted.
_PAIR = re.compile(
    rf"(?<![\w.])({_WORD}(?: {_WORD}){{0,2}})(?=[\"'\s(:=])[\"']?\s*+(?:\([^)]*+\))?+\s*+[:=]?\s*+[\"']?"
    rf"({_NUMBER})(?=[A-Za-z%]{{0,3}}(?![\w.]\w))",
    re.IGNORECASE,
)
_NUMBER_ALONE = re.compile(_NUMBER, re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def without_colours(text: str) -> str:
    """``text`` without terminal colour codes."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def text_pairs(line: str) -> Iterator[tuple[str, float]]:
    """Names in their plain form, with the numbers that follow them."""
    for match in _PAIR.finditer(line[:_LONGEST_TEXT]):
        yield plain_name(match[1]), float(match[2].replace(",", ""))


def number_of(cell: str) -> float | None:
    """The number that fills ``cell``, possibly quoted; None for anything else."""
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        text = cell.strip().strip("\"'")
        return float(text.replace(",", "")) if _NUMBER_ALONE.fullmatch(text) else None


def json_numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Names and numbers of a JSON object; nested names are joined by a slash; the first of two duplicates counts."""
    row: dict[str, float] = {}
    _add_numbers(row, found, "")
    return row


def _add_numbers(row: dict[str, float], found: Mapping[str, Any], prefix: str) -> None:
    for key, value in found.items():
        if len(prefix) + len(key) > LONGEST_NAME:
            continue
        name, kind = prefix + key, type(value)
        number = None
        if kind is float:
            number = value
        elif kind is dict:
            _add_numbers(row, value, f"{name}/")
        elif kind is int:
            number = _float(value)
        elif kind is str:
            number = number_of(value)
        if number is not None:
            row.setdefault(name, number)


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:  # a JSON integer of any length
        return math.inf if value > 0 else -math.inf
