"""Messages to the user through Apprise: which events deserve one, and a thread that sends them.

The run never waits long for a server.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import queue
import re
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.base.environment import install_command
from orchestrator.base.errors import InputError, Problem, SweepError
from orchestrator.base.space import Cell, Trial
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.words import count, counts_line, format_seconds
from orchestrator.driver.progress import Progress
from orchestrator.sweepfile.sections import NotifyConfig

# --- messages --------------------------------------------------------------------------------------

PAUSE_S = 60.0  # between two messages; only the last one does not wait
_MOST_CELLS = 5  # named in one message

Kind = Literal["failure", "warning", "info", "success"]  # of a message, in Apprise's terms
_BY_SEVERITY: Sequence[Kind] = ("failure", "warning", "info", "success")


@dataclass(frozen=True, slots=True)
class Message:
    """One message to the user: names, counts, times and values of axes, but no text of an error."""

    title: str
    body: str
    kind: Kind


class _Event(NamedTuple):
    """Something that happened since the last message: a short title and a line."""

    title: str
    line: str
    kind: Kind


class _Snapshot(NamedTuple):
    """The part of a run's progress whose changes are reported."""

    num_errored: int = 0
    num_hung: int = 0
    held_back: str | None = None


class News:
    """Collect the events of one run into messages.

    A state machine on the clock of the run's ``Progress``. Events within ``PAUSE_S`` after a message go into the next
    message, and those still unreported at the end of the run into the last one.
    """

    def __init__(self, events: Collection[str], folder: Path) -> None:
        """``events`` are from ``orchestrator.sweepfile.sections.EVENTS``; ``folder`` has the sweep's results."""
        self._events, self._folder = events, folder
        self._quiet_until = float("-inf")  # on the run's clock
        self._reported = _Snapshot()
        self._mixed: list[str] = []  # names of cells to report

    def began(self, progress: Progress) -> None:
        """Take the state that earlier runs left, which is not reported."""
        self._cells = _MixedCells(progress.trials, progress.outcomes)
        self._reported = _snapshot(progress)

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> Message | None:
        """Return the message that is due after the new results ``finished``, or None."""
        self._mixed += self._cells.add(finished)
        now = progress.clock()
        if now < self._quiet_until:
            return None
        events = self._take_events(progress)
        if not events:
            return None
        self._quiet_until = now + PAUSE_S
        return self._message(progress, events)

    def ended(self, progress: Progress) -> Message | None:
        """Return the last message, with the unreported events and how the run ended, or None."""
        events = self._take_events(progress)
        if "finished" in self._events or ("failed" in self._events and progress.error is not None):
            events.insert(0, _ending(progress))
        return self._message(progress, events) if events else None

    def _take_events(self, progress: Progress) -> list[_Event]:
        """Return the events since the last message and mark them as reported."""
        before, now, mixed = self._reported, _snapshot(progress), self._mixed
        self._reported, self._mixed = now, []
        events = []
        if "failed" in self._events and now.num_errored > before.num_errored:
            num = count(now.num_errored - before.num_errored, "trial")
            line = f"{num} errored: `sweep status {progress.sweep.name}` says why"
            events.append(_Event("trials errored", line, "failure"))
        if "failed" in self._events and now.held_back is not None and now.held_back != before.held_back:
            events.append(_Event("no other trial is started", now.held_back, "failure"))
        if "stalled" in self._events and now.num_hung > before.num_hung:
            times = count(now.num_hung - before.num_hung, "time")
            timeout_s = progress.sweep.resources.stall_timeout_s
            line = f"hung {times}: a worker or trainer said nothing for {timeout_s:g} s"
            events.append(_Event("hung", line, "warning"))
        if "diverged" in self._events and mixed:
            more = f"; and {len(mixed) - _MOST_CELLS} more" if len(mixed) > _MOST_CELLS else ""
            line = f"one seed diverged, another ended stable: {'; '.join(mixed[:_MOST_CELLS])}{more}"
            events.append(_Event("a seed diverged", line, "warning"))
        return events

    def _message(self, progress: Progress, events: Sequence[_Event]) -> Message:
        kinds = {event.kind for event in events}
        kind = next(kind for kind in _BY_SEVERITY if kind in kinds)
        body = [
            *(event.line for event in events if event.line),
            f"{count(len(progress.statuses), 'trial')}: {counts_line(progress.counts)}",
            f"{format_seconds(progress.seconds)} of training, results in {self._folder}",
        ]
        return Message(f"{progress.sweep.name}: {', '.join(event.title for event in events)}", "\n".join(body), kind)


class _MixedCells:
    """Find the cells of a sweep whose seeds disagree: one ended stable, another diverged.

    The order does not matter: early stopping ends a diverged seed long before a stable one in the same pack.
    """

    def __init__(self, trials: Mapping[str, Trial], outcomes: Mapping[str, str]) -> None:
        """Cells that are mixed by ``outcomes`` (by trial id) are never reported. ``trials`` may grow."""
        self._trials = trials
        self._outcomes: defaultdict[Cell, set[str]] = defaultdict(set)
        for trial_id, outcome in outcomes.items():
            self._outcomes[trials[trial_id].cell].add(outcome)

    def add(self, results: Iterable[MemberResult]) -> list[str]:
        """Return the names of the cells that ``results`` make mixed, in order, e.g. ``lr=0.1 beta2=0.99``."""
        names = []
        for result in results:
            cell = self._trials[result.trial_id].cell
            outcomes = self._outcomes[cell]
            was_mixed = _is_mixed(outcomes)
            outcomes.add(result.outcome)
            if _is_mixed(outcomes) and not was_mixed:
                names.append(cell.name)
        return names


def _is_mixed(outcomes: set[str]) -> bool:
    return outcomes >= {"stable", "diverged"}


def _snapshot(progress: Progress) -> _Snapshot:
    num_errored = sum(status == "errored" for status in progress.statuses.values())
    return _Snapshot(num_errored, progress.num_hung, progress.held_back)


def _ending(progress: Progress) -> _Event:
    if progress.error is not None:
        kind = type(progress.error).__name__
        return _Event("ended by an error", f"{kind}: the output of `sweep run` has its text", "failure")
    if progress.stopped_by is not None:
        return _Event("stopped", "the same command resumes the sweep", "info")
    if progress.held_back is not None:
        return _Event("ended early", "", "info")
    return _Event("finished", "", "info" if "errored" in progress.statuses.values() else "success")


# How long the end of a run waits for messages. A service may accept two messages only five seconds apart.
PATIENCE_S = 8.0
_HTTP_STATUS = re.compile(r"\berror=(\d{3})\b")  # in Apprise's log

Deliver = Callable[[Message], None]


# --- sending ---------------------------------------------------------------------------------------


class NotDelivered(SweepError):
    """A message did not arrive. The text says why, without the URL. It never ends a sweep."""


class Notifier:
    """Send the messages of a run when they are due. An observer of the run."""

    def __init__(self, news: News, sender: Sender) -> None:
        self._news, self._sender = news, sender

    def began(self, progress: Progress) -> None:
        """Note the state before training."""
        self._news.began(progress)

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Send the message that is due, if any."""
        self._send(self._news.changed(progress, finished))

    def ended(self, progress: Progress) -> None:
        """Send the last message."""
        self._send(self._news.ended(progress))

    def finish(self) -> str | None:
        """Wait a moment for the messages to arrive and return what went wrong, or None."""
        return self._sender.finish()

    def _send(self, message: Message | None) -> None:
        if message is not None:
            self._sender.send(message)


class Sender:
    """Send messages in order from a thread. A message that fails is not sent again."""

    def __init__(self, deliver: Deliver, patience_s: float = PATIENCE_S) -> None:
        """``deliver`` sends one message; it may raise NotDelivered, and no other error."""
        self._deliver, self._patience_s = deliver, patience_s
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._failures: list[NotDelivered] = []
        self._num = self._num_said = 0
        self._thread = threading.Thread(target=self._work, daemon=True, name="notify")

    def send(self, message: Message) -> None:
        """Queue ``message``."""
        if self._num == 0:
            self._thread.start()
        self._num += 1
        self._queue.put(message)

    def new_failures(self) -> list[str]:
        """Return why messages since the last call did not arrive."""
        first, self._num_said = self._num_said, len(self._failures)
        return [str(failure) for failure in self._failures[first : self._num_said]]

    def finish(self) -> str | None:
        """Wait for queued messages, at most ``patience_s``, and return what went wrong, or None."""
        if self._num == 0:
            return None
        self._queue.put(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            return f"the service did not answer within {self._patience_s:g} s"
        if self._failures:
            return f"{len(self._failures)} of {self._num} messages did not arrive: {self._failures[0]}"
        return None

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                self._deliver(message)
            except NotDelivered as error:
                self._failures.append(error)


def service_of(notify: NotifyConfig, where: str) -> Deliver:
    """Return a function that sends a message to the URL in the environment variable ``notify.url_from``.

    ``where`` is the line of the sweep file that names the variable. The URL leaves this module only towards the
    service. Raises InputError if the variable is unset, its URL is invalid, or Apprise is not installed.
    """
    instead = "leave messages out: --set notify=null"
    return _service(notify.url_from, where, "notify", instead)


def service_named(name: str, option: str) -> Deliver:
    """Return a function that sends a message to a URL of Apprise, or to the one in the environment variable ``name``.

    Raises InputError, with the ``option`` that gave it, as ``service_of`` does.
    """
    return _service(name, option, "", f"leave {option} out")


def _service(name: str, where: str, key: str, instead: str) -> Deliver:
    is_url = "://" in name
    url = name if is_url else os.environ.get(name, "")
    of_url = f"{key}.url_from" if key else ""
    if problems := list(_missing("" if is_url else name, url, where, key, instead)):
        raise InputError(*problems)
    import apprise

    _silence_logs()
    # Messages go out one after another in the sender's thread: Apprise's own threads would delay the process's exit.
    services = apprise.Apprise(asset=apprise.AppriseAsset(app_id="sweep", async_mode=False, service_timeout=0))
    if not services.add(url):
        what = "its value" if is_url else f"the value of the environment variable {name}"
        message, remedy = f"{what} is not a URL of Apprise", "its services have forms such as json://host/path"
        raise InputError(Problem(where, of_url, message, remedy))

    def deliver(message: Message) -> None:
        try:
            kind = apprise.NotifyType(message.kind)
            text = apprise.NotifyFormat.TEXT
            result = services.notify(message.body, message.title, notify_type=kind, body_format=text)
        except Exception as error:  # a plugin may raise anything, with the URL in its text
            raise NotDelivered(f"the service failed with {type(error).__name__}") from None
        if not result:
            raise NotDelivered(_reason(entry.message for entry in result.logs()))

    return deliver


def _missing(variable: str, url: str, where: str, key: str, instead: str) -> Iterator[Problem]:
    if not url.strip():
        message = f"the environment variable {variable} is not set"
        of_url = f"{key}.url_from" if key else ""
        yield Problem(where, of_url, message, f"set it to a URL of Apprise, or {instead}")
    if importlib.util.find_spec("apprise") is None:
        message = "messages need the package apprise, which is not installed"
        yield Problem(where, key, message, f"{install_command('notify')}, or {instead}")


def _reason(log: Iterable[str]) -> str:
    """Return why a message did not arrive: only the status, since the rest of the log may have parts of the URL."""
    statuses = dict.fromkeys(status for line in log for status in _HTTP_STATUS.findall(line))
    if statuses:
        return f"the service answered with HTTP status {', '.join(statuses)}"
    return "the service cannot be reached, did not answer in time, or refused it"


def _silence_logs() -> None:
    """Keep the logs of Apprise and its requests, which mention hosts and paths, out of the terminal."""
    logging.getLogger("apprise").propagate = False
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Unverified HTTPS request")
