"""Run a pack whose batches several processes share, one member at a time: rank 0 is the process of the pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from objectives.base import RankLost
from orchestrator.base.consumption import EnergyMeter
from orchestrator.base.environment import OWN_PYTHON
from orchestrator.base.packs import MORE_PLACES, Checkpoint, Ending, Failed, Lost, Report, StackedPack
from orchestrator.base.resizes import Resize
from orchestrator.worker.launcher import Launcher
from orchestrator.worker.members import Roster
from orchestrator.worker.own_verdict import how_failed, signal_from_outside
from orchestrator.worker.packed_run import Pace, PackedRun
from orchestrator.worker.points import Process
from orchestrator.worker.rank import READY, command_settings, interface_to

_POLL_S, _END_S = 0.02, 5.0
_NO_LOG = Path(os.devnull)  # the last lines of a process are kept in memory
_SHOWN_LINES = 20


class SharedRun(PackedRun):
    """A pack whose trials are trained by several processes each, which the ``launcher`` starts."""

    def __init__(self, pack: StackedPack, pace: Pace, launcher: Launcher | None) -> None:
        super().__init__(pack, pace)
        self.launcher = launcher or Launcher()
        self.energy = EnergyMeter(folder=_NO_LOG)  # of this process alone it would be a part of the trial's
        self._others: list[Process] = []
        self._ranks: Any = None  # once all are connected
        self._size, self._size_before = pack.workers, 0  # 0: this attempt resumes none
        self._may_look, self._grows = False, False

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """Yield reports as any pack; an elastic trial pauses to go on with more processes once they have places."""
        for report in super().reports(started, lambda: wants_pause() or self._can_grow()):
            yield replace(report, ending=MORE_PLACES) if self._grows and report.ending else report

    def _can_grow(self) -> bool:
        """Whether a larger number of processes has places; looked for once a checkpoint, as a restart costs time."""
        larger = next((size for size in self.pack.sizes if size > self._size), None)
        self._grows = self._may_look and larger is not None and self.launcher.has_room(larger, self.pack.cpus)
        self._may_look = False
        return self._grows

    def ending(self, error: RankLost) -> Ending:
        """Return how the pack ended when another process was lost, with the last lines that this one wrote."""
        deadline = time.monotonic() + _END_S
        while all(process.returncode() is None for process in self._others) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for rank, process in enumerate(self._others, 1):
            code = process.returncode()
            if code is None or code == 0:
                continue
            process.read()
            lines = process.last_lines()[-_SHOWN_LINES:]
            text = "\n".join([*lines, f"rank {rank} {how_failed(code, lines)}"])
            return Failed(text, self.waited) if signal_from_outside(code) is None else Lost(text)
        return Lost(f"another process of the trial cannot be reached: {error}")

    def report(self, started: float, ending: Ending | None = None, checkpoint: Checkpoint | None = None) -> Report:
        """Return everything since the last report."""
        for process in self._others:
            process.read()  # a full pipe would stop it
        self._may_look |= checkpoint is not None
        return super().report(started, ending, checkpoint)

    def close(self) -> None:
        """Leave no process running."""
        for process in self._others:
            process.close()  # they hold nothing that is not here
        if self._ranks is not None:
            self._ranks.close()
        self.launcher.close()
        super().close()

    def _start(self) -> Roster:
        if self.pack.sizes:
            self._size = self.launcher.fit(self.pack.sizes, self.pack.cpus)
        roster = super()._start()
        if self._size > 1:
            trainer: Any = self.trainer
            trainer.ranks = self._ranks = self._connect()
        self.environment = {**self.environment, "workers": str(self._size), **self._restart(roster)}
        return roster

    def _restart(self, roster: Roster) -> dict[str, str]:
        """Return the fact of an elastic trial that goes on in its middle; empty without one."""
        under_way = [member for member in roster.training if self.age_of[member]]
        if not self.pack.sizes or not self._size_before or not under_way:
            return {}
        (member,) = under_way  # one trains at a time
        return Resize(self.trial_ids[member], self.age_of[member], self._size_before, self._size).facts

    def _resume(self, roster: Roster, state: Mapping[str, Any], skipped: Collection[int]) -> None:
        self._size_before = state["workers"]
        super()._resume(roster, state, skipped)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "workers": self._size}

    def _connect(self) -> Any:
        """Start the other processes, and connect to them. Raises RankLost if one ends before it is ready."""
        import torch.distributed as dist

        from objectives.training.ranks import Ranks

        size = self._size
        own, *others = self.launcher.environments(size)
        port = int(own["MASTER_PORT"])
        store = dist.TCPStore(own["MASTER_ADDR"], port, size, is_master=True, wait_for_workers=False)
        command = [*OWN_PYTHON, "-m", "orchestrator.worker.rank", command_settings(self.pack, self.plan)]
        threads = {"OMP_NUM_THREADS": str(self.pack.cpus)}
        for rank, variables in enumerate(others, 1):
            self._others.append(self.launcher.start(rank, command, os.sep, {**threads, **variables}, _NO_LOG))
        while not store.check([f"{READY}{rank}" for rank in range(1, size)]):
            if any(process.returncode() is not None for process in self._others):
                raise RankLost("it ended before it was ready")
            for process in self._others:
                process.read()
            time.sleep(_POLL_S)
        with interface_to(own["MASTER_ADDR"]):
            return Ranks(store, 0, size)
