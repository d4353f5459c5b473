"""Files of Weights & Biases, run-ID.wandb: the history of a run as lines of JSON, as it is written.

They are in LevelDB's format of logs, blocks with pieces of records, and the records in that of protocol buffers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

SUFFIX = ".wandb"
_START, _START_BYTES = b":W&B", 7
_BLOCK = 32 * 1024
_PIECE = struct.Struct("<IHB")  # checksum, size, and which piece of its record it is
_PADDING, _WHOLE, _FIRST, _LAST = 0, 1, 2, 4
_HISTORY, _ITEM, _STEP = 2, 1, 2  # of the fields: the history in a record, what was logged in it, and at which step
_KEY, _NESTED_KEY, _JSON = 1, 2, 16  # of what was logged
_HEAD = 1024**2  # bytes that show whether losses were logged


def is_wandb_file(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is one of Weights & Biases."""
    return head.startswith(_START)


class WandbLines:
    """Turns the content of one file, in parts of any size, into a line of JSON for each step that was logged."""

    def __init__(self) -> None:
        self._rest, self._at = bytearray(), 0  # what is not used yet, and where in the file it begins
        self._record = bytearray()

    def feed(self, content: bytes) -> bytes:
        """Return the lines that ``content`` completes. A damaged record has none."""
        self._rest += content
        used, lines = 0, list[bytes]()
        if not self._at:
            if len(self._rest) < _START_BYTES:
                return b""
            used = self._at = _START_BYTES
        while (piece := self._piece(used)) is not None:
            kind, begin, end = piece
            self._at, used = self._at + end - used, end
            if kind in (_WHOLE, _FIRST):
                self._record.clear()
            self._record += self._rest[begin:end] if kind != _PADDING else b""
            if kind in (_WHOLE, _LAST):
                lines += _lines_of(bytes(self._record))
        del self._rest[:used]
        return b"".join(lines)

    def _piece(self, used: int) -> tuple[int, int, int] | None:
        """Return kind of the piece after ``used`` bytes, and begin and end of its content; None if it is cut off."""
        left_in_block, left = _BLOCK - self._at % _BLOCK, len(self._rest) - used
        kind, begin, end = _PADDING, used, used + left_in_block
        if left_in_block >= _PIECE.size:
            if left < _PIECE.size:
                return None
            _, size, kind = _PIECE.unpack_from(self._rest, used)
            begin += _PIECE.size
            if kind != _PADDING and _PIECE.size + size <= left_in_block:
                end = begin + size
            else:
                kind = _PADDING
        return (kind, begin, end) if end - used <= left else None


def _lines_of(record: bytes) -> Iterator[bytes]:
    """Yield a line for the history in a record, if it has one."""
    try:
        for number, history in _fields(record):
            if number == _HISTORY and (values := dict(_values(history))):
                pairs = (f"{json.dumps(name)}: {value}" for name, value in values.items())
                yield f"{{{', '.join(pairs)}}}\n".encode()
    except (ValueError, IndexError):
        return


def _values(history: bytes) -> Iterator[tuple[str, str]]:
    """Yield names and values, as JSON, of what was logged at one step."""
    for number, content in _fields(history):
        if number == _STEP:
            yield from (("_step", str(int.from_bytes(step, "little"))) for _, step in _fields(content))
        elif number == _ITEM:
            fields = list(_fields(content))
            key = [part.decode() for number, part in fields if number in (_KEY, _NESTED_KEY) and part]
            values = (value.decode().replace("\n", " ") for number, value in fields if number == _JSON)
            yield from (("/".join(key), value) for value in values)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a message; the content of a number is its bytes from low to high.

    Raises ValueError or IndexError for another message.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value.to_bytes(10, "little")
            continue
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            size, at = _varint(message, at)
        if size > len(message) - at or kind not in (1, 2, 5):
            raise ValueError("not a message")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of as many bytes as it needs, and where it ends."""
    value = 0
    for place in range(10):
        byte = message[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & 2**64 - 1, at + place + 1
    raise ValueError("not a number")


def without_doubles(paths: Iterable[Path]) -> list[Path]:
    """Leave out what a run printed if its file has losses, and its file if that has none."""
    paths = list(paths)
    files = {path: _has_losses(path) for path in paths if path.suffix == SUFFIX}
    runs = {folder for path, has in files.items() if has for folder in (path.parent, path.parent.resolve())}
    # Links to logs of the latest run are beside the runs, and a run has links to logs elsewhere.
    return [
        path for path in paths if files.get(path, runs.isdisjoint((path.parent.parent, path.resolve().parent.parent)))
    ]


def _has_losses(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return is_wandb_file(head) and b"loss" in WandbLines().feed(head)
