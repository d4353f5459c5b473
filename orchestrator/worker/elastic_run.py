"""Run a trial of a custom trainer that goes on from its own checkpoint with as many processes as find a place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from objectives.base import RankLost
from orchestrator.base.errors import StorageError
from orchestrator.base.files import atomic_write, storage_errors
from orchestrator.base.packs import MORE_PLACES, LaunchedPack, Lost, Paused, Report
from orchestrator.base.resizes import Resize, facts_of, in_curve
from orchestrator.sweepfile.custom_trainer import sized
from orchestrator.worker.custom_run import CustomRun
from orchestrator.worker.launcher import Launcher
from orchestrator.worker.trainer_checkpoints import changed_at

_SECONDS_PER_LOOK = 5.0  # for places, which may ask a cluster
Stamp = tuple[str | None, float]  # a checkpoint, and when it was changed


def with_workers(pack: LaunchedPack, workers: int) -> LaunchedPack:
    """Return the pack of an elastic trial with its number of ``workers``, and the batch that holds with them."""
    (member,) = pack.members
    member = replace(member, config=sized(member.config, workers))
    return replace(pack, members=(member,), launch=replace(pack.launch, workers=workers))


class ElasticRun(CustomRun):
    """A trial whose number of processes is chosen at each start; it ends to go on when more have places."""

    def __init__(self, pack: LaunchedPack, launcher: Launcher | None) -> None:
        super().__init__(pack, launcher)
        self._filled: Callable[[str], str] | None = None
        self._known: Stamp = (None, 0.0)  # the newest checkpoint
        self._known_at: int | None = None  # the last step when it was seen first; None once places were looked for
        self._looked_at = -_SECONDS_PER_LOOK
        self._grows = False

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """Yield reports as any trial, after the choice of its number of processes."""
        try:
            size = self.launcher.fit(self.launch.sizes, self.pack.cpus)
        except RankLost as error:
            yield self.report(started, Lost(str(error)))
            return
        self.pack = with_workers(self.pack, size)
        self.launch, (self.member,) = self.pack.launch, self.pack.members
        for report in super().reports(started, lambda: wants_pause() or self._can_grow()):
            is_paused = isinstance(report.ending, Paused)
            yield replace(report, ending=MORE_PLACES) if is_paused and self._grows else report

    def _start(self) -> None:
        super()._start()
        self._known = self._newest()
        self.environment = {**self.environment, "workers": str(self.launch.workers), **self._restarts()}

    def _resume(self, filled: Callable[[str], str]) -> bool:
        self._filled = filled
        return super()._resume(filled)

    def _restarts(self) -> dict[str, str]:
        """Return the fact of all restarts that the curve has, and keep them for the next one."""
        size, first, restarts = self.launch.workers, self.launch.workers, list[Resize]()
        if self.curve.last_step is not None:
            first, known = self._read_restarts()
            restarts = in_curve(known, self.curve.steps_done)
            before = restarts[-1].after if restarts else first
            restarts.append(Resize(self.member.trial_id, self.curve.steps_done, before, size))
        numbers = {"workers": first, "restarts": [asdict(restart) for restart in restarts]}
        atomic_write(self.folder.workers, json.dumps(numbers))
        return facts_of(restarts)

    def _read_restarts(self) -> tuple[int, list[Resize]]:
        """Return the number of processes that the trial began with, and its restarts. Raises StorageError."""
        with storage_errors(self.folder.workers):
            text = self.folder.workers.read_text()
        try:
            numbers = json.loads(text)
            return int(numbers["workers"]), [Resize(**restart) for restart in numbers["restarts"]]
        except (ValueError, LookupError, TypeError) as error:
            raise StorageError(f"{self.folder.workers}: is damaged: {error}") from None

    def _can_grow(self) -> bool:
        """Whether a larger number of processes has places; looked for after each checkpoint, as a restart costs time.

        A checkpoint is complete once the trainer has printed another loss.
        """
        newest = self._newest()
        if newest != self._known:
            self._known, self._known_at = newest, self.curve.last_step
        larger = next((size for size in self.launch.sizes if size > self.launch.workers), None)
        is_complete = self._known_at is not None and self.curve.last_step != self._known_at
        now = time.monotonic()
        if larger is None or not is_complete or self._is_complete or now - self._looked_at < _SECONDS_PER_LOOK:
            return False
        self._looked_at, self._known_at = now, None
        self._grows = self.launcher.has_room(larger, self.pack.cpus)
        return self._grows

    def _newest(self) -> Stamp:
        """Return the trainer's newest checkpoint, and when it was changed."""
        path = self._checkpoint(self._filled) if self._filled is not None else None
        return path, 0.0 if path is None else changed_at(path)
