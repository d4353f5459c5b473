"""What `sweep watch` does: follow a log, say how the run fares, and pass on its alarms."""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api.beside import Beside
from orchestrator.api.run_report import Reporter, RunReport
from orchestrator.base.errors import EXIT_ALARM, EXIT_INTERRUPTED, EXIT_OK, InputError, Problem
from orchestrator.base.files import STANDARD_OUTPUT, check_output, open_private, storage_errors
from orchestrator.base.words import joined
from orchestrator.causes.from_log import explain_log
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.run_alarms import ALARM_KINDS, Alarm, RunAlarms
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.following import FollowedLog, followed_log
from orchestrator.maps.followed import FollowedRun
from orchestrator.maps.replay import Replayed
from orchestrator.mirrors.notifier import PAUSE_S, Kind, Message, Sender, service_named
from orchestrator.render.answer import to_plain
from orchestrator.render.text import Lines

if TYPE_CHECKING:
    from orchestrator.pages.watch_page import WatchedRun, WatchPage

_POLL_S = 2.0  # seconds between two looks at the log
_QUIET_S = 10.0  # after which the last step of an event file is taken as complete
_COMMAND_S = 60.0  # for which the watch waits for a command before it goes on without it
_STANDARD_ERROR = 2
_MOST_SHOWN = 100  # alarms on the page
_SEVERITY: dict[str, Kind] = {"spike": "warning", "lost": "failure", "nan": "failure"}  # others are for information


@dataclass(frozen=True, slots=True)
class Clock:
    """The time in seconds, and how to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The options of `sweep watch`; ``results`` is the folder of the sweep that it is compared with."""

    columns: Columns = field(default_factory=Columns)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    stopping: StoppingConfig = field(default_factory=StoppingConfig)
    steps: int | None = None
    every_s: float = 60.0
    stalled_s: float = 600.0
    notify: str | None = None
    on: tuple[str, ...] = ALARM_KINDS
    command: str | None = None
    command_on: tuple[str, ...] = ("lost",)
    exit_on: tuple[str, ...] = ()
    beside: str | None = None
    settings: tuple[str, ...] = ()
    json_file: Path | None = None
    page: bool = False
    results: Path = Path("results")
    hear: Callable[[str, dict[str, Any]], None] | None = None  # takes what a line of JSON has, as it comes


def kinds_of(text: str, option: str) -> tuple[str, ...]:
    """Return the kinds of alarms in a list with commas. Raises InputError, with the ``option``, for another word."""
    kinds = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if wrong := [kind for kind in kinds if kind not in ALARM_KINDS]:
        remedy = f"one or several of {', '.join(ALARM_KINDS)}, with commas"
        raise InputError(Problem(f"{option} {text}", "", f"{wrong[0]!r} is not a kind of alarm", remedy))
    return kinds


def watch(path: str, options: WatchOptions, clock: Clock = Clock()) -> Lines:
    """Follow the log at ``path`` until it is over, or an alarm ends the watch; return the exit code."""
    log = followed_log(path, options.columns, options.metrics)
    with _Outlet(log.name, options, clock) as outlet:
        if not options.page:
            return (yield from _Watch(log, options, clock, outlet).lines())
        from orchestrator.pages.loopback import address_of, listening_socket
        from orchestrator.pages.watch_page import WatchPage

        listener = listening_socket(None)
        yield f"page at {address_of(listener)}"
        with WatchPage(listener, log.name) as page:
            return (yield from _Watch(log, options, clock, outlet, page).lines())


@dataclass(slots=True)
class _Outlet:
    """Where reports and alarms go besides the terminal: JSON lines, messages, and a command."""

    name: str
    options: WatchOptions
    clock: Clock
    _sender: Sender | None = field(init=False, default=None)
    _json: Any = field(init=False, default=None)
    _waiting: list[tuple[Alarm, list[str]]] = field(init=False, default_factory=list)
    _quiet_until: float = field(init=False, default=float("-inf"))

    def __enter__(self) -> _Outlet:
        if self.options.notify is not None:
            self._sender = Sender(service_named(self.options.notify, f"--notify {_shown(self.options.notify)}"))
        target = self.options.json_file
        check_output(target, "--json")
        if target is not None:
            with storage_errors(target):
                self._json = sys.stdout if target == STANDARD_OUTPUT else open_private(target, "a")
        return self

    def __exit__(self, *_: object) -> None:
        if self._json not in (None, sys.stdout):
            self._json.close()

    def write(self, kind: str, values: dict[str, Any]) -> None:
        """Append a JSON line, and let the listener hear it."""
        if self.options.hear is not None:
            self.options.hear(kind, values)
        if self._json is None:
            return
        with storage_errors(Path(self._json.name)):
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            print(json.dumps({"type": kind, "time": now, **to_plain(values)}), file=self._json, flush=True)

    def pass_on(self, alarm: Alarm, more: list[str], *, may_act: bool) -> Iterator[str]:
        """Write an alarm, keep it for a message, and run the command if it ``may_act``; yield what came of that."""
        self.write("alarm", {"kind": alarm.kind, "step": alarm.step, "text": alarm.text, "more": more})
        if alarm.kind in self.options.on:
            self._waiting.append((alarm, more))
        if may_act and self.options.command is not None and alarm.kind in self.options.command_on:
            yield from self._run(self.options.command, alarm)

    def send_due(self, report: RunReport, *, is_last: bool = False) -> None:
        """Send one message with the alarms since the last one; only the last message does not wait a minute."""
        if self._sender is None or not self._waiting or (self.clock.now() < self._quiet_until and not is_last):
            return
        alarms, self._waiting = self._waiting, []
        kinds = list(dict.fromkeys(alarm.kind for alarm, _ in alarms))
        severity: Kind = next((_SEVERITY[kind] for kind in ("lost", "nan", "spike") if kind in kinds), "info")
        body = [*(line for alarm, more in alarms for line in (alarm.text, *more)), report.line()]
        self._sender.send(Message(f"{self.name}: {joined(kinds)}", "\n".join(body), severity))
        self._quiet_until = self.clock.now() + PAUSE_S

    def failures(self) -> Iterator[str]:
        """Yield a warning for each message that did not arrive since the last call."""
        for failure in [] if self._sender is None else self._sender.new_failures():
            yield f"warning: --notify: a message did not arrive: {failure}"

    def finish(self) -> Iterator[str]:
        """Wait a moment for messages, and yield a warning if they do not arrive."""
        if self._sender is not None and (failure := self._sender.finish()) is not None:
            yield f"warning: --notify: {failure}"

    def _run(self, command: str, alarm: Alarm) -> Iterator[str]:
        step = "" if alarm.step is None else str(alarm.step)
        own = {"SWEEP_ALARM": alarm.kind, "SWEEP_ALARM_STEP": step, "SWEEP_ALARM_TEXT": alarm.text}
        output = _STANDARD_ERROR if self._json is sys.stdout else None  # which has only JSON on standard output
        child = subprocess.Popen(
            command, shell=True, env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=output
        )
        try:
            code = child.wait(_COMMAND_S)
        except subprocess.TimeoutExpired:
            yield f"--run: {command}: it still runs after {_COMMAND_S:g} s; the watch goes on without it"
            return
        yield f"--run: {command}: ended with exit code {code}"


def _shown(notify: str) -> str:
    """The name of a variable, or only the service of a URL: the rest may be a secret."""
    return f"{notify.partition('://')[0]}://..." if "://" in notify else notify


@dataclass(slots=True)
class _Watch:
    """The loop of one watch."""

    log: FollowedLog
    options: WatchOptions
    clock: Clock
    outlet: _Outlet
    page: WatchPage | None = None
    run: FollowedRun = field(init=False)
    alarms: RunAlarms = field(init=False)
    reporter: Reporter = field(init=False)
    beside: Beside | None = field(init=False, default=None)
    _others: dict[str, float] = field(init=False, default_factory=dict)
    _raised: list[str] = field(init=False, default_factory=list)
    _place_lines: list[str] = field(init=False, default_factory=list)
    _has_asked: bool = field(init=False, default=False)
    _grown_at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        options = self.options
        self.run = FollowedRun(options.stopping, all_steps=options.steps or float("inf"))
        self.alarms = RunAlarms(options.stalled_s, self.clock.now())
        self.reporter = Reporter(options.steps)
        if options.beside is not None:
            self.beside = Beside(options.beside, options.results, options.settings)

    def lines(self) -> Lines:
        """Yield what it says; return the exit code."""
        try:
            return (yield from self._follow())
        except KeyboardInterrupt:
            yield from self._end("interrupted")
            return EXIT_INTERRUPTED

    def _follow(self) -> Lines:
        yield from self._read()
        if self.has_past:
            self.alarms.pass_over(self.run.record)
        yield f"watching {self.log.name}: {self.log.note}"
        self._show(at_once=True)
        next_report = self.clock.now()
        while True:
            if self.beside is not None:
                yield from self._place(self.beside)
            now, is_going_on = self.clock.now(), self.log.has_grown or self._may_be_last
            raised = self.alarms.take(self.run.record, self.run.last_step, now, has_grown=is_going_on)
            for alarm in raised:
                yield from self._raise(alarm)
            self.outlet.send_due(self._report())
            yield from self.outlet.failures()
            yield from self._ask()
            ending = next((alarm for alarm in raised if alarm.kind in self.options.exit_on), None)
            if ending is not None and self.log.question is None:
                yield from self._end(f"--exit-on {ending.kind}")
                return EXIT_ALARM
            is_complete = self._is_complete()
            if self.clock.now() >= next_report or self.log.is_over or is_complete:
                next_report = self.clock.now() + self.options.every_s
                report = self._report()
                self.outlet.write("report", to_plain(report))
                why = f": {self.log.note}" if report.step is None else ""
                yield f"{_time()}  {report.line()}{why}"
            if self.log.is_over or is_complete:
                yield from self._end("the run is complete" if is_complete else "the log is over")
                return EXIT_OK
            self._show(at_once=False)
            self.clock.sleep(min(_POLL_S, self.options.every_s))
            yield from self._read()

    @property
    def has_past(self) -> bool:
        """Whether the log may have a past from before the watch."""
        return self.log.name != "standard input"

    def _read(self) -> Iterator[str]:
        """Take what is new in the log; yield where the run went back to, if it did."""
        for points in self.log.read():
            yield from self._take(points)
        if self.log.is_over:
            yield from self._take(self.log.finish())
        elif not self.log.has_grown and self.clock.now() - self._grown_at >= _QUIET_S:
            yield from self._take(self.log.release())
        self._grown_at = self.clock.now() if self.log.has_grown else self._grown_at
        self.reporter.at(self.clock.now(), self.run.last_step)

    def _take(self, points: Sequence[Any]) -> Iterator[str]:
        back = self.run.add(points)
        if points:
            self._others = dict(points[-1].others)
        if back is not None and self.reporter.has_any:
            again = "begins again" if self.run.first_step == back else f"goes back to step {back:,}"
            yield f"{_time()}  the run {again} (it was at step {self.run.left_step:,})"

    def _report(self) -> RunReport:
        return self.reporter.report(self.run, self._others, self.log.validation_loss)

    def _raise(self, alarm: Alarm) -> Iterator[str]:
        more = self._argued(alarm)
        self._raised = [*self._raised[-_MOST_SHOWN:], f"{_time()} {alarm.kind}: {'; '.join((alarm.text, *more))}"]
        yield f"{_time()}  ALARM {alarm.kind}: {alarm.text}"
        yield from (f"  {line}" for line in more)
        yield from self.outlet.pass_on(alarm, more, may_act=self.log.question is None)

    def _ask(self) -> Iterator[str]:
        """Say once that it is in question which losses are those of the training, and what waits for the answer."""
        question = self.log.question
        if question is not None and not self._has_asked:
            self._has_asked = True
            yield f"caution: {question}; until --loss NAME says which counts, no --run and no --exit-on acts"

    def _argued(self, alarm: Alarm) -> list[str]:
        """What the log says of the cause so far; the shape of a spike is known only when it is over."""
        if alarm.kind not in ("spike", "lost", "nan"):
            return []
        log = self.run.log(self.log.name, self.options.columns)
        runs = None if self.beside is None else self.beside.runs
        why = explain_log(Replayed(log, self.run.record, self.run.result(self.log.name)), runs)
        said = [] if self.beside is None else self.beside.saved(alarm, None if why is None else why.checkpoint)
        if why is None:
            return said
        if alarm.kind == "spike":
            return [*why.measured, *said]
        does = [] if runs is not None and runs.remedy is not None else [f"do: {why.actions[0].what}"]
        return [f"likely: {why.likely}", *why.measured, *said, *does]

    def _place(self, beside: Beside) -> Iterator[str]:
        if place := beside.news(self.run.lr, self.run.last_step):
            self._place_lines = [*place.lines]
            self.outlet.write("place", {"sweep": beside.name, **to_plain(place)})
            yield from place.lines

    def _show(self, *, at_once: bool) -> None:
        if self.page is not None:
            self.page.show(self._shown, at_once=at_once)

    def _shown(self) -> WatchedRun:
        from orchestrator.pages.watch_page import WatchedRun

        log = self.run.log(self.log.name, self.options.columns)
        curves = {"loss": log.loss_N, "gradient norm": log.grad_norm_N, "learning rate": log.lr_N}
        lines = [self._report().line(), self.log.note, *self._place_lines]
        spans = [(episode.onset_step, episode.recovery_step) for episode in self.run.record.episodes]
        there = {name: values.copy() for name, values in curves.items() if values is not None and len(values)}
        return WatchedRun(lines, self._raised, log.step_N.copy(), there, spans)

    def _is_complete(self) -> bool:
        steps, last = self.options.steps, self.run.last_step
        if steps is None or last is None:
            return False
        if last >= steps - (self.run.first_step == 0) or last + (self.run.every or 0) > steps:
            return True
        return self._may_be_last and self.clock.now() - self._grown_at >= self._patience_s

    @property
    def _may_be_last(self) -> bool:
        """Whether only a line after the last step could follow, which trainers that count from 0 rarely write.

        A log that begins later may be of such a one.
        """
        steps, last, every = self.options.steps, self.run.last_step, self.run.every
        if steps is None or last is None or every is None:
            return False
        first = self.run.first_step or 0
        return (first == 0 or first > every) and last + every >= steps

    @property
    def _patience_s(self) -> float:
        """How long a last line is waited for: twice as long as the lines before it took."""
        return max(self.options.every_s, 2 * (self.run.every or 0) / (self.reporter.steps_per_s or math.inf))

    def _end(self, why: str) -> Iterator[str]:
        """Say how the run fares as a replay of the whole log would, and deliver what is waiting."""
        record, result = self.run.conclude(self.log.name)
        onset = result.onset_step
        self.outlet.send_due(self._report(), is_last=True)
        yield from self.outlet.finish()
        self.outlet.write(
            "end",
            {
                "why": why,
                "outcome": result.outcome,
                "onset_step": onset,
                "reason": result.reason,
                "episodes": [(episode.onset_step, episode.recovery_step) for episode in record.episodes],
            },
        )
        from_step = "" if onset is None else f" from step {onset:,}"
        yield f"ended ({why}): {result.outcome}{from_step}: {result.reason}"
        if result.outcome not in ("stable", "unknown") and self.has_past:
            yield f"`sweep replay {self.log.name}` says more of its cause, and what to do"


def _time() -> str:
    return datetime.datetime.now().strftime("%H:%M:%S")
