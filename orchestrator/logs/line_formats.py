"""What lines of a training script, or records of an event file, say: rows of named numbers, as they come."""

from __future__ import annotations

import csv
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from orchestrator.logs.config import MetricsConfig
from orchestrator.logs.files import (
    delimiter_of,
    event_frames,
    event_scalars,
    flat_pairs,
    is_event_file,
    number_of,
    plain_name,
    text_pairs,
    without_colours,
)

LONGEST_RECORD = 64 * 1024**2  # of an event file; beyond it is damage
NUM_LAST_LINES = 30
_LONGEST_LINE = 64 * 1024
_LAST_BYTES = 8000  # of each of the last lines, with colours
_LONGEST_NAME = 250  # characters in a header
_HEAD = 64  # bytes that tell an event file
_MARK = b"\xef\xbb\xbf"  # of UTF-8, where a file begins

Row = Mapping[str, float]


class Reader(ABC):
    """What lines say; this one reads each by itself and holds nothing back."""

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Rows of lines that are not empty."""
        for line in lines:
            yield from self.read(line)

    @abstractmethod
    def read(self, line: bytes) -> Iterable[Row]:
        """Rows of one line."""

    def finish(self) -> Iterable[Row]:
        """Rows of what was held back."""
        return ()


class Lines:
    """Lines of what is fed, ended by newlines or the carriage returns of progress bars, for a reader."""

    def __init__(self, reader: Reader) -> None:
        self.num_lines = 0
        self.last: deque[bytes] = deque(maxlen=NUM_LAST_LINES)
        self._reader = reader
        self._rest = bytearray()

    def rows(self, content: bytes) -> Iterable[Row]:
        """Rows of the lines that ``content`` ends."""
        lines = content.replace(b"\r", b"\n").split(b"\n")
        if len(lines) > 1:
            lines[0] = bytes(self._rest + lines[0])
            self._rest.clear()
        self._rest += lines.pop()
        del self._rest[_LONGEST_LINE:]
        return self._read([line[:_LONGEST_LINE] for line in lines if line])

    def finish(self) -> Iterator[Row]:
        """Rows of the line that nothing ended, and of lines that the reader held back."""
        yield from self.rows(b"\n")
        yield from self._reader.finish()

    def _read(self, lines: list[bytes]) -> Iterable[Row]:
        if lines and not self.num_lines:
            lines[0] = lines[0].removeprefix(_MARK)
        self.num_lines += len(lines)
        self.last.extend(line[:_LAST_BYTES] for line in lines[-NUM_LAST_LINES:])
        return self._reader.rows(lines)


def _row(pairs: Iterable[tuple[str, float]]) -> Sequence[Row]:
    """The row of ``pairs``, if there are any; of a name that comes twice the first counts."""
    row: dict[str, float] = {}
    for name, value in pairs:
        row.setdefault(name, value)
    return (row,) if row else ()


class Text(Reader):
    """Lines such as `step 10 | loss 3.21`."""

    _LONGEST = 16_000  # bytes; fewer characters are searched
    _NUM_READ = 1000  # lines with numbers that are read whatever words they have, for the names in the note
    _WORDS = (b"loss", b"nll", b"entropy", b"norm", b"step", b"iter", b"update", b"batch")

    def __init__(self, metrics: MetricsConfig) -> None:
        named = [name for name in (metrics.step, metrics.loss, metrics.grad_norm) if name is not None]
        self._words = (*self._WORDS, *map(_longest_word, named))
        self._num_read = 0

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Rows of lines that are not empty."""
        lines = _with_numbers(lines)
        first = lines[: self._NUM_READ - self._num_read]
        self._num_read += len(first)
        return super().rows([*first, *_with_words(lines[len(first) :], self._words)])

    def read(self, line: bytes) -> Iterable[Row]:
        """Rows of one line."""
        return _row(text_pairs(without_colours(line[: self._LONGEST].decode(errors="replace"))))


def _longest_word(name: str) -> bytes:
    """What every line with ``name`` has in it, in lower case. Only of ASCII can that be told in bytes."""
    return max(re.split("[_/]", plain_name(name)), key=len).encode() if name.isascii() else b""


def _with_words(lines: Sequence[bytes], words: Sequence[bytes]) -> Iterator[bytes]:
    """Lines with one of ``words`` at least: a search for names takes longer than all the rest."""
    lower = b"\n".join(lines).lower()
    words = [word for word in words if word in lower]
    for line, lower_line in zip(lines, lower.split(b"\n"), strict=False):  # of no lines there is an empty one
        for word in words:
            if word in lower_line:
                yield line
                break


_DIGITS = b"0123456789"


def _with_numbers(lines: Sequence[bytes]) -> Sequence[bytes]:
    """The few of many lines that are worth more than a glance."""
    text = b"\n".join(lines)
    may_name_number = _may_name_number(text)
    if not may_name_number and text.translate(None, _DIGITS) == text:
        return ()
    return [x for x in lines if x.translate(None, _DIGITS) != x or (may_name_number and _may_name_number(x))]


def _may_name_number(text: bytes) -> bool:
    """Whether there may be a number without digits: not in `INFO`, which is in every line of some logs."""
    lower = text.lower()
    return b"nan" in lower or lower.count(b"inf") > lower.count(b"info")


class JsonLines(Reader):
    """A JSON object a line; other lines say nothing."""

    def read(self, line: bytes) -> Iterable[Row]:
        """Rows of one line."""
        return _row(flat_pairs(_json_object(line) or {}))


def _json_object(line: bytes) -> dict | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class Pattern(Reader):
    """Lines in which a regular expression is found; its groups are the columns."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def read(self, line: bytes) -> Iterable[Row]:
        """Rows of one line."""
        match = self._pattern.search(without_colours(line.decode(errors="replace")))
        found = match.groupdict() if match else {}
        numbers = ((name, number_of(text)) for name, text in found.items() if text is not None)
        return _row((name, value) for name, value in numbers if value is not None)


class Csv(Reader):
    """A header, and rows of as many cells; empty cells were not logged.

    A later line of words alone is a header again, where it has a loss or the one so far has none: a
    banner may come first, and of several files each has its own.
    """

    def __init__(self, is_loss: Callable[[str], bool]) -> None:
        self._is_loss = is_loss
        self._delimiter = ","
        self._header: list[str] | None = None

    def read(self, line: bytes) -> Iterable[Row]:
        """Rows of one line."""
        text = without_colours(line.decode(errors="replace"))
        if text.startswith("#"):
            return ()
        if self._header is None:
            self._begin(text)
            return ()
        cells = _cells(text, self._delimiter)
        if len(cells) == len(self._header):
            if self._delimiter == ";":  # what a spreadsheet writes where the comma is the decimal point
                cells = [cell.replace(",", ".") for cell in cells]
            numbers = ((name, number_of(cell)) for name, cell in zip(self._header, cells, strict=True) if name)
            if row := _row((name, value) for name, value in numbers if value is not None):
                return row
        if all(number_of(cell) is None for cell in cells):
            self._begin(text)
        return ()

    def _begin(self, text: str) -> None:
        found = _header(text)
        if found is None:
            return
        is_better = any(map(self._is_loss, found[1])) or not any(map(self._is_loss, self._header or ()))
        if is_better:
            self._delimiter, self._header = found


def _cells(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return []


def _header(text: str) -> tuple[str, list[str]] | None:
    """Delimiter and names, if two cells or more have words in them."""

    def num_words(cells: list[str]) -> int:
        return sum(bool(cell.strip()) and number_of(cell) is None for cell in cells)

    found = {delimiter: _cells(text, delimiter) for delimiter in "\t,;"}
    delimiter = max(found, key=lambda d: num_words(found[d]))
    if num_words(found[delimiter]) < 2 or max(map(len, found[delimiter])) > _LONGEST_NAME:
        return None
    return delimiter, [cell.strip() for cell in found[delimiter]]


class Mixed(Text):
    """Lines of text, among them JSON objects."""

    def read(self, line: bytes) -> Iterable[Row]:
        """Rows of one line."""
        found = _json_object(line)
        return super().read(line) if found is None else _row(flat_pairs(found))


class Auto(Reader):
    """A table where the first two lines are a header with a loss and numbers; else each line as it looks."""

    def __init__(self, metrics: MetricsConfig, is_loss: Callable[[str], bool]) -> None:
        self._is_loss = is_loss
        self._mixed = Mixed(metrics)
        self._told: Reader | None = None
        self._first: bytes | None = None

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Rows of lines that are not empty."""
        for i, line in enumerate(lines):
            if self._told is not None:
                yield from self._told.rows(lines[i:])
                return
            yield from self.read(line)

    def read(self, line: bytes) -> Iterable[Row]:
        """Rows of one line."""
        if line.startswith(b"#") or not line.strip():
            return self._mixed.rows([line])
        if self._first is None and self._may_be_header(line):
            self._first = line
            return ()
        return self._tell([line] if self._first is None else [self._first, line])

    def finish(self) -> Iterable[Row]:
        """Rows of what was held back."""
        return () if self._told is not None or self._first is None else self._tell([self._first])

    def _tell(self, lines: list[bytes]) -> Iterable[Row]:
        texts = [without_colours(line.decode(errors="replace")) for line in lines]
        is_table = len(lines) > 1 and delimiter_of(texts) is not None
        self._told = Csv(self._is_loss) if is_table else self._mixed
        return self._told.rows(lines)

    def _may_be_header(self, line: bytes) -> bool:
        """Whether to wait for a second line; never after one that has a loss already."""
        text = without_colours(line.decode(errors="replace"))
        if line.lstrip().startswith(b"{") or any(self._is_loss(name) for name, _ in text_pairs(text)):
            return False
        found = _header(text)
        return found is not None and any(map(self._is_loss, found[1]))


# --- TensorBoard -----------------------------------------------------------------------------------


class Events:
    """Scalars of event files, those of a step in one row.

    What comes late, after a later step has begun, is a row of its own.
    """

    def __init__(self) -> None:
        self.damage = ""
        self._is_lost = False
        self._buffer = bytearray()
        self._step: int | None = None
        self._row: dict[str, float] = {}

    def rows(self, content: bytes) -> Iterator[Row]:
        """Rows of the steps that ``content`` ends."""
        if self._is_lost:
            return
        self._buffer += content
        used = 0
        for begin, end in event_frames(self._buffer):
            if end > len(self._buffer):
                if end - begin > LONGEST_RECORD:
                    self.damage, self._is_lost = "events end in what is none", True
                break
            used = end
            try:
                step, scalars = event_scalars(bytes(self._buffer[begin:end]))
            except ValueError:
                self.damage = "some events are damaged"
                continue
            if scalars:
                yield from self._take(step, scalars)
        del self._buffer[:used]
        if self._is_lost:
            self._buffer.clear()

    def finish(self) -> Iterator[Row]:
        """The row of the last step."""
        row, self._row, self._step = self._row, {}, None
        if row:
            yield row

    def _take(self, step: int, scalars: list[tuple[str, float]]) -> Iterator[Row]:
        if self._step is None or step > self._step:
            if self._row:
                yield self._row
            self._step, self._row = step, {"step": float(step)}
        row = self._row if step == self._step else {"step": float(step)}
        for name, value in scalars:
            row.setdefault(name, value)
        if row is not self._row:
            yield row


def begins_as_events(content: bytes) -> bool | None:
    """Whether an event file begins like that; None while it cannot be told."""
    if not _may_become_event_file(content):
        return False
    return is_event_file(content) or (None if len(content) < _HEAD else False)


def _may_become_event_file(head: bytes) -> bool:
    """Whether it begins with the length of a short record; so nothing that is text is waited for."""
    return not head[2:8].strip(b"\0")
