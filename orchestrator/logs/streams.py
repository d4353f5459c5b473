"""From the output of a running training script to points: a step, a loss and a gradient norm.

Bytes arrive in pieces of any size, from standard output or from growing files. The loss column is chosen from the first
few rows, by the same names as in a complete log, or given by the user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from orchestrator.base.words import count
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.event_files import Events, begins_as_events
from orchestrator.logs.line_formats import reader_of
from orchestrator.logs.lines import MAX_LAST_LINES, MAX_LINE_BYTES, Lines, Reader, Row, Rows, without_colours
from orchestrator.logs.pattern import compiled_pattern
from orchestrator.logs.point_maker import Point, PointMaker, Reading
from orchestrator.logs.scores import WithScore, compiled_score

_BLOCK = 1024**2  # bytes split into lines at a time
_MAX_LAST_LINE = 500  # characters


class MetricStream:
    """Turns the output of a run into points, as it arrives, however it is split into pieces.

    With ``goes_back`` steps may go back. Raises InputError for a pattern that is invalid or has no group for the loss.
    """

    def __init__(self, metrics: MetricsConfig, max_line_bytes: int = MAX_LINE_BYTES, goes_back: bool = False) -> None:
        self._maker = PointMaker(metrics, goes_back=goes_back)
        self._reader = _reader(metrics, self._maker)
        self._lines = Lines(self._reader, max_line_bytes)
        self._is_named = metrics.loss is not None
        self._head: bytes | None = b"" if metrics.pattern is None and metrics.format == "auto" else None
        self._events = Events() if metrics.pattern is None and metrics.format == "tensorboard" else None

    @property
    def num_lines(self) -> int:
        """The number of nonempty lines so far, without event records."""
        return self._lines.num_lines

    @property
    def last_lines(self) -> deque[str]:
        """The last lines as text without colour codes, each truncated to a few rows of a terminal."""
        texts = (without_colours(line.decode(errors="replace")) for line in self._lines.last)
        return deque((text[:_MAX_LAST_LINE] for text in texts), MAX_LAST_LINES)

    @property
    def note(self) -> str:
        """The chosen columns and what was left out, or why no points were found."""
        damage = self._events.damage if self._events is not None else ""
        left_out = (
            f"{count(num, 'line')} of another kind or rank left out" if (num := self._reader.num_left_out()) else ""
        )
        return "; ".join(filter(None, [self._maker.note(), left_out, damage]))

    @property
    def question(self) -> str | None:
        """What the user must be asked before the losses can be trusted; None if the loss is clear or was given."""
        return None if self._is_named or self._maker.loss is None else self._reader.question(self._maker.loss)

    @property
    def goes_back(self) -> bool:
        """Whether the run goes back again and again and comes no further."""
        return self._maker.numbering.ways_back.are_for_ever

    @property
    def validation_loss(self) -> float | None:
        """The last finite validation loss, if there was one."""
        return self._maker.validation_loss

    def taken_readings(self) -> list[Reading]:
        """Return the readings since the last call; steps do not decrease."""
        return self._maker.taken_readings()

    def feed(self, content: bytes) -> list[Point]:
        """Return the points that ``content`` completes; it may end within a line or a character."""
        blocks = (content[at : at + _BLOCK] for at in range(0, len(content), _BLOCK))
        return [point for block in blocks for part in self._parts(block) for point in self._maker.take_part(part)]

    def finish(self) -> list[Point]:
        """Return the points that were held back until the end of the run."""
        points = [point for part in self._last_parts() for point in self._maker.take_part(part)]
        return points + self._maker.finish()

    def release(self) -> list[Point]:
        """Return the points of event records that wait for more of their step; lines wait on for their end."""
        rows = () if self._events is None else self._events.release()
        return [point for row in rows for point in self._maker.take_part(row)]

    def _parts(self, content: bytes) -> Iterable[Row | Rows]:
        if self._head is not None:
            self._head += content
            if begins_as_events(self._head) is None:
                return ()
            content = self._release_head()
        return self._lines.parts(content) if self._events is None else self._events.rows(content)

    def _release_head(self) -> bytes:
        """Return the content that was held back to detect an event file."""
        content, self._head = self._head or b"", None
        if begins_as_events(content):
            self._events = Events()
        return content

    def _last_parts(self) -> list[Row | Rows]:
        parts = [] if self._head is None else list(self._parts(self._release_head()))
        return [*parts, *(self._lines.finish() if self._events is None else self._events.finish())]


def _reader(metrics: MetricsConfig, maker: PointMaker) -> Reader:
    if metrics.pattern is not None:
        maker.choose_among(list(compiled_pattern(metrics).groupindex))
    others = [*metrics.also, *([metrics.score.title] if metrics.score is not None else [])]
    given = [*Columns(metrics.step, metrics.loss, metrics.grad_norm).given, *others]
    reader = reader_of(metrics, maker.is_loss, given)
    if metrics.score is None or metrics.score.pattern is None:
        return reader
    return WithScore(reader, compiled_score(metrics.score))
