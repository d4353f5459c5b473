"""Comma, tab or semicolon separated values: the reader of a table's lines, and how tables are recognised."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence

from orchestrator.logs.lines import MAX_NAME, Reader, Row, number_of, text_pairs, texts_of

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
