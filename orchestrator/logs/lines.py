"""Bytes as they arrive -> lines, for the reader of a format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestrator.logs.named_numbers import without_colours

NUM_LAST_LINES = 30
LONGEST_LINE = 1024**2  # bytes; longer lines are truncated
_LAST_BYTES = 8000  # of each of the last lines, including colour codes
_MARK = b"\xef\xbb\xbf"  # UTF-8 byte order mark at the start of a file

Row = Mapping[str, float]


class Reader(ABC):
    """Turns lines into rows. ``num_odd`` counts lines that do not fit a strict format."""

    num_odd = 0

    @abstractmethod
    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Rows of nonempty lines."""

    def finish(self) -> Iterable[Row]:
        """Rows of the lines held back."""
        return ()

    def left_out(self) -> int:
        """Lines with a loss that are not of the training series."""
        return 0

    def question(self, loss: str) -> str | None:
        """What must be asked about the lines so far that have the ``loss``, if anything."""
        return None


class Lines:
    """Splits incoming bytes at newlines and the carriage returns of progress bars, and passes lines to a reader.

    Lines are truncated to ``longest`` bytes: no line of a log is that long.
    """

    def __init__(self, reader: Reader, longest: int = LONGEST_LINE) -> None:
        self.num_lines = 0
        self.last: deque[bytes] = deque(maxlen=NUM_LAST_LINES)
        self._reader = reader
        self._longest = longest
        self._rest = bytearray()

    def rows(self, content: bytes) -> Iterable[Row]:
        """Rows of the lines that are complete with ``content``."""
        lines = content.replace(b"\r", b"\n").split(b"\n")
        if len(lines) > 1:
            lines[0] = bytes(self._rest + lines[0])
            self._rest.clear()
        self._rest += lines.pop()[: self._longest - len(self._rest)]
        return self._read([line[: self._longest] for line in lines if line])

    def finish(self) -> Iterator[Row]:
        """Rows of the unterminated last line, and of lines that the reader held back."""
        yield from self.rows(b"\n")
        yield from self._reader.finish()

    def _read(self, lines: list[bytes]) -> Iterable[Row]:
        if lines and not self.num_lines:
            lines[0] = lines[0].removeprefix(_MARK)
        self.num_lines += len(lines)
        self.last.extend(line[:_LAST_BYTES] for line in lines[-NUM_LAST_LINES:])
        return self._reader.rows(lines)


def text_of(line: bytes) -> str:
    """A line as text without colour codes."""
    return without_colours(line.decode(errors="replace"))


def texts_of(lines: Sequence[bytes]) -> list[str]:
    """Lines as text without colour codes; decoding many together is faster."""
    return text_of(b"\n".join(lines)).split("\n") if lines else []
