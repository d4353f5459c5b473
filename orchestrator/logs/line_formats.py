"""Readers of the formats of a log's lines, which turn lines into rows of named numbers as they arrive.

Growing and complete logs use the same readers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from orchestrator.logs.columns import MetricsConfig, plain_name
from orchestrator.logs.lines import MAX_NAME, Reader, Row, Rows, number_of, object_in, text_of, text_pairs, texts_of
from orchestrator.logs.listed_settings import ListedSettings
from orchestrator.logs.objects import JsonLines, ObjectsAlike, row_of
from orchestrator.logs.pattern import Pattern, compiled_pattern
from orchestrator.logs.series import SeriesOfText
from orchestrator.logs.settings import Settings
from orchestrator.logs.shapes import shapes_of
from orchestrator.logs.source_code import SourceCode


class Text(Reader):
    """Reads lines such as `step 10 | loss 3.21`, with the usual names and the names ``given`` by the user."""

    _MAX_BYTES = 16_000  # searched in a line; fewer in characters
    _NUM_UNFILTERED = 1000  # lines with numbers that are read whatever their words, for the names in the note
    _WORDS = (b"loss", b"nll", b"entropy", b"norm", b"step", b"iter", b"update", b"batch", b"epoch", b"trl:", b"tel:")
    _SHORT_STEPS = frozenset({"it", "i"})  # parts of many words, so searched for only if a log has them

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._words = {*self._WORDS, *map(_longest_word, given)}
        self._num_read = 0
        self._series = SeriesOfText()
        self._source = SourceCode()
        self._listed = ListedSettings(given)
        self._settings = Settings(given)

    def num_left_out(self) -> int:
        """Return the number of lines with a loss that are not part of the training series."""
        return self._series.num_left_out + self._listed.num_left_out + self._settings.num_left_out

    def question(self, loss: str) -> str | None:
        """Return what the user must be asked about the lines so far with the column ``loss``, or None."""
        return self._series.question(loss)

    def finish(self) -> Iterable[Row]:
        """Return the rows of lines that were held back."""
        held = self._listed.finish()
        return self._rows([*self._settings.without(held), *self._settings.finish()])

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        if self._num_read < self._NUM_UNFILTERED or self._source.is_near:
            lines = [line for line in lines if not self._source.holds(line)]
        yield from self._rows(self._without_settings(lines))

    def _without_settings(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        return self._settings.without(self._listed.without(lines))

    def _rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
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

    def parts(self, lines: Sequence[bytes]) -> Iterator[Row | Rows]:
        """Yield the rows of nonempty lines, successive lines of one form together."""
        if self._num_read < self._NUM_UNFILTERED or self._source.is_near:
            yield from self.rows(lines)
            return
        lines = _with_numbers(self._without_settings(lines))
        wanted = [line[: self._MAX_BYTES] for line in _with_words(lines, self._words)]
        at, shapes = 0, shapes_of(wanted)
        alike = Rows((), [])
        while at < len(wanted):
            rows = self._rows_alike(wanted, shapes, at)
            if rows is None:
                row = self._row(wanted[at])
                rows = Rows(tuple(row), [list(row.values())] if row else [])
            at += max(1, len(rows.values))
            if rows.values and rows.names == alike.names:
                alike.values.extend(rows.values)
            elif rows.values:
                yield alike
                alike = rows
        yield alike

    def _rows_alike(self, lines: Sequence[bytes], shapes: Sequence[bytes], at: int) -> Rows | None:
        """Return the rows of the lines from ``at`` that can be read together, or None."""
        return self._series.rows_alike(lines, shapes, at)

    def _row(self, line: bytes) -> Row:
        return self._series.row_of_line(line[: self._MAX_BYTES])


def _longest_word(name: str) -> bytes:
    """Return the longest word in every line with ``name``, in lower case, or nothing if ``name`` is not ASCII."""
    return max(re.split("[_/]", plain_name(name)), key=len).encode() if name.isascii() else b""


def _with_words(lines: Sequence[bytes], words: Collection[bytes]) -> Iterator[bytes]:
    """Yield lines with one of ``words``, since searching for names costs more than everything else."""
    lower = b"\n".join(lines).lower()
    lower_lines = lower.split(b"\n")
    if b"loss" in words and all([b"loss" in lower_line for lower_line in lower_lines]):
        yield from lines
        return
    words = [word for word in words if word in lower]
    for line, lower_line in zip(lines, lower_lines, strict=False):  # splitting nothing gives one empty line
        for word in words:
            if word in lower_line:
                yield line
                break


_DIGITS = b"0123456789"


def _with_numbers(lines: Sequence[bytes]) -> Sequence[bytes]:
    """Return the lines that may contain a number."""
    text = b"\n".join(lines)
    without_digits = text.translate(None, _DIGITS)
    if _may_name_number(text):
        return [x for x in lines if x.translate(None, _DIGITS) != x or _may_name_number(x)]
    if without_digits == text:
        return ()
    pairs = zip(lines, without_digits.split(b"\n"), strict=True)
    return [line for line, rest in pairs if len(line) != len(rest)]


def _may_name_number(text: bytes) -> bool:
    """Whether ``text`` may have a number without digits: nan or inf, but not the `INFO` of some logs."""
    lower = text.lower()
    return b"nan" in lower or lower.count(b"inf") > lower.count(b"info")


class Mixed(Text):
    """Reads lines of text with JSON objects among them."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        super().__init__(given)
        self._alike = ObjectsAlike(self._series)

    def _rows_alike(self, lines: Sequence[bytes], shapes: Sequence[bytes], at: int) -> Rows | None:
        if lines[at].startswith(b"{"):
            return self._alike.rows(lines[i].decode(errors="replace") for i in range(at, len(lines)))
        return super()._rows_alike(lines, shapes, at)

    def _row(self, line: bytes) -> Row:
        values = object_in(line.decode(errors="replace")) if b"{" in line else None
        return super()._row(line) if values is None else row_of(values, text_of(line), self._series)


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

    def parts(self, lines: Sequence[bytes]) -> Iterator[Row | Rows]:
        """Yield the rows of nonempty lines, those of successive lines of one form together."""
        yield from self.rows(lines) if self._chosen is None else self._chosen.parts(lines)

    def finish(self) -> Iterable[Row]:
        """Return the rows of lines that were held back."""
        rows = self._choose([self._first]) if self._chosen is None and self._first is not None else ()
        return [*rows, *(self._chosen or self._mixed).finish()]

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


# --- tables: comma, tab or semicolon separated values ----------------------------------------------

_DELIMITERS = ("\t", ",", ";")


class Csv(Reader):
    """Reads a header, and rows with the same number of cells; empty cells were not logged.

    If the ``delimiter`` is known, the first line is the header. If that line has only numbers, columns are named
    column_1, column_2 and so on. A later line that has only words is a new header if it has a loss, or if the present
    header has none: a banner may come first, and each of several files has a header. A quoted cell may span lines.
    """

    _MAX_HELD_LINES = 100  # of one row; if a quote is not closed by then, quotes no longer join lines
    _MAX_HELD = 100_000  # characters; the csv module rejects longer cells

    def __init__(self, is_loss: Callable[[str], bool], delimiter: str | None = None) -> None:
        self._is_loss = is_loss
        self._delimiter = delimiter
        self._header: list[str] | None = None
        self._held: list[str] = []
        self._size_held = 0
        self._quotes_join = True

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        for text in texts_of(lines):
            if self._held or '"' in text:
                yield from self._joined(text)
            elif row := self._row(text):
                yield row

    def finish(self) -> Iterator[Row]:
        """Yield the rows of lines that an unclosed quote held back, each on its own."""
        held, self._held = self._held, []
        self._quotes_join = False
        yield from filter(None, map(self._row, held))

    def _joined(self, text: str) -> Iterator[Row]:
        """Yield the row of the held lines and ``text``, once no quote is open."""
        is_odd = text.count('"') % 2 == 1
        if self._held:
            self._held.append(text)
            self._size_held += len(text)
            if is_odd:
                text, self._held = "\n".join(self._held), []
            elif len(self._held) > self._MAX_HELD_LINES or self._size_held > self._MAX_HELD:
                yield from self.finish()
                return
        elif is_odd and self._quotes_join and _ends_in_quotes(text, self._delimiter):
            self._held, self._size_held = [text], len(text)
        if not self._held and (row := self._row(text)):
            yield row

    def _row(self, text: str) -> Row:
        if text.startswith("#"):
            return {}
        if self._header is None:
            return self._first_row(text)
        cells = _cells(text, self._delimiter or ",")
        is_odd = len(cells) != len(self._header)
        if not is_odd and (row := self._numbers(self._header, cells)):
            return row
        if text.strip():
            is_header = all(number_of(cell) is None for cell in cells) and self._begins_again(text)
            self.num_odd += is_odd and not is_header
        return {}

    def _first_row(self, text: str) -> Row:
        header = header_of(text) if self._delimiter is None else (self._delimiter, _cells(text, self._delimiter))
        if header is None or not text.strip():
            return {}
        self._delimiter, cells = header
        self._header = names_of(cells)
        return self._numbers(self._header, cells) if all(number_of(cell) is not None for cell in cells) else {}

    def _begins_again(self, text: str) -> bool:
        """Whether ``text`` is a new header."""
        header = header_of(text)
        if header is None:
            return False
        names = names_of(header[1])
        if any(map(self._is_loss, self._header or ())) and not any(map(self._is_loss, names)):
            return False
        self._delimiter, self._header = header[0], names
        return True

    def _numbers(self, header: list[str], cells: list[str]) -> Row:
        if self._delimiter == ";":  # spreadsheets write it if the comma is the decimal point
            cells = [cell.replace(",", ".") for cell in cells]
        row: dict[str, float] = {}
        for name, cell in zip(header, cells, strict=True):
            if cell and name and name not in row and (number := number_of(cell)) is not None:
                row[name] = number
        return row


def _cells(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return []


def _ends_in_quotes(text: str, delimiter: str | None) -> bool:
    """Whether the last cell has an open quote, which continues in the next line."""
    if delimiter is None or text.startswith("#"):
        return False
    return "".join(_cells(f"{text}\n", delimiter)[-1:]).endswith("\n")


def names_of(cells: list[str]) -> list[str]:
    """Return column names from the cells of the first line; columns with an empty name are left out."""
    if all(number_of(cell) is not None for cell in cells):
        return [f"column_{i + 1}" for i in range(len(cells))]
    return [cell.strip() if len(cell) <= MAX_NAME else "" for cell in cells]


def header_of(text: str) -> tuple[str, list[str]] | None:
    """Return delimiter and cells of a header (at least two words, a word and empty cells, or only numbers), or None."""

    def num_words(cells: list[str]) -> int:
        return sum(bool(cell.strip()) and number_of(cell) is None for cell in cells)

    split = {delimiter: cells for delimiter in _DELIMITERS if len(cells := _cells(text, delimiter)) > 1}
    if not split:
        return None
    delimiter = max(split, key=lambda d: (num_words(split[d]), len(split[d])))
    cells = split[delimiter]
    num, num_empty = num_words(cells), sum(not cell.strip() for cell in cells)
    if num_empty == len(cells) or max(map(len, cells)) > MAX_NAME:
        return None
    return (delimiter, cells) if num >= 2 or num + num_empty in (0, len(cells)) else None


def delimiter_of(lines: Sequence[str]) -> str | None:
    """Return the delimiter of a table that starts with ``lines``, or None for other text."""
    if not lines:
        return None
    for delimiter in _DELIMITERS:
        cells = [_cells(line, delimiter) for line in lines[:2]]
        if len(cells[0]) < 2 or len(cells[0]) != len(cells[-1]):
            continue
        if all(next(text_pairs(line), None) for line in lines[:2]):
            continue
        if len(cells) == 1 or all(number_of(cell) is not None or not cell.strip() for cell in cells[1][:1]):
            return delimiter
        if any(number_of(cell) is not None for cell in cells[1]):
            return delimiter
    return None
