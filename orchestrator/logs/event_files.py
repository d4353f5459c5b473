"""TensorBoard event files: the frames of records, and the scalars in them, as they arrive."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

MAX_RECORD_BYTES = 64 * 1024**2  # a longer record counts as damage if the file's size is unknown
_HEAD = 64  # bytes that identify an event file
_FRAME = struct.Struct("<QI")  # length of a record and its checksum; then the record and another checksum
_CHECKSUM_SIZE = 4


class Events:
    """Rows of scalars from event files, one row for each step.

    A late scalar, after a later step has begun, gets its own row. A name that occurs twice in a step starts a new row.
    """

    def __init__(self, max_bytes: int = MAX_RECORD_BYTES) -> None:
        self.damage = ""
        self.num_odd = 0
        self._max_bytes = max_bytes
        self._is_lost = False
        self._buffer = bytearray()
        self._step: int | None = None
        self._row: dict[str, float] = {}

    def rows(self, content: bytes) -> Iterator[dict[str, float]]:
        """Yield the rows of steps that ``content`` completes."""
        if self._is_lost:
            return
        self._buffer += content
        used = 0
        for begin, end in event_frames(self._buffer):
            if end > len(self._buffer):
                if end - begin > self._max_bytes:
                    self.damage, self._is_lost = "the file ends in bytes that are not an event", True
                break
            used = end
            try:
                step, scalars = _scalars(bytes(self._buffer[begin:end]))
            except ValueError:
                self.damage = "some events are damaged"
                self.num_odd += 1
                continue
            if scalars:
                yield from self._take(step, scalars)
        del self._buffer[:used]
        if self._is_lost:
            self.num_odd += 1
            self._buffer.clear()

    def finish(self) -> Iterator[dict[str, float]]:
        """Yield the row of the last step, without a truncated record."""
        if self._buffer:
            self.num_odd += 1
            self._buffer.clear()
        yield from self.release()

    def release(self) -> Iterator[dict[str, float]]:
        """Yield the row of the last step, of which more scalars may come."""
        row, self._row, self._step = self._row, {}, None
        if row:
            yield row

    def _take(self, step: int, scalars: list[tuple[str, float]]) -> Iterator[dict[str, float]]:
        if self._step is None or step > self._step:
            if self._row:
                yield self._row
            self._step, self._row = step, {"step": float(step)}
        if step < self._step:
            yield {"step": float(step)} | {name: value for name, value in scalars if name != "step"}
            return
        for name, value in scalars:
            if name not in self._row:
                self._row[name] = value
            elif name != "step":
                yield self._row
                self._row = {"step": float(step), name: value}


def begins_as_events(content: bytes) -> bool | None:
    """Whether ``content`` starts like an event file; None while undecided."""
    if not _may_become_event_file(content):
        return False
    return is_event_file(content) or (None if len(content) < _HEAD else False)


def is_event_file(head: bytes) -> bool:
    """Whether the first record is the one with TensorBoard's version."""
    return len(head) > _FRAME.size and b"brain.Event:" in head[:_HEAD]


def _may_become_event_file(head: bytes) -> bool:
    """Whether ``head`` starts with the length of a short record; text does not, so it is not delayed."""
    return not head[2:8].strip(b"\0")


def event_frames(content: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield start and end of the frame of each record; the last may end beyond ``content``."""
    begin = 0
    while begin + _FRAME.size <= len(content):
        length, _ = _FRAME.unpack_from(content, begin)
        end = begin + _FRAME.size + length + _CHECKSUM_SIZE
        yield begin, end
        begin = end


def _scalars(frame: bytes) -> tuple[int, list[tuple[str, float]]]:
    """Return step, names and numbers of the record in ``frame``. Raises ValueError if it is damaged."""
    from tensorboardX.proto.event_pb2 import Event  # installed with Ray

    length, _ = _FRAME.unpack_from(frame)
    try:
        event = Event.FromString(frame[_FRAME.size : _FRAME.size + length])
    except Exception as error:  # the error type depends on the version of the protobuf runtime
        raise ValueError(str(error)) from None
    scalars = ((value.tag, _scalar(value)) for value in event.summary.value)
    return event.step, [(tag, number) for tag, number in scalars if number is not None]


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind != "tensor":
        return None
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val):
        if len(numbers) == 1:
            return float(numbers[0])
    content = {1: "<f", 2: "<d"}.get(tensor.dtype)
    if content and len(tensor.tensor_content) == struct.calcsize(content):
        return struct.unpack(content, tensor.tensor_content)[0]
    return None
