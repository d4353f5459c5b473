"""Observers of a run, and executors that lose or end their packs."""

from collections.abc import Callable
from typing import Any

from orchestrator.base.packs import Ending, PackLost, PackStarted, Report
from orchestrator.executors.inline import InlineExecutor


class Observer:
    """Does something at every change of a run, with its progress and the trials that finished."""

    def __init__(self, changed: Callable[[Any, Any], None]) -> None:
        self.changed = changed

    def began(self, progress: Any) -> None: ...

    def ended(self, progress: Any) -> None: ...


class Dying(InlineExecutor):
    """Loses the first ``deaths`` packs right after a report, or after a checkpoint."""

    def __init__(self, deaths: int, *, after_checkpoint: bool = False) -> None:
        super().__init__()
        self.deaths, self.after_checkpoint = deaths, after_checkpoint

    def poll(self, timeout_s: float):
        events = super().poll(timeout_s)
        reports = [event for event in events if isinstance(event, Report)]
        if not self.deaths or not any(report.checkpoint or not self.after_checkpoint for report in reports):
            return events
        self.deaths -= 1
        self._reports = None
        return [*(events if self.after_checkpoint else []), PackLost(events[0].pack_id, "it was killed")]


class EndsPacks(InlineExecutor):
    """Ends the first packs in place of their first report, each with the next of ``endings``."""

    def __init__(self, *endings: Ending) -> None:
        super().__init__()
        self.endings = [*endings]

    def poll(self, timeout_s: float):
        events = super().poll(timeout_s)
        if not self.endings or not events or isinstance(events[0], PackStarted):
            return events
        self._reports = None
        return [Report(events[0].pack_id, 0, 0, 0.1, ending=self.endings.pop(0), at_a_time=6)]
