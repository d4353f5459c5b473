"""Run a fork of a custom trainer's trial, or its control, whose checkpoints the forks need."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.packs import Completed, LaunchedPack, Paused, Report
from orchestrator.sweepfile.forked_values import (
    CHECKPOINTS_FOR,
    INTERVENTIONS,
    fork_step,
    forked_values,
    is_of_fork,
    without_fork,
)
from orchestrator.worker.custom_run import CustomRun
from orchestrator.worker.kept_checkpoints import KEPT, Keeper, drop_trainer_files, restore_files, restore_fork
from orchestrator.worker.launcher import CannotStart, LocalLauncher, RankLauncher, SharedLauncher
from orchestrator.worker.trial_folder import TrialFolder

_PROBE = "probe"


def launched_run(pack: LaunchedPack, launcher: RankLauncher | None) -> CustomRun:
    """Return the run of one trial of a custom trainer: plain, or in a sweep of forks a fork or their control."""
    (member,) = pack.members
    if not is_of_fork(member.config):
        return CustomRun(pack, launcher)
    return ForkRun(pack, launcher) if member.config[INTERVENTIONS] else ControlRun(pack, launcher)


class ForkRun(CustomRun):
    """A trial that continues from a checkpoint of its control with other values."""

    skips_existing = True

    def __init__(self, pack: LaunchedPack, launcher: RankLauncher | None) -> None:
        (member,) = pack.members
        self._changes: Sequence[Mapping[str, Any]] = member.config[INTERVENTIONS]
        super().__init__(with_values(pack, forked_values(without_fork(member.config), self._changes)), launcher)

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """Yield reports as any trial; with a result, remove its checkpoints, since there would be as many as forks."""
        for report in super().reports(started, wants_pause):
            if isinstance(report.ending, Completed):
                self._close_children()
                drop_trainer_files(self.folder)
            yield report

    def _resume(self, filled: Callable[[str], str]) -> bool:
        step = fork_step(self._changes)
        if step == 0:
            return super()._resume(filled)
        if self._checkpoint(filled) is None and not restore_fork(kept_in(self.launch.trials_folder), step, self.folder):
            raise CannotStart(f"the checkpoint of step {step}, where it forks, is missing")
        if not super()._resume(filled):
            raise CannotStart(f"the kept files have no checkpoint {filled(self.launch.checkpoint or '')}")
        return True

    def _close_children(self) -> None:
        for child in self._children:
            child.close()


class ControlRun(ForkRun):
    """The trial repeated without changes; it keeps the checkpoints that forks need."""

    skips_existing = False
    poll_s = 0.01  # a checkpoint may be replaced soon

    def __init__(self, pack: LaunchedPack, launcher: RankLauncher | None) -> None:
        super().__init__(pack, SharedLauncher(launcher or LocalLauncher(pack.launch.preload)))
        (member,) = pack.members
        wanted = [int(step) for step in member.config.get(CHECKPOINTS_FOR, ())]
        self._keeper = Keeper(kept_in(self.launch.trials_folder), self.folder, wanted)
        self._filled: Callable[[str], str] | None = None

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """Yield reports as any trial; before the last one, find the step where each checkpoint resumes."""
        for report in CustomRun.reports(self, started, wants_pause):
            if isinstance(report.ending, Completed):
                self._close_children()
                for _ in self._try_out():
                    yield self.report(started)
                    if wants_pause():
                        yield replace(report, finished=(), ending=Paused())
                        return
                drop_trainer_files(self.folder)
            yield report

    def _resume(self, filled: Callable[[str], str]) -> bool:
        self._filled = filled
        return CustomRun._resume(self, filled)

    def _poll(self) -> bool:
        news = super()._poll()
        if self._filled is not None and not self.is_over:
            newest = self._checkpoint(self._filled)
            self._keeper.update(newest, self.checkpoints(self._filled), self.curve.last_step)
        return news

    def _try_out(self) -> Iterator[None]:
        """Resume each checkpoint until it prints a step, yielding whenever a report is due."""
        resumes_at: dict[int, int | None] = {}
        problem = None
        while (candidate := self._keeper.next_to_try(resumes_at)) is not None:
            probe = Probe(self.pack, self.launcher, self._keeper.candidate_files(candidate))
            try:
                yield from probe.run()
            except CannotStart as error:
                probe.problem = str(error)
            finally:
                probe.end()
            resumes_at[candidate] = probe.first_step or None
            problem = probe.problem or problem
        self._keeper.settle({candidate: at for candidate, at in resumes_at.items() if at is not None}, problem)


class Probe(CustomRun):
    """A control that resumes from one of its checkpoints until it prints a step."""

    def __init__(self, pack: LaunchedPack, launcher: RankLauncher, files: Path) -> None:
        super().__init__(pack, launcher)
        self.folder = TrialFolder(files.with_name(_PROBE))
        restore_files(files, self.folder)
        self.problem: str | None = None

    @property
    def first_step(self) -> int | None:
        """The first step that it printed, 0 if it started over, or None if it printed none."""
        return self.curve.first_step

    def run(self) -> Iterator[None]:
        """Train until it prints a step, yielding whenever a report is due. Raises CannotStart."""
        self._start()
        began = last = time.monotonic()
        while self.first_step is None and not self._has_ended():
            self._poll()
            now = time.monotonic()
            if now - last >= self.launch.report_s:
                last = now
                yield
            if now - began > self.launch.silence_s:
                self.problem = f"it printed no loss for {self.launch.silence_s:g} s when it was resumed"
                return
        if self.first_step is None:
            self._take(self.source.finish(self._children[0]))
        codes = [child.returncode() for child in self._children]
        if self.first_step == 0:
            self.problem = "it counted from 0 again when it was resumed: steps must go on from the checkpoint"
        elif self.first_step is None and any(code not in (None, 0) for code in codes):
            self.problem = self._with_output("it failed when it was resumed from its checkpoint").strip()

    def end(self) -> None:
        """Leave no process running and no files."""
        for child in self._children:
            child.close()
        shutil.rmtree(self.folder.path, ignore_errors=True)

    def _resume(self, filled: Callable[[str], str]) -> bool:
        return self._checkpoint(filled) is not None


def with_values(pack: LaunchedPack, config: Mapping[str, Any]) -> LaunchedPack:
    """Return ``pack`` with the configuration that its trainer gets."""
    (member,) = pack.members
    return replace(pack, members=(replace(member, config=config),))


def kept_in(trials_folder: str) -> Path:
    """Return the folder of kept checkpoints, next to the folder of the trials."""
    return Path(trials_folder).parent / KEPT
