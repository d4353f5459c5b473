"""JSON objects in the lines of a log: their names and numbers, of successive lines with the same names together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from orchestrator.logs.columns import may_be_loss
from orchestrator.logs.lines import MAX_NAME, Reader, Row, Rows, object_in, texts_of
from orchestrator.logs.series import SeriesOfText, row_of_object
from orchestrator.logs.settings import Settings

_NUMBERS = frozenset((float, int))
# What json.loads calls, which costs as much again around it.
_SCAN: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


class JsonLines(Reader):
    """Reads one JSON object per line; other lines are ignored."""

    def __init__(self) -> None:
        self._series = SeriesOfText()
        self._alike = ObjectsAlike(self._series)
        self._settings = Settings()

    def num_left_out(self) -> int:
        """Return the number of lines with a loss that are not part of the training series."""
        return self._settings.num_left_out

    def finish(self) -> Iterable[Row]:
        """Return the rows of lines that were held back."""
        return self._rows(self._settings.finish())

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        return self._rows(self._settings.without(lines))

    def _rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        for text in texts_of(lines):
            if row := self._row(text):
                yield row

    def parts(self, lines: Sequence[bytes]) -> Iterator[Row | Rows]:
        """Yield the rows of nonempty lines, those of successive objects with the same names together."""
        texts, at = texts_of(self._settings.without(lines)), 0
        while at < len(texts):
            rows = self._alike.rows(texts[i] for i in range(at, len(texts)))
            at += 1 if rows is None else len(rows.values)
            if rows is not None:
                yield rows
            elif row := self._row(texts[at - 1]):
                yield row

    def _row(self, text: str) -> Row:
        values = object_in(text)
        if values is None:
            self.num_odd += bool(text.strip())
            return {}
        return row_of(values, text, self._series)


class ObjectsAlike:
    """Reads successive JSON objects with the same names together, which gives what ``row_of`` gives of each."""

    def __init__(self, series: SeriesOfText) -> None:
        self._series = series
        self._next: tuple[str, tuple[tuple[str, ...], list[float]]] = "", ((), [])  # read, but not of the last rows

    def rows(self, texts: Iterable[str]) -> Rows | None:
        """Return the rows of the first of ``texts``, as far as they have the same names; None without any."""
        names: tuple[str, ...] = ()
        rows: list[list[float]] = []
        if not self._series.is_of_objects:
            return None  # losses may come in messages
        for text in texts:
            read = self._next[1] if text == self._next[0] else _names_and_numbers(text, names)
            if read is None or not read[0]:
                break
            if read[0] != names:
                if rows:
                    self._next = text, read
                    break
                names = read[0]
            rows.append(read[1])
        return Rows(names, rows) if rows else None


def _names_and_numbers(text: str, known: tuple[str, ...]) -> tuple[tuple[str, ...], list[float]] | None:
    """Return the names and numbers of the object that fills a line; None if there may be more to it.

    ``known`` are the names of the line before.
    """
    if not text.startswith("{"):
        return None
    try:
        values, end = _SCAN(text, 0)
        if end != len(text):
            return None
        names = tuple(values)
        if _NUMBERS.issuperset(map(type, values.values())) and (names == known or _are_short(names)):
            return names, list(map(float, values.values()))
    except (ValueError, RecursionError, OverflowError, StopIteration):
        return None
    row = row_of_object(values)
    return tuple(row), list(row.values())


def _are_short(names: Iterable[str]) -> bool:
    return all(len(name) <= MAX_NAME for name in names)


def row_of(values: dict, text: str, series: SeriesOfText) -> Row:
    """Return the numbers of an object, or of the message in it if losses come in messages, as loggers write them."""
    row = row_of_object(values)
    series.is_of_objects = series.is_of_objects or any(may_be_loss(name, None) for name in row)
    if series.is_of_objects or "loss" not in text.lower() or any("loss" in name.lower() for name in row):
        return row
    said = series.row(text)
    return said if any(may_be_loss(name, None) for name in said) else row
