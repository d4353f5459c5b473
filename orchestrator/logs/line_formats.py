"""Readers of the formats of a log's lines, which turn lines into rows of named numbers as they arrive.

Growing and complete logs use the same readers; `separated` reads tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.columns import MetricsConfig, find_name, plain_name
from orchestrator.logs.lines import Reader, Row, number_of, text_of, text_pairs, texts_of
from orchestrator.logs.separated import Csv, delimiter_of, header_of, names_of
from orchestrator.logs.series import SeriesOfText, row_of_object


class Text(Reader):
    """Reads lines such as `step 10 | loss 3.21`, with the usual names and the names ``given`` by the user."""

    _MAX_BYTES = 16_000  # searched in a line; fewer in characters
    _NUM_UNFILTERED = 1000  # lines with numbers that are read whatever their words, for the names in the note
    _WORDS = (b"loss", b"nll", b"entropy", b"norm", b"step", b"iter", b"update", b"batch", b"epoch")
    _SHORT_STEPS = frozenset({"it", "i"})  # parts of many words, so searched for only if a log has them

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._words = {*self._WORDS, *map(_longest_word, given)}
        self._num_read = 0
        self._series = SeriesOfText()

    def num_left_out(self) -> int:
        """Return the number of lines with a loss that are not part of the training series."""
        return self._series.num_left_out

    def question(self, loss: str) -> str | None:
        """Return what the user must be asked about the lines so far with the column ``loss``, or None."""
        return self._series.question(loss)

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        lines = _with_numbers(lines)
        first = lines[: self._NUM_UNFILTERED - self._num_read]
        self._num_read += len(first)
        for line in first:
            if row := self._row(line):
                self._words.update(name.encode() for name in self._SHORT_STEPS & row.keys())
                yield row
        for line in _with_words(lines[len(first) :], self._words):
            if row := self._row(line):
                yield row

    def _row(self, line: bytes) -> Row:
        return self._series.row(text_of(line[: self._MAX_BYTES]))


def _longest_word(name: str) -> bytes:
    """Return the longest word in every line with ``name``, in lower case, or nothing if ``name`` is not ASCII."""
    return max(re.split("[_/]", plain_name(name)), key=len).encode() if name.isascii() else b""


def _with_words(lines: Sequence[bytes], words: Collection[bytes]) -> Iterator[bytes]:
    """Yield lines with one of ``words``, since searching for names costs more than everything else."""
    lower = b"\n".join(lines).lower()
    words = [word for word in words if word in lower]
    for line, lower_line in zip(lines, lower.split(b"\n"), strict=False):  # splitting nothing gives one empty line
        for word in words:
            if word in lower_line:
                yield line
                break


_DIGITS = b"0123456789"


def _with_numbers(lines: Sequence[bytes]) -> Sequence[bytes]:
    """Return the lines that may contain a number."""
    text = b"\n".join(lines)
    may_name_number = _may_name_number(text)
    if not may_name_number and text.translate(None, _DIGITS) == text:
        return ()
    return [x for x in lines if x.translate(None, _DIGITS) != x or (may_name_number and _may_name_number(x))]


def _may_name_number(text: bytes) -> bool:
    """Whether ``text`` may have a number without digits: nan or inf, but not the `INFO` of some logs."""
    lower = text.lower()
    return b"nan" in lower or lower.count(b"inf") > lower.count(b"info")


class JsonLines(Reader):
    """Reads one JSON object per line; other lines are ignored."""

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        for text in texts_of(lines):
            values = _json_object(text)
            if values is None:
                self.num_odd += bool(text.strip())
            elif row := row_of_object(values):
                yield row


def _json_object(text: str) -> dict | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class Mixed(Text):
    """Reads lines of text with JSON objects among them."""

    def _row(self, line: bytes) -> Row:
        values = _json_object(line.decode(errors="replace")) if b"{" in line else None
        return super()._row(line) if values is None else row_of_object(values)


class Pattern(Reader):
    """Reads lines that match a regular expression, whose groups are the columns."""

    _MAX_BYTES = 64 * 1024  # searched in a line: an expression may be slow

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        for line in lines:
            match = self._pattern.search(text_of(line[: self._MAX_BYTES]))
            groups = match.groupdict() if match else {}
            numbers = {name: number_of(text) for name, text in groups.items() if text is not None}
            if row := {name: value for name, value in numbers.items() if value is not None}:
                yield row


class Auto(Reader):
    """Reads a table if the first two lines are a header with a loss and numbers, else text and JSON."""

    def __init__(self, is_loss: Callable[[str], bool], given: Iterable[str] = ()) -> None:
        self._is_loss = is_loss
        self._mixed = Mixed(given)
        self._chosen: Reader | None = None
        self._first: bytes | None = None

    def num_left_out(self) -> int:
        """Return the number of lines with a loss that are not part of the training series."""
        return self._mixed.num_left_out()

    def question(self, loss: str) -> str | None:
        """Return what the user must be asked about the lines so far with the column ``loss``, or None."""
        return self._mixed.question(loss)

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        for i, line in enumerate(lines):
            if self._chosen is not None:
                yield from self._chosen.rows(lines[i:])
                return
            yield from self._read(line)

    def finish(self) -> Iterable[Row]:
        """Return the rows of lines that were held back."""
        if self._chosen is not None:
            return self._chosen.finish()
        return () if self._first is None else self._choose([self._first])

    def _read(self, line: bytes) -> Iterable[Row]:
        if line.startswith(b"#") or not line.strip():
            return self._mixed.rows([line])
        if self._first is None and self._may_be_header(line):
            self._first = line
            return ()
        return self._choose([line] if self._first is None else [self._first, line])

    def _choose(self, lines: list[bytes]) -> Iterable[Row]:
        delimiter = delimiter_of(texts_of(lines)) if len(lines) > 1 else None
        self._chosen = self._mixed if delimiter is None else Csv(self._is_loss, delimiter)
        return self._chosen.rows(lines)

    def _may_be_header(self, line: bytes) -> bool:
        """Whether to wait for a second line, which is never so after a line with a loss."""
        text = text_of(line)
        if line.lstrip().startswith(b"{") or any(self._is_loss(pair.name) for pair in text_pairs(text)):
            return False
        header = header_of(text)
        return header is not None and any(map(self._is_loss, names_of(header[1])))


def reader_of(metrics: MetricsConfig, is_loss: Callable[[str], bool], given: Iterable[str]) -> Reader:
    """Return the reader of the pattern or the format in ``metrics``; ``given`` are names that the user gave."""
    if metrics.pattern is not None:
        return Pattern(compiled_pattern(metrics))
    if metrics.format == "json":
        return JsonLines()
    if metrics.format == "csv":
        return Csv(is_loss)
    return Text(given) if metrics.format == "text" else Auto(is_loss, given)


def compiled_pattern(metrics: MetricsConfig) -> re.Pattern[str]:
    """Compile the pattern of ``metrics``. Raises InputError if it is invalid, or has no group for the loss."""
    remedy = r"write e.g. 'step (?P<step>\d+) loss (?P<loss>\S+)'"
    try:
        pattern = re.compile(metrics.pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        problem = Problem("", "metrics.pattern", f"is not a valid regular expression: {error}", remedy)
        raise InputError(problem) from None
    wanted = metrics.loss or "loss"
    if find_name(pattern.groupindex, wanted) is None:
        raise InputError(Problem("", "metrics.pattern", f"has no group called {wanted}", remedy))
    return pattern
