"""TensorBoard's event files as bytes: scalars, texts, pictures, and entries of the hparams plugin."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.base.space import is_number
from orchestrator.mirrors.tracker import Point

LARGEST = 3.4028234663852886e38  # event files have numbers of 32 bits
SUCCESS, FAILURE, RUNNING = 1, 2, 3  # of a session, as in api.proto
_HPARAMS_VERSION = 0


class EventFile:
    """The records of one event file; the same calls give the same bytes."""

    def __init__(self, wall_s: float, *, has_head: bool = True) -> None:
        """An event file whose events happened at ``wall_s``, since 1970; without head it is to be added to another."""
        from tensorboardX.proto import event_pb2, plugin_hparams_pb2, summary_pb2  # installed with Ray

        self._event, self._summary, self._hparams = event_pb2.Event, summary_pb2, plugin_hparams_pb2
        self._restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._wall_s = wall_s
        self._frames: list[bytes] = []
        if has_head:
            self._add_event(self._event(wall_time=wall_s, file_version="brain.Event:2"))

    def content(self) -> bytes:
        """The bytes of the file."""
        return b"".join(self._frames)

    def add_restart(self) -> None:
        """Makes TensorBoard forget what it has read of the run in files whose names are before this one's."""
        self._add_event(self._event(wall_time=self._wall_s, session_log=self._restart))

    def add_points(self, points: Sequence[Point]) -> None:
        """Scalars, those of a step in one event, in the order of the steps.

        A number beyond 32 bits is left out, as infinities are.
        """
        by_step: dict[int, list[Any]] = {}
        for name, value, step in points:
            if abs(value) <= LARGEST:
                by_step.setdefault(step, []).append(self._summary.Summary.Value(tag=name, simple_value=value))
        for step in sorted(by_step):
            self._add(by_step[step], step)

    def add_texts(self, texts: Mapping[str, str]) -> None:
        """Texts, which TensorBoard shows as Markdown."""
        for tag, text in texts.items():
            value = self._plugin_value(tag, "text", b"")
            value.tensor.dtype = 7  # DT_STRING
            value.tensor.string_val.append(text.encode())
            value.tensor.tensor_shape.dim.add(size=1)
            self._add([value])

    def add_picture(self, tag: str, png: bytes) -> None:
        """A picture."""
        value = self._summary.Summary.Value(tag=tag)
        value.image.encoded_image_string, value.image.colorspace = png, 3
        if png[12:16] == b"IHDR":
            value.image.width, value.image.height = struct.unpack(">II", png[16:24])
        self._add([value])

    def add_session(self, values: Mapping[str, Any], started_s: float) -> None:
        """The hyperparameters of this run; TensorBoard finds its metrics among the scalars."""
        data = self._hparams.HParamsPluginData(version=_HPARAMS_VERSION)
        data.session_start_info.start_time_secs = started_s
        for name, value in values.items():
            entry = data.session_start_info.hparams[name]
            if isinstance(value, bool):
                entry.bool_value = value
            elif is_number(value):
                entry.number_value = float(value)
            else:
                entry.string_value = "none" if value is None else str(value)
        self._add([self._plugin_value("_hparams_/session_start_info", "hparams", data.SerializeToString())])

    def add_end(self, status: int, ended_s: float) -> None:
        """How and when this run ended; only once, since TensorBoard keeps the first that it reads."""
        data = self._hparams.HParamsPluginData(version=_HPARAMS_VERSION)
        data.session_end_info.status, data.session_end_info.end_time_secs = status, ended_s
        self._add([self._plugin_value("_hparams_/session_end_info", "hparams", data.SerializeToString())])

    def _plugin_value(self, tag: str, plugin: str, content: bytes) -> Any:
        value = self._summary.Summary.Value(tag=tag)
        value.metadata.plugin_data.plugin_name, value.metadata.plugin_data.content = plugin, content
        return value

    def _add(self, values: Sequence[Any], step: int = 0) -> None:
        event = self._event(wall_time=self._wall_s + step / 1000, step=step)
        event.summary.value.extend(values)
        self._add_event(event)

    def _add_event(self, event: Any) -> None:
        self._frames.append(_frame(event.SerializeToString(deterministic=True)))


def _frame(record: bytes) -> bytes:
    """A record with its length, and the checksums of both."""
    length = struct.pack("<Q", len(record))
    return length + _checksum(length) + record + _checksum(record)


def _checksum(content: bytes) -> bytes:
    from tensorboardX.crc32c import crc32c

    found = crc32c(content)
    return struct.pack("<I", (((found >> 15) | (found << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
