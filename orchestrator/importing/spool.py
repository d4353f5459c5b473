"""Temporary files for what an import reads: rows of tables and curves, which may be larger than the memory."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from orchestrator.base.files import storage_errors

_IN_MEMORY = 2**20  # bytes of a spool that need no file
_ROWS = 1000  # that are stored together
_T = TypeVar("_T")


class Spool:
    """Objects in a temporary file, which nobody else can open and which ends with the process."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, _close, self._file)

    def put(self, value: _T) -> Callable[[], _T]:
        """Store ``value``; return a function that reads it. Raises StorageError."""
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        with storage_errors(Path(tempfile.gettempdir())):
            start = self._file.seek(0, 2)
            size = self._file.write(content)
        return lambda: pickle.loads(self._read(start, size))

    def _read(self, start: int, size: int) -> bytes:
        with storage_errors(Path(tempfile.gettempdir())):
            self._file.seek(start)
            return self._file.read(size)


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # of a full disk, which has been said
        file.close()


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its place as file:line, and its values by column, as texts if the file has only texts."""

    where: str
    values: Mapping[str, Any]


class StoredRows:
    """Rows that can be read again and again, with few in memory."""

    def __init__(self) -> None:
        self._spool = Spool()
        self._stored: list[Callable[[], list[Row]]] = []
        self._last: list[Row] = []

    def append(self, row: Row) -> None:
        """Append a row. Raises StorageError."""
        self._last.append(row)
        if len(self._last) == _ROWS:
            self._stored.append(self._spool.put(self._last))
            self._last = []

    def extend(self, rows: Iterable[Row]) -> None:
        """Append rows. Raises StorageError."""
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return _ROWS * len(self._stored) + len(self._last)

    def __iter__(self) -> Iterator[Row]:
        for read in self._stored:
            yield from read()
        yield from self._last
