"""Train packs in this process, one after the other, for debugging and tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from orchestrator.base.packs import Event, Pack, PackLost, PackStarted, Report
from orchestrator.executors import INLINE
from orchestrator.worker.launcher import close_server
from orchestrator.worker.packed_run import Pace
from orchestrator.worker.run import run_pack


class InlineExecutor:
    """One pack at a time; each ``poll`` trains until the next report."""

    name = INLINE
    slots = 1

    def __init__(self, pace: Pace = Pace()) -> None:
        """Let packs report at ``pace``."""
        self._pace = pace
        self._queue: deque[Pack] = deque()
        self._pack_id = ""
        self._reports: Iterator[Report] | None = None
        self._is_pausing = False

    def submit(self, pack: Pack) -> None:
        """Queue ``pack``."""
        self._queue.append(pack)

    def poll(self, timeout_s: float) -> list[Event]:
        """Train until the next report and return it; empty if the queue is empty."""
        if self._reports is None:
            if not self._queue:
                return []
            pack = self._queue.popleft()
            self._pack_id, self._reports = pack.pack_id, run_pack(pack, lambda: self._is_pausing, pace=self._pace)
            return [PackStarted(pack.pack_id)]
        report = next(self._reports, None)
        if report is None or report.ending is not None:
            self._reports = None
        return [report if report is not None else PackLost(self._pack_id, "it ended without a last report")]

    def pause(self) -> None:
        """Drop the queue; the running pack ends at its next report."""
        self._queue.clear()
        self._is_pausing = True

    def kill(self, pack_id: str) -> None:
        """Do nothing: while a pack hangs, so does this process."""

    def close(self) -> None:
        """Drop everything."""
        self._queue.clear()
        self._reports = None
        close_server()
