"""The mirror to a tracker during training, without slowing it down."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.errors import SweepError
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import MemberResult
from orchestrator.ledger.reader import LedgerReader
from orchestrator.mirrors.mirror import PATIENCE_S, Mirror, is_current
from orchestrator.mirrors.tracker import Tracker, TrackingError, TrialAnswer, tracker_class
from orchestrator.sweepfile.sections import TrackingConfig

_LIVE_S = 3.0  # between two looks at trials that still train, if nothing else happens
_SHARE = 20.0  # times as long as a look takes


class BackgroundMirror:
    """Mirrors trials as they finish, in a thread, while workers train. An observer of the run.

    The first failure stops it for this run and is stored in ``failure``: an unreachable store costs one warning, and a
    later sync writes what is missing. The driver's thread never calls the store, so a store that hangs can be
    abandoned.
    """

    def __init__(
        self,
        folder: Path,
        tracking: TrackingConfig,
        tracker: type[Tracker] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """A mirror of the sweep in ``folder``; at the end it waits ``patience_s`` for a silent store."""
        self.folder, self.tracking = folder, tracking
        self._tracker, self._patience_s = tracker or tracker_class(), patience_s
        self.failure: TrackingError | None = None
        self._mirror: Mirror | None = None
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_ending = False
        self._patient_until = 0.0
        self._thread = threading.Thread(target=self._attempt, args=(self._work,), daemon=True, name="mirror")

    def start(self) -> None:
        """Start connecting: a tracker's first start may take seconds of a core."""
        self._thread.start()

    def began(self, progress: Any) -> None:
        """Nothing yet: there are no results."""

    def changed(self, progress: Any, finished: Sequence[MemberResult]) -> None:
        """Queue the new results."""
        for result in finished:
            self._waiting.put(result.trial_id)

    def ended(self, progress: Any) -> None:
        """Stop taking results; queued ones are written while workers and exports finish."""
        self._waiting.put(None)

    def is_current(self) -> bool:
        """Whether the store has everything that the ledger has."""
        return is_current(self.folder, self.tracking, self._tracker)

    def finish(self, artifacts: Sequence[Path], answers: Sequence[TrialAnswer] = ()) -> TrackingError | None:
        """Write everything that is missing and the parent run; returns the error, if any.

        A store that does not respond holds the caller for ``patience_s`` at most.
        """
        self._tracker.load()  # slow while others compute, which is not the store's fault
        self._is_ending = True
        self._patient_until = time.monotonic() + self._patience_s
        if self._thread.ident is not None:
            self._wait_for(self._thread)
        if self.failure is None:
            last = threading.Thread(
                target=self._attempt, args=(self._complete, artifacts, answers), daemon=True, name="mirror-end"
            )
            last.start()
            self._wait_for(last)
        return self.failure

    def _wait_for(self, thread: threading.Thread) -> None:
        """Wait until ``thread`` ends or the store has been silent, or slow, for too long."""
        while thread.is_alive() and time.monotonic() < self._patient_until:
            thread.join(0.1)
        if thread.is_alive():
            where = self._tracker.shown_store(self.folder, self.tracking)
            self.failure = TrackingError(f"{self._tracker.title} at {where}: does not answer, or too slowly")

    def _sign_of_life(self) -> None:
        # A response is worth a second: a store that needs longer for each of thousands of calls is abandoned too.
        self._patient_until = min(self._patient_until + 1.0, time.monotonic() + self._patience_s)

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run ``action``; on an error, store it and release the sweep's runs."""
        try:
            action(*arguments)
        except TrackingError as error:
            self.failure = error
        except (SweepError, OSError) as error:
            self.failure = TrackingError(f"{self._tracker.title}: {error}")
        if self.failure is not None and self._mirror is not None:
            self._mirror.close()

    def _new_mirror(self) -> Mirror:
        return Mirror(self.folder, self.tracking, self._sign_of_life, self._tracker, self._patience_s)

    def _work(self) -> None:
        _give_way()
        self._mirror = self._new_mirror()
        with LedgerReader(self.folder / LEDGER) as ledger:
            # Once the run waits for it, the rest is written by a thread with normal priority.
            pause_s = _LIVE_S
            while not self._is_ending:
                self._mirror.mirror_machine()
                try:
                    trial_id = self._waiting.get(timeout=pause_s)
                except queue.Empty:
                    began = time.monotonic()
                    self._mirror.mirror_running(ledger, lambda: self._is_ending or not self._waiting.empty())
                    pause_s = max(_LIVE_S, _SHARE * (time.monotonic() - began))
                    continue
                if trial_id is None:
                    return
                self._mirror.mirror_trials(ledger, [trial_id])

    def _complete(self, artifacts: Sequence[Path], answers: Sequence[TrialAnswer]) -> None:
        self._mirror = self._mirror or self._new_mirror()
        self._mirror.mirror_sweep(artifacts, answers)
        self._mirror.close()


def _give_way() -> None:
    """Lower this thread's priority below training; the remainder is written at the end."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux has thread priorities
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
