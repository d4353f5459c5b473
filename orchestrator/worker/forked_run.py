"""Runs a fork of a custom trainer's trial, or its control, whose checkpoints forks start from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.packs import LaunchedPack
from orchestrator.base.reports import Completed, Paused, Report
from orchestrator.sweepfile.forked_values import (
    CHECKPOINTS_FOR,
    INTERVENTIONS,
    fork_step,
    forked_values,
    is_of_fork,
    without_fork,
)
from orchestrator.worker.child import CannotStart
from orchestrator.worker.custom_run import CustomRun
from orchestrator.worker.kept_checkpoints import KEPT, Keeper, drop_files_of_trainer, seed, seed_trial
from orchestrator.worker.ranks import LocalLauncher, Process, RankLauncher
from orchestrator.worker.trial_folder import TrialFolder

_PROBE = "probe"


def launched_run(pack: LaunchedPack, launcher: RankLauncher | None) -> CustomRun:
    """The run of one trial of a custom trainer; in a sweep of forks that of a fork, or of their control."""
    (member,) = pack.members
    if not is_of_fork(member.config):
        return CustomRun(pack, launcher)
    return ForkRun(pack, launcher) if member.config[INTERVENTIONS] else ControlRun(pack, launcher)


class ForkRun(CustomRun):
    """A trial that goes on from a checkpoint of its control, with other values from there on."""

    skips_existing = True

    def __init__(self, pack: LaunchedPack, launcher: RankLauncher | None) -> None:
        (member,) = pack.members
        self._changes: Sequence[Mapping[str, Any]] = member.config[INTERVENTIONS]
        super().__init__(with_values(pack, forked_values(without_fork(member.config), self._changes)), launcher)

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """As of any trial. When it has its result its checkpoints go, of which there would be as many as forks."""
        for report in super().reports(started, wants_pause):
            if isinstance(report.ending, Completed):
                self._close_children()
                drop_files_of_trainer(self.folder)
            yield report

    def _go_on(self, filled: Callable[[str], str]) -> bool:
        step = fork_step(self._changes)
        if step == 0:
            return super()._go_on(filled)
        if self._checkpoint(filled) is None and not seed(kept_in(self.launch.trials_folder), step, self.folder):
            raise CannotStart(f"the checkpoint of step {step} is gone, from which it is forked")
        if not super()._go_on(filled):
            raise CannotStart(f"there is no checkpoint {filled(self.launch.checkpoint or '')} in what was kept")
        return True

    def _close_children(self) -> None:
        for child in self._children:
            child.close()


class ControlRun(ForkRun):
    """The trial once more, left alone; it keeps the checkpoints that forks at some steps need."""

    skips_existing = False
    seconds_per_look = 0.01  # the next checkpoint may replace one

    def __init__(self, pack: LaunchedPack, launcher: RankLauncher | None) -> None:
        super().__init__(pack, SharedLauncher(launcher or LocalLauncher(pack.launch.preload)))
        (member,) = pack.members
        wanted = [int(step) for step in member.config.get(CHECKPOINTS_FOR, ())]
        self._keeper = Keeper(kept_in(self.launch.trials_folder), self.folder, wanted)
        self._filled: Callable[[str], str] | None = None

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """As of any trial; before the last report it tries out at which steps its checkpoints resume."""
        for report in CustomRun.reports(self, started, wants_pause):
            if isinstance(report.ending, Completed):
                self._close_children()
                for _ in self._try_out():
                    yield self.report(started)
                    if wants_pause():
                        yield replace(report, finished=(), ending=Paused())
                        return
                drop_files_of_trainer(self.folder)
            yield report

    def _go_on(self, filled: Callable[[str], str]) -> bool:
        self._filled = filled
        return CustomRun._go_on(self, filled)

    def _look(self) -> bool:
        news = super()._look()
        if self._filled is not None and not self.is_over:
            newest = self._checkpoint(self._filled)
            self._keeper.look(newest, self.checkpoints(self._filled), self.curve.last_step)
        return news

    def _try_out(self) -> Iterator[None]:
        """Resume each checkpoint until it prints a step, yielding about as often as there should be reports."""
        found: dict[int, int | None] = {}
        problem = None
        while (candidate := self._keeper.next_to_try(found)) is not None:
            probe = Probe(self.pack, self.launcher, self._keeper.candidate_files(candidate))
            try:
                yield from probe.looks()
            except CannotStart as error:
                probe.problem = str(error)
            finally:
                probe.end()
            found[candidate] = probe.first_step or None
            problem = probe.problem or problem
        self._keeper.settle({candidate: at for candidate, at in found.items() if at is not None}, problem)


class Probe(CustomRun):
    """A control that is resumed from one of its checkpoints, until it prints a step."""

    def __init__(self, pack: LaunchedPack, launcher: RankLauncher, files: Path) -> None:
        super().__init__(pack, launcher)
        self.folder = TrialFolder(files.with_name(_PROBE))
        seed_trial(files, self.folder)
        self.problem: str | None = None

    @property
    def first_step(self) -> int | None:
        """The first step that it printed; None where it printed none, and 0 where it started again."""
        return self.curve.first_step

    def looks(self) -> Iterator[None]:
        """Train until there is a step, yielding about as often as there should be reports. Raises CannotStart."""
        self._start()
        began = last = time.monotonic()
        while self.first_step is None and not self._has_ended():
            self._look()
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
        """Leave no process running, and no file."""
        for child in self._children:
            child.close()
        shutil.rmtree(self.folder.path, ignore_errors=True)

    def _go_on(self, filled: Callable[[str], str]) -> bool:
        return self._checkpoint(filled) is not None


class SharedLauncher:
    """The places of a trial for several runs of it, one after the other."""

    def __init__(self, launcher: RankLauncher) -> None:
        self._launcher = launcher
        self._environments: list[dict[str, str]] | None = None

    def environments(self, workers: int) -> list[dict[str, str]]:
        """As the places say at the first call."""
        if self._environments is None:
            self._environments = self._launcher.environments(workers)
        return self._environments

    def start(
        self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path
    ) -> Process:
        """Start a process. Raises CannotStart."""
        return self._launcher.start(rank, command, folder, environment, log)

    def close(self) -> None:
        """Release the places."""
        self._launcher.close()


def with_values(pack: LaunchedPack, config: Mapping[str, Any]) -> LaunchedPack:
    """``pack`` with the configuration that its trainer gets."""
    (member,) = pack.members
    return replace(pack, members=(replace(member, config=config),))


def kept_in(trials_folder: str) -> Path:
    """Where the checkpoints are that forks start from, beside the folders of the trials."""
    return Path(trials_folder).parent / KEPT
