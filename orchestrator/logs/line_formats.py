"""Lines of a log -> rows of named numbers, as they arrive. One reader per format; tables are elsewhere.

Growing and complete logs use the same readers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.columns import MetricsConfig, find_name, plain_name
from orchestrator.logs.lines import Reader, Row, number_of, text_of, text_pairs, texts_of
from orchestrator.logs.separated import Csv, delimiter_of, header_of, names_of
from orchestrator.logs.series import SeriesOfText, row_of_json


class Text(Reader):
    """Lines such as `step 10 | loss 3.21`. Searches for names given by the user besides the usual ones."""

    _LONGEST = 16_000  # bytes searched in a line; fewer in characters
    _NUM_READ = 1000  # lines with numbers to read without filtering by words, for the names in the note
    _WORDS = (b"loss", b"nll", b"entropy", b"norm", b"step", b"iter", b"update", b"batch", b"epoch")
    _SHORT_STEPS = frozenset({"it", "i"})  # part of most words; searched for only if a log has them

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._words = {*self._WORDS, *map(_longest_word, named)}
        self._num_read = 0
        self._series = SeriesOfText()

    def left_out(self) -> int:
        """Lines with a loss that are not of the training series."""
        return self._series.num_left_out

    def question(self, loss: str) -> str | None:
        """What must be asked about the lines so far that have the ``loss``, if anything."""
        return self._series.question(loss)

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Rows of nonempty lines."""
        lines = _with_numbers(lines)
        first = lines[: self._NUM_READ - self._num_read]
        self._num_read += len(first)
        for line in first:
            if row := self._row(line):
                self._words.update(name.encode() for name in self._SHORT_STEPS & row.keys())
                yield row
        for line in _with_words(lines[len(first) :], self._words):
            if row := self._row(line):
                yield row

    def _row(self, line: bytes) -> Row:
        return self._series.row(text_of(line[: self._LONGEST]))


def _longest_word(name: str) -> bytes:
    """The longest word in every line with ``name``, in lower case. Only for ASCII can bytes decide this."""
    return max(re.split("[_/]", plain_name(name)), key=len).encode() if name.isascii() else b""


def _with_words(lines: Sequence[bytes], words: Collection[bytes]) -> Iterator[bytes]:
    """Lines with at least one of ``words``: searching for names costs more than everything else."""
    lower = b"\n".join(lines).lower()
    words = [word for word in words if word in lower]
    for line, lower_line in zip(lines, lower.split(b"\n"), strict=False):  # splitting no lines gives one empty line
        for word in words:
            if word in lower_line:
                yield line
                break


_DIGITS = b"0123456789"


def _with_numbers(lines: Sequence[bytes]) -> Sequence[bytes]:
    """The few of many lines that may contain a number."""
    text = b"\n".join(lines)
    may_name_number = _may_name_number(text)
    if not may_name_number and text.translate(None, _DIGITS) == text:
        return ()
    return [x for x in lines if x.translate(None, _DIGITS) != x or (may_name_number and _may_name_number(x))]


def _may_name_number(text: bytes) -> bool:
    """Whether there may be a number without digits (nan, inf); not `INFO`, which is in every line of some logs."""
    lower = text.lower()
    return b"nan" in lower or lower.count(b"inf") > lower.count(b"info")


class JsonLines(Reader):
    """One JSON object per line; other lines are ignored."""

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Rows of nonempty lines."""
        for text in texts_of(lines):
            found = _json_object(text)
            if found is None:
                self.num_odd += bool(text.strip())
            elif row := row_of_json(found):
                yield row


def _json_object(text: str) -> dict | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class Mixed(Text):
    """Lines of text with JSON objects among them."""

    def _row(self, line: bytes) -> Row:
        found = _json_object(line.decode(errors="replace")) if b"{" in line else None
        return super()._row(line) if found is None else row_of_json(found)


class Pattern(Reader):
    """Lines that match a regular expression, whose groups are the columns."""

    _LONGEST = 64 * 1024  # bytes searched in a line: an expression may be slow

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Rows of nonempty lines."""
        for line in lines:
            match = self._pattern.search(text_of(line[: self._LONGEST]))
            found = match.groupdict() if match else {}
            numbers = {name: number_of(text) for name, text in found.items() if text is not None}
            if row := {name: value for name, value in numbers.items() if value is not None}:
                yield row


class Auto(Reader):
    """A table if the first two lines are a header with a loss and numbers; otherwise each line by its form."""

    def __init__(self, is_loss: Callable[[str], bool], named: Iterable[str] = ()) -> None:
        self._is_loss = is_loss
        self._mixed = Mixed(named)
        self._told: Reader | None = None
        self._first: bytes | None = None

    def left_out(self) -> int:
        """Lines with a loss that are not of the training series."""
        return self._mixed.left_out()

    def question(self, loss: str) -> str | None:
        """What must be asked about the lines so far that have the ``loss``, if anything."""
        return self._mixed.question(loss)

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Rows of nonempty lines."""
        for i, line in enumerate(lines):
            if self._told is not None:
                yield from self._told.rows(lines[i:])
                return
            yield from self._read(line)

    def finish(self) -> Iterable[Row]:
        """Rows of the lines held back."""
        if self._told is not None:
            return self._told.finish()
        return () if self._first is None else self._tell([self._first])

    def _read(self, line: bytes) -> Iterable[Row]:
        if line.startswith(b"#") or not line.strip():
            return self._mixed.rows([line])
        if self._first is None and self._may_be_header(line):
            self._first = line
            return ()
        return self._tell([line] if self._first is None else [self._first, line])

    def _tell(self, lines: list[bytes]) -> Iterable[Row]:
        delimiter = delimiter_of(texts_of(lines)) if len(lines) > 1 else None
        self._told = self._mixed if delimiter is None else Csv(self._is_loss, delimiter)
        return self._told.rows(lines)

    def _may_be_header(self, line: bytes) -> bool:
        """Whether to wait for a second line; never after a line with a loss."""
        text = text_of(line)
        if line.lstrip().startswith(b"{") or any(self._is_loss(pair.name) for pair in text_pairs(text)):
            return False
        found = header_of(text)
        return found is not None and any(map(self._is_loss, names_of(found[1])))


def told_reader(metrics: MetricsConfig, is_loss: Callable[[str], bool], named: Iterable[str]) -> Reader:
    """The reader of the pattern or the format of ``metrics``; ``named`` are names that the user gave."""
    if metrics.pattern is not None:
        return Pattern(compiled(metrics))
    if metrics.format == "json":
        return JsonLines()
    if metrics.format == "csv":
        return Csv(is_loss)
    return Text(named) if metrics.format == "text" else Auto(is_loss, named)


def compiled(metrics: MetricsConfig) -> re.Pattern[str]:
    """The pattern of ``metrics``. Raises InputError for no regular expression, or one without a group of the loss."""
    remedy = r"write e.g. 'step (?P<step>\d+) loss (?P<loss>\S+)'"
    try:
        pattern = re.compile(metrics.pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        problem = Problem("", "metrics.pattern", f"is no regular expression: {error}", remedy)
        raise InputError(problem) from None
    wanted = metrics.loss or "loss"
    if find_name(pattern.groupindex, wanted) is None:
        raise InputError(Problem("", "metrics.pattern", f"has no group that is named {wanted}", remedy))
    return pattern
