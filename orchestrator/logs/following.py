"""A log that another process writes, followed from outside: a file, a folder, a document written anew, or a pipe."""

from __future__ import annotations

import codecs
import itertools
import os
import select
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import HEAD_BYTES, FileTail, check_is_text, find_logs, is_document, read_log
from orchestrator.logs.point_maker import Point
from orchestrator.logs.streams import MetricStream
from orchestrator.logs.tables import Log
from orchestrator.logs.wandb_files import WandbLines, is_wandb_file

PIPE = "-"  # the path that stands for standard input
_PART = 1024**2  # bytes of a pipe read at a time
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how a log begins that a redirect on Windows wrote


class FollowedLog(ABC):
    """The points of a log as they are written. ``has_grown`` says whether the last read found anything new."""

    has_grown = False
    is_over = False  # nothing more can come

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def read(self) -> Iterator[list[Point]]:
        """Yield the new points in parts. A step that is not above the one before it is where the run went back to."""

    def release(self) -> list[Point]:
        """Return the points that were held back until more of their step is there."""
        return []

    def finish(self) -> list[Point]:
        """Return the points that were held back until the end."""
        return []

    @property
    @abstractmethod
    def note(self) -> str:
        """The columns read, or the reason for no points."""

    @property
    def question(self) -> str | None:
        """What must be asked before the losses can be trusted; None if the loss is clear or was given."""
        return None

    @property
    @abstractmethod
    def validation_loss(self) -> float | None:
        """The last finite validation loss, if there was one."""


class StreamedLog(FollowedLog):
    """A log whose content only grows: ``next_part`` returns its next bytes, none for now, or None at its end."""

    def __init__(self, name: str, next_part: Callable[[], bytes | None], metrics: MetricsConfig) -> None:
        super().__init__(name)
        self._next_part, self._stream = next_part, MetricStream(metrics, goes_back=True)
        self._decode: Callable[[bytes], str | bytes] | None = None  # from UTF-16, or files of Weights & Biases

    def read(self) -> Iterator[list[Point]]:
        """Yield the points of each new part."""
        self.has_grown = False
        while content := self._next_part():
            self.has_grown = True
            points = self._stream.feed(self._text(content))
            self._stream.taken_readings()  # which would grow
            yield points
        self.is_over = content is None

    def _text(self, content: bytes) -> bytes:
        """Return content as text in UTF-8."""
        if content.startswith(_UTF_16):
            self._decode = codecs.getincrementaldecoder("utf-16")("replace").decode
        elif is_wandb_file(content):
            self._decode = WandbLines().feed
        text = content if self._decode is None else self._decode(content)
        return text.encode() if isinstance(text, str) else text

    def release(self) -> list[Point]:
        """Return the points that were held back until more of their step is there."""
        return self._stream.release()

    def finish(self) -> list[Point]:
        """Return the points that were held back until the end."""
        return self._stream.finish()

    @property
    def note(self) -> str:
        """The columns read, or the reason for no points."""
        return self._stream.note.replace("say which under metrics: loss", "say --loss NAME")

    @property
    def question(self) -> str | None:
        """What must be asked before the losses can be trusted; None if the loss is clear or was given."""
        return self._stream.question

    @property
    def validation_loss(self) -> float | None:
        """The last finite validation loss, if there was one."""
        return self._stream.validation_loss


class RewrittenLog(FollowedLog):
    """A JSON document that its trainer writes anew each time, such as trainer_state.json, in the newest file there."""

    def __init__(self, name: str, newest: Callable[[], Path], columns: Columns) -> None:
        super().__init__(name)
        self._newest, self._columns = newest, columns
        self._seen: tuple[object, ...] = ()
        self._log: Log | None = None
        self._problem = "no losses so far"

    def read(self) -> Iterator[list[Point]]:
        """Yield the points from the first one that is not as it was."""
        self.has_grown = False
        try:
            path = self._newest()
            status = path.stat()
        except (OSError, InputError):  # between two versions
            return
        seen = (path, status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == self._seen:
            return
        try:
            log = read_log(path, self._columns)
        except InputError as error:  # it may be half written
            self._problem = str(error.problems[0])
            return
        self._seen, self.has_grown = seen, True
        before, self._log = points_of(self._log), log
        now = points_of(log)
        same = sum(1 for _ in itertools.takewhile(lambda pair: _is_same(*pair), zip(before, now, strict=False)))
        yield now[same:]

    @property
    def note(self) -> str:
        """The columns read, or the reason for no points."""
        if self._log is None:
            return self._problem
        columns = self._log.columns
        return f"loss: {columns.loss}; step: {columns.step}; gradient norm: {columns.grad_norm or 'none'}"

    @property
    def validation_loss(self) -> float | None:
        """The last finite validation loss, if there was one."""
        return float(self._log.validation[1][-1]) if self._log is not None and self._log.validation else None


def points_of(log: Log | None) -> list[Point]:
    """Return the points of a whole log."""
    if log is None:
        return []
    norms = [None] * len(log.step_N) if log.grad_norm_N is None else log.grad_norm_N.tolist()
    others = [{}] * len(log.step_N) if log.lr_N is None else [{"lr": lr} for lr in log.lr_N.tolist()]
    rows = zip(log.step_N.tolist(), log.loss_N.tolist(), norms, others, strict=True)
    return [Point(step, loss, norm, other) for step, loss, norm, other in rows]


def _is_same(a: Point, b: Point) -> bool:
    return a.step == b.step and (a.loss == b.loss or (a.loss != a.loss and b.loss != b.loss))


def followed_log(path: str, columns: Columns, metrics: MetricsConfig, pipe: int = 0) -> FollowedLog:
    """Return the log at ``path`` to follow: a file, the newest log of a folder, or for ``-`` the descriptor ``pipe``.

    Raises InputError, which names the path, if there is no such log.
    """
    metrics = metrics.model_copy(update={"step": columns.step, "loss": columns.loss, "grad_norm": columns.grad_norm})
    if path == PIPE:
        _check_open(pipe)
        return StreamedLog("standard input", lambda: _part_of_pipe(pipe), metrics)
    if not os.path.exists(path):
        remedy = f"start the run first, or make the empty file that it will write: touch {path}"
        raise InputError(Problem(path, "", "no such file or folder", remedy))
    file = Path(path)
    if not file.is_dir():
        return _followed_file(path, file, lambda: file, columns, metrics)
    logs = find_logs(file)
    newest = _newest_with_losses(logs, columns, metrics)
    if "tfevents" in newest.name:
        return StreamedLog(str(newest.parent), FileTail(f"{escape(str(newest.parent))}/*tfevents*").read, metrics)
    if newest.suffix == ".json":
        states = [log for log in logs if log.name == newest.name]
        return _followed_file(path, _newest(states), lambda: _newest(_named(file, newest.name)), columns, metrics)
    return _followed_file(str(newest), newest, lambda: newest, columns, metrics)


def _followed_file(
    name: str, file: Path, newest: Callable[[], Path], columns: Columns, metrics: MetricsConfig
) -> FollowedLog:
    if not stat.S_ISREG(file.stat().st_mode):
        raise InputError(Problem(name, "", "is not a regular file", "to follow a pipe, run `... | sweep watch -`"))
    try:
        with open(file, "rb") as opened:
            head = opened.read(HEAD_BYTES)
    except OSError as error:
        problem = Problem(name, "", f"cannot be read: {error.strerror or error}", "check that you may read it")
        raise InputError(problem) from None
    check_is_text(name, head)
    if metrics.pattern is None and metrics.format == "auto" and is_document(file, head):
        return RewrittenLog(name, newest, columns)
    return StreamedLog(name, FileTail(str(file)).read, metrics)


def _newest(paths: list[Path]) -> Path:
    return max(paths, key=_changed_at)


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def _newest_with_losses(logs: list[Path], columns: Columns, metrics: MetricsConfig) -> Path:
    """Return the newest log that has losses near its start; without any, the newest file that a run may yet write to.

    A folder also has what other tools write, such as the log of Weights & Biases itself.
    """
    newest_first = sorted(logs, key=_changed_at, reverse=True)
    return next((log for log in newest_first if _has_losses(log, columns, metrics)), newest_first[0])


def _has_losses(path: Path, columns: Columns, metrics: MetricsConfig) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
        check_is_text(str(path), head)
        if is_document(path, head):
            return len(read_log(path, columns).step_N) > 1  # a summary has one loss
    except (OSError, InputError):
        return False
    parts = iter([head])
    log = StreamedLog(str(path), lambda: next(parts, None), metrics)
    return any([*log.read(), log.finish()])


def _named(folder: Path, name: str) -> list[Path]:
    found = list(folder.rglob(name))
    if not found:
        raise InputError(Problem(str(folder), "", f"no longer holds a {name}"))
    return found


def _check_open(pipe: int) -> None:
    try:
        os.fstat(pipe)
    except OSError:
        remedy = "pipe the output of the run into it: `... | sweep watch -`"
        raise InputError(Problem(PIPE, "", "standard input is closed", remedy)) from None


def _part_of_pipe(pipe: int) -> bytes | None:
    """Return what a pipe holds now, or None at its end."""
    if not select.select([pipe], [], [], 0)[0]:
        return b""
    return os.read(pipe, _PART) or None
