"""The loop of a run: propose, pack, dispatch, record, stop. Independent of Ray, MLflow and the terminal."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.base.errors import StorageError
from orchestrator.base.files import (
    FROZEN_SWEEP,
    LEDGER,
    check_in_place,
    remove,
    sweep_lock,
    unneeded_checkpoints,
    withdraw_jobs,
    write_if_changed,
)
from orchestrator.base.packs import (
    Completed,
    Ending,
    Event,
    Failed,
    LaunchedPack,
    Lost,
    OutOfMemory,
    Pack,
    PackLost,
    PackStarted,
    Paused,
    Refused,
    Report,
    StackedPack,
    cause_of,
    last_line,
)
from orchestrator.base.processes import inherited
from orchestrator.base.states import write_files
from orchestrator.base.trial_result import MemberResult
from orchestrator.driver import packing
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import dispatched, make_packs, pack_of, plan_text, resumed_pack, trials_at_a_time
from orchestrator.driver.planning import Proposer, missing_trials, read_only_counts
from orchestrator.driver.progress import PAUSE_S, Budget, FailFast, Observer, Progress, Summary, stop_signals
from orchestrator.executors import Executor
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.spec import Sweep

MAX_LOSSES = 3  # of a trial without progress in between, after which it is given up
_POLL_S = 0.25
_OUT_OF_MEMORY_REMEDY = "lower batch_size, context or width, or --pack"


def run_sweep(
    sweep: Sweep,
    folder: Path,
    make_executor: Callable[[], Executor],
    observers: Sequence[Observer] = (),
    *,
    retry_errored: bool = False,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> Summary:
    """Train the missing trials of ``sweep`` and record them in the ledger under ``folder``.

    A finished sweep starts no executor, and may be on a read-only disk. ``clock`` measures durations and ``wall_clock``
    dates records, in seconds. Raises InputError if another driver has the sweep, StorageError without room for results.
    """
    if (counts := read_only_counts(sweep, folder, retry_errored=retry_errored)) is not None:
        return Summary(counts, 0, 0.0, None)
    with sweep_lock(folder), inherited(sweep.receiver, None), LedgerWriter(folder / LEDGER, clock=wall_clock) as ledger:
        write_if_changed(folder / FROZEN_SWEEP, sweep.text)
        sweep = packing.with_numerics(sweep, ledger)
        proposer = Proposer(sweep, ledger)
        ledger.plan(sweep.objective.name, list(proposer.trials.values()), driver_facts(sweep))
        ledger.release_abandoned()
        withdraw_jobs(folder)
        if retry_errored:
            ledger.release_errored()
        return _Run(sweep, folder, ledger, proposer, observers, clock, wall_clock).train(make_executor)


class _Run:
    """One run of one driver over one sweep."""

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        ledger: LedgerWriter,
        proposer: Proposer,
        observers: Sequence[Observer],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.sweep, self.folder, self.ledger, self.observers = sweep, folder, ledger, observers
        self.proposer, self.clock = proposer, clock
        self.packs, self.queued = dict[str, Pack](), list[Pack]()
        self.started, self.progressed = set[str](), set[str]()
        self.resumed_from, self.last_news = dict[str, str](), dict[str, float]()
        self.losses, self.furthest = Counter[str](), Counter[str]()
        self.budget = Budget(sweep.budget, sweep.resources.gpus, ledger, wall_clock)
        self.fail_fast = FailFast()
        self.over_when_asked: int | None = None  # number of finished trials when the search last had too few proposals
        statuses = ledger.statuses()
        self.waiting = self.budget.affordable(missing_trials(proposer.trials.values(), statuses))
        self.progress = Progress(
            sweep,
            proposer.trials,
            {trial_id: status for trial_id, (status, _) in statuses.items()},
            ledger.endings(),
            len(self.waiting),
            clock,
            clock(),
        )

    def train(self, make_executor: Callable[[], Executor]) -> Summary:
        if note := packing.compile_note(self.sweep):
            self._note(note)
        if self._is_used_up():
            self.waiting.clear()
            self.progress.to_train = 0
        if self.waiting:
            executor = make_executor()
            try:
                # After the executor has started: it may install signal handlers of its own.
                with stop_signals(self._request_stop):
                    self._loop(executor)
            finally:
                executor.close()
        progress = self.progress
        return Summary(progress.counts, progress.to_train, progress.seconds, progress.stopped_by, self.budget.used_up)

    def _loop(self, executor: Executor) -> None:
        progress = self.progress
        progress.workers, progress.started = executor.slots, self.clock()
        for observer in self.observers:
            observer.began(progress)
        try:
            for pack_id, trial_ids in self.ledger.resumable().items():
                self._resume(pack_id, [trial_id for trial_id in trial_ids if trial_id in self.waiting])
            while progress.stopped_by is None and not self._is_used_up():
                progress.workers = executor.slots
                self._ask_for_more(executor)
                if self.waiting:
                    self.queued += make_packs(self.sweep, list(self.waiting.values()), executor.slots)
                    self.waiting.clear()
                # Packs already running continue: if one of them trains after all, the others are started too.
                max_packs = executor.slots + packing.lookahead(self.sweep)
                while self.queued and self.fail_fast.reason is None and len(self.packs) < max_packs:
                    self._submit(self.queued.pop(0), executor)
                if not self.packs:
                    return
                self._poll(executor)
            self._pause(executor)
        except Exception as error:
            progress.error = error
            raise
        finally:
            # If this cannot be written now, the next run marks the trials as abandoned.
            with contextlib.suppress(StorageError):
                self._release_running()
                progress.compare(self.ledger)
            for observer in self.observers:
                observer.ended(progress)

    def _ask_for_more(self, executor: Executor) -> None:
        """Ask an open search for trials if a whole pack fits, or if nothing else is running."""
        progress, is_closed = self.progress, not self.sweep.is_open or self.fail_fast.reason is not None
        if is_closed or (over := progress.num_over) == self.over_when_asked:
            return
        width, at_a_time = trials_at_a_time(self.sweep, executor.slots)
        under_way = len(progress.statuses) - over
        if under_way and at_a_time - under_way < width:
            return
        new = self.proposer.more(at_a_time - under_way)
        self.ledger.propose(self.sweep.objective.name, new)
        # A waiting search is asked again after the next result.
        self.over_when_asked = over if len(new) < width else None
        self._set_status([trial.trial_id for trial in new], "planned")
        affordable = self.budget.affordable(new)
        progress.to_train += len(affordable)
        self.waiting |= affordable

    def _is_used_up(self) -> bool:
        return self.budget.is_used_up(self.progress, len(self.started.intersection(self.packs)))

    def _submit(self, pack: Pack, executor: Executor) -> None:
        executor.submit(pack := dispatched(pack, self.sweep, self.folder, self.ledger))
        if isinstance(pack, StackedPack) and pack.resume is not None:
            # The executor has the checkpoint now; the driver keeps only the steps in it.
            pack = replace(pack, resume=replace(pack.resume, content=b""))
        self.packs[pack.pack_id] = pack

    def _poll(self, executor: Executor) -> None:
        """Handle new events, and notify the observers."""
        events = executor.poll(_POLL_S)
        check_in_place(self.folder)
        finished = self._take_in(events, executor) if events else []
        for observer in self.observers:
            observer.changed(self.progress, finished)
        self._kill_hung(executor)

    def _take_in(self, events: Sequence[Event], executor: Executor) -> list[MemberResult]:
        with self.ledger.together():
            finished = [new for event in events for new in self._handle(event, executor)]
        self._tidy_checkpoints()  # once no record names them
        return finished

    def _pause(self, executor: Executor) -> None:
        """Let running packs write a checkpoint, within PAUSE_S."""
        executor.pause()
        deadline = self.clock() + PAUSE_S
        while not self.started.isdisjoint(self.packs) and self.clock() < deadline:
            self._poll(executor)

    def _handle(self, event: Event, executor: Executor) -> Sequence[MemberResult]:
        pack = self.packs.get(event.pack_id)
        if pack is None:
            return ()  # from an attempt that was given up; its trials belong to another attempt now
        self.last_news[pack.pack_id] = self.clock()
        if isinstance(event, PackStarted):
            self.started.add(pack.pack_id)
            self.ledger.start_pack(pack, executor.name, self.resumed_from.get(pack.pack_id))
            self._set_status(pack.trained_ids, "running")
            return ()
        if isinstance(event, PackLost):
            self._close(pack, Lost(event.reason))
            return ()
        return self._take(pack, event)

    def _take(self, pack: Pack, report: Report) -> Sequence[MemberResult]:
        progress = self.progress
        new = [finished for finished in report.finished if progress.statuses[finished.trial_id] != "finished"]
        saved = write_files(self.folder, report, self.sweep.keep.last if self.sweep.keep is not None else None)
        self.ledger.record(report, saved)
        if saved is not None or new or self._is_further(pack, report):
            self.progressed.add(pack.pack_id)
        before = progress.running.get(pack.pack_id)
        # A restarted pack counts from an earlier position; no step is subtracted.
        progress.member_steps += max(0, report.member_steps - (before.member_steps if before else 0))
        if progress.steps_began is None and progress.member_steps:
            progress.steps_began = (self.clock(), progress.member_steps)
        if report.member_steps or new:
            self.fail_fast.trained()
            progress.held_back = None
        progress.running[pack.pack_id] = replace(report, traces={}, checkpoint=None, states=())  # they are on disk
        if plan_reason := report.environment.get("way"):
            self._note(plan_text(self.sweep, pack, plan_reason))
        for finished in new:
            progress.statuses[finished.trial_id] = "finished"
            progress.outcomes[finished.trial_id] = finished.outcome
            progress.saved_steps += max(0, pack.steps - (finished.steps_done or 0))
        if report.ending is not None:
            self._close(pack, report.ending)
        return new

    def _is_further(self, pack: Pack, report: Report) -> bool:
        """Whether a custom trainer with its own checkpoints is further than any earlier attempt."""
        if not isinstance(pack, LaunchedPack) or pack.launch.checkpoint is None:
            return False
        (trial_id,) = pack.trial_ids
        before, self.furthest[trial_id] = self.furthest[trial_id], max(self.furthest[trial_id], report.member_steps)
        return report.member_steps > before

    def _close(self, pack: Pack, ending: Ending) -> None:
        """Settle a pack that has ended: its entry in the ledger and the status of its unfinished trials."""
        self.progress.num_hung += isinstance(ending, Lost | Failed) and ending.is_hung
        match ending:
            case Completed():
                # A worker that forgets a member would be a bug of sweep, and must not look like a result.
                self._settle(pack, "done", "errored", "the worker ended without its result")
            case Paused(reason, goes_on):
                unfinished = self._settle(pack, "interrupted", "interrupted", reason)
                if goes_on and self.progress.stopped_by is None:
                    self._set_status(unfinished, "planned")
                    self._resume(pack.pack_id, unfinished) or self._queue(unfinished)
            case Lost(error):
                self._lose(pack, last_line(error))
            case Refused(error):
                self._note(f"warning: {cause_of(error)}")
                self.ledger.drop_newest_checkpoint(pack.pack_id)
                self._lose(pack, cause_of(error))
            case OutOfMemory(error, at_a_time) if at_a_time > 1 and len(self._unfinished(pack)) > 1:
                self._note(f"out of memory with {at_a_time} members at a time: tried again with half as many")
                self._halve(pack, self._settle(pack, "lost", "lost", f"out of memory: {cause_of(error)}"), at_a_time)
            case OutOfMemory(error, _, waited):
                cause = f"out of memory with one member: {cause_of(error)} ({_OUT_OF_MEMORY_REMEDY})"
                self._settle(pack, "errored", "errored", cause, error, waited)
            case Failed(error, waited):
                if self.fail_fast.failed(cause_of(error)):
                    self.progress.held_back = self.fail_fast.reason
                    self._note(f"{self.fail_fast.reason}: {cause_of(error)}; the same command goes on with the others")
                self._settle(pack, "errored", "errored", cause_of(error), error, waited)

    def _settle(
        self, pack: Pack, ended: str, status: str, reason: str, error: str | None = None, waited: Collection[str] = ()
    ) -> list[str]:
        """Record that a pack ``ended``, pack trials that ``waited`` again, and return its unfinished trials.

        The unfinished trials get ``status``.
        """
        self.ledger.end_pack(pack.pack_id, ended, status, reason, error, waited)
        self.packs.pop(pack.pack_id, None)
        self.progress.running.pop(pack.pack_id, None)
        unfinished = self._unfinished(pack)
        self._set_status(unfinished, status)
        self._set_status(waited, "planned")
        self._queue(waited)
        return unfinished

    def _lose(self, pack: Pack, reason: str) -> None:
        """Handle a pack whose process died: its members resume from their checkpoint, up to MAX_LOSSES times.

        A pack that is lost twice without progress in between may be too large for the machine, and is halved.
        """
        last = self.progress.running.get(pack.pack_id)
        lost = self._settle(pack, "lost", "lost", reason)
        if pack.pack_id in self.progressed:
            for trial_id in lost:
                self.losses[trial_id] = 0
        self.losses.update(lost)
        num_losses = max((self.losses[trial_id] for trial_id in lost), default=0)
        if num_losses >= 2 and len(lost) > 1:
            self._halve(pack, lost, last.at_a_time if last is not None else len(lost))
        elif num_losses >= MAX_LOSSES:
            self.ledger.give_up(
                lost, f"lost {num_losses} times, last because {reason} (if memory ran out: {_OUT_OF_MEMORY_REMEDY})"
            )
            self._set_status(lost, "errored")
        elif lost and not self._resume(pack.pack_id, lost):
            self._queue(lost)

    def _halve(self, pack: Pack, lost: Sequence[str], at_a_time: int) -> None:
        """Retry the unfinished members in two packs, each training half as many at a time."""
        width = max(1, at_a_time // 2)
        for half in (lost[::2], lost[1::2]):
            if len(half) == 1:
                self.losses[half[0]] = 0  # larger packs may have been lost for another trial's fault
            if half and not self._resume(pack.pack_id, half, width):
                members = [member for member in pack.members if member.trial_id in half]
                self.queued.insert(0, pack_of(self.sweep, members, width))

    def _resume(self, pack_id: str, trial_ids: Sequence[str], width: int | None = None) -> bool:
        """Queue a pack that resumes ``trial_ids`` from the checkpoint of ``pack_id``; returns False without one."""
        if not trial_ids:
            return False
        pack, problems = resumed_pack(self.sweep, self.ledger, self.folder, pack_id, trial_ids, width)
        for problem in problems:
            self._note(f"warning: {problem}")
        if pack is None:
            return False
        self.resumed_from[pack.pack_id] = pack_id
        self.queued.insert(0, pack)
        for trial_id in trial_ids:
            self.waiting.pop(trial_id, None)
        return True

    def _queue(self, trial_ids: Collection[str]) -> None:
        """Queue trials to be packed again."""
        self.waiting.update({trial_id: self.proposer.trials[trial_id] for trial_id in trial_ids})

    def _kill_hung(self, executor: Executor) -> None:
        """Kill packs whose heartbeat is too old, and treat them as lost."""
        timeout_s = self.sweep.resources.stall_timeout_s
        for pack_id in self.started.intersection(self.packs):
            if self.clock() - self.last_news[pack_id] > timeout_s:
                executor.kill(pack_id)
                cause = f"no news for {timeout_s:g} s (resources.stall_timeout_s)"
                self._close(self.packs[pack_id], Lost(cause, is_hung=True))

    def _unfinished(self, pack: Pack) -> list[str]:
        return [trial_id for trial_id in pack.trained_ids if self.progress.statuses[trial_id] != "finished"]

    def _release_running(self) -> None:
        """Mark running trials as interrupted; waiting ones keep their status."""
        for pack in list(self.packs.values()):
            if pack.pack_id in self.started:
                self._close(pack, Paused())
        self._tidy_checkpoints()

    def _tidy_checkpoints(self) -> None:
        remove(unneeded_checkpoints(self.folder, self.ledger.checkpoint_names()))

    def _note(self, text: str) -> None:
        if text not in self.progress.notes:
            self.progress.notes.append(text)

    def _set_status(self, trial_ids: Iterable[str], status: str) -> None:
        for trial_id in trial_ids:
            self.progress.statuses[trial_id] = status

    def _request_stop(self, signal_number: int) -> None:
        if self.progress.stopped_by is not None:
            raise KeyboardInterrupt  # the second signal stops at once
        self.progress.stopped_by = signal_number
