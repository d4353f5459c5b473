"""What of a run is worth a message, and when."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.base.trial_result import MemberResult
from orchestrator.driver.progress import Progress
from orchestrator.driver.words import counts_line, format_seconds
from orchestrator.mirrors.notify.mixed_cells import MixedCells

PAUSE_S = 60.0  # between two messages; only the last one does not wait
_MOST_CELLS = 5  # named in one message

Kind = Literal["failure", "warning", "info", "success"]  # of a message, as Apprise names them
_BY_WEIGHT: Sequence[Kind] = ("failure", "warning", "info", "success")


@dataclass(frozen=True, slots=True)
class Message:
    """One message to the user. It holds names, counts, times and values of axes, and no text of an error."""

    title: str
    body: str
    kind: Kind


class _Happened(NamedTuple):
    """Something since the last message, in few words and as a line."""

    title: str
    line: str
    kind: Kind


class _Seen(NamedTuple):
    """What of a run's progress is compared with what has been told."""

    num_errored: int = 0
    num_hung: int = 0
    held_back: str | None = None


class News:
    """Collects the events of one run into messages.

    A state machine that takes the time from the run's ``Progress``. What happens within ``PAUSE_S`` of a message is in
    the next one, and what is left at the end of the run in the last one.
    """

    def __init__(self, events: Collection[str], folder: Path) -> None:
        """News of these of ``orchestrator.sweepfile.sections.EVENTS``, for the sweep with results in ``folder``."""
        self._events, self._folder = events, folder
        self._quiet_until = float("-inf")  # on the run's clock
        self._told = _Seen()
        self._mixed: list[str] = []  # cells that have not been told

    def began(self, progress: Progress) -> None:
        """Training is about to begin; what earlier runs left is no news."""
        self._cells = MixedCells(progress.trials, progress.outcomes)
        self._told = _seen(progress)

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> Message | None:
        """The message that is due now, if any; ``finished`` are new results."""
        self._mixed += self._cells.newly_mixed(finished)
        now = progress.clock()
        if now < self._quiet_until:
            return None
        happened = self._take(progress)
        if not happened:
            return None
        self._quiet_until = now + PAUSE_S
        return self._message(progress, happened)

    def ended(self, progress: Progress) -> Message | None:
        """The last message, at once: what has not been told, and how the run ended."""
        happened = self._take(progress)
        if "finished" in self._events or ("failed" in self._events and progress.error is not None):
            happened.insert(0, _ending(progress))
        return self._message(progress, happened) if happened else None

    def _take(self, progress: Progress) -> list[_Happened]:
        """The events since the last message, which count as told from now on."""
        before, now, mixed = self._told, _seen(progress), self._mixed
        self._told, self._mixed = now, []
        happened = []
        if "failed" in self._events and now.num_errored > before.num_errored:
            num = _number(now.num_errored - before.num_errored, "trial")
            line = f"{num} errored: `sweep status {progress.sweep.name}` says why"
            happened.append(_Happened("trials errored", line, "failure"))
        if "failed" in self._events and now.held_back is not None and now.held_back != before.held_back:
            happened.append(_Happened("no other trial is started", now.held_back, "failure"))
        if "stalled" in self._events and now.num_hung > before.num_hung:
            times = _number(now.num_hung - before.num_hung, "time")
            timeout_s = progress.sweep.resources.stall_timeout_s
            line = f"hung {times}: a worker or trainer said nothing for {timeout_s:g} s"
            happened.append(_Happened("hung", line, "warning"))
        if "diverged" in self._events and mixed:
            more = f"; and {len(mixed) - _MOST_CELLS} more" if len(mixed) > _MOST_CELLS else ""
            line = f"one seed diverged, another ended stable: {'; '.join(mixed[:_MOST_CELLS])}{more}"
            happened.append(_Happened("a seed diverged", line, "warning"))
        return happened

    def _message(self, progress: Progress, happened: Sequence[_Happened]) -> Message:
        kinds = {event.kind for event in happened}
        kind = next(kind for kind in _BY_WEIGHT if kind in kinds)
        body = [
            *(event.line for event in happened if event.line),
            f"{_number(len(progress.statuses), 'trial')}: {counts_line(progress.counts)}",
            f"{format_seconds(progress.seconds)} of training, results in {self._folder}",
        ]
        return Message(f"{progress.sweep.name}: {', '.join(event.title for event in happened)}", "\n".join(body), kind)


def _seen(progress: Progress) -> _Seen:
    num_errored = sum(status == "errored" for status in progress.statuses.values())
    return _Seen(num_errored, progress.num_hung, progress.held_back)


def _ending(progress: Progress) -> _Happened:
    if progress.error is not None:
        kind = type(progress.error).__name__
        return _Happened("ended by an error", f"{kind}: the output of `sweep run` has its text", "failure")
    if progress.stopped_by is not None:
        return _Happened("stopped", "the same command resumes the sweep", "info")
    if progress.held_back is not None:
        return _Happened("ended early", "", "info")
    return _Happened("finished", "", "info" if "errored" in progress.statuses.values() else "success")


def _number(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
