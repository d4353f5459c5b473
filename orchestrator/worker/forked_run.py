"""Run a fork of a custom trainer's trial, or its control, which keeps checkpoints for the forks.

A checkpoint is kept with the curve before it. It is complete when the trainer has printed another loss since the file
last changed. It resumes at the first step that the trainer prints after starting from it, so each candidate is tried
once.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.base.files import atomic_write, make_folder, storage_errors
from orchestrator.base.packs import Completed, LaunchedPack, Paused, Report
from orchestrator.sweepfile.entries import (
    CHECKPOINTS_FOR,
    INTERVENTIONS,
    fork_step,
    forked_values,
    is_of_fork,
    without_fork,
)
from orchestrator.worker.custom_run import CustomRun
from orchestrator.worker.elastic_run import ElasticRun
from orchestrator.worker.launcher import CannotStart, Launcher
from orchestrator.worker.points import TrialFolder, step_rows

_PROBE = "probe"
KEPT = "kept"
_CANDIDATES, _FILES, _PAST = "candidates", "files", "past"
_STEPS_FILE = "steps.json"
_NEW = ".new"  # suffix of a folder that is not complete yet
_NUM_BEFORE = 2  # candidates before a step that are kept, besides one after it, since output may be read late
_LATE_FACTOR = 4  # a checkpoint may be seen this many times as late as the previous one
_MIN_LATE_STEPS = 1  # least lateness assumed, since any update may miss a print
Stamp = tuple[str, int, int, int]  # path, number of files, bytes, time of the last change


def launched_run(pack: LaunchedPack, launcher: Launcher | None) -> CustomRun:
    """Return the run of one trial of a custom trainer: plain, or in a sweep of forks a fork or their control."""
    (member,) = pack.members
    if not is_of_fork(member.config):
        return ElasticRun(pack, launcher) if pack.launch.sizes else CustomRun(pack, launcher)
    return ForkRun(pack, launcher) if member.config[INTERVENTIONS] else ControlRun(pack, launcher)


class ForkRun(CustomRun):
    """A trial that continues from a checkpoint of its control with other values."""

    skips_existing = True

    def __init__(self, pack: LaunchedPack, launcher: Launcher | None) -> None:
        (member,) = pack.members
        self._changes: Sequence[Mapping[str, Any]] = member.config[INTERVENTIONS]
        values = forked_values(without_fork(member.config), self._changes)
        super().__init__(replace(pack, members=(replace(member, config=values),)), launcher)

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


class ControlRun(ForkRun):
    """The trial repeated without changes; it keeps the checkpoints that forks need."""

    skips_existing = False
    poll_s = 0.01  # a checkpoint may be replaced soon

    def __init__(self, pack: LaunchedPack, launcher: Launcher | None) -> None:
        super().__init__(pack, launcher)
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

    def __init__(self, pack: LaunchedPack, launcher: Launcher, files: Path) -> None:
        super().__init__(pack, launcher)
        self.folder = TrialFolder(files.with_name(_PROBE))
        with storage_errors(self.folder.path):
            shutil.rmtree(self.folder.path, ignore_errors=True)
            shutil.copytree(files, self.folder.path, symlinks=True)
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
        self._close_children()
        shutil.rmtree(self.folder.path, ignore_errors=True)

    def _resume(self, filled: Callable[[str], str]) -> bool:
        return self._checkpoint(filled) is not None


def kept_in(trials_folder: str) -> Path:
    """Return the folder of kept checkpoints, next to the folder of the trials."""
    return Path(trials_folder).parent / KEPT


@dataclass(frozen=True, slots=True)
class ResumeSteps:
    """For each wanted fork step, where the nearest checkpoint resumes; None without a checkpoint."""

    steps: Mapping[int, int | None]
    problem: str | None  # what went wrong when a checkpoint was tried

    @classmethod
    def read(cls, kept: Path) -> ResumeSteps:
        """Read the steps known in the folder ``kept``; none without a file."""
        try:
            content = json.loads((kept / _STEPS_FILE).read_text())
            return cls({int(step): at for step, at in content["steps"].items()}, content["problem"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls({}, None)


class Keeper:
    """Keeps checkpoints of a running trial that the ``wanted`` fork steps may need."""

    def __init__(self, kept: Path, trial: TrialFolder, wanted: Sequence[int]) -> None:
        self.kept, self._trial, self._wanted = kept, trial, [step for step in wanted if step > 0]
        self._seen: Stamp | None = None
        self._pending: int | None = None  # the last printed step when the new checkpoint was seen

    def update(self, checkpoint: str | None, others: Iterable[str], last_step: int | None) -> None:
        """Copy the newest ``checkpoint`` if it is new and complete; ``others`` are older ones.

        ``last_step`` is the last printed step. Raises StorageError.
        """
        if checkpoint is None or last_step is None or not self._wanted:
            return
        stamp = _stamp(checkpoint)
        if stamp is None or stamp != self._seen:
            self._seen, self._pending = stamp, last_step if stamp is not None else None
        elif self._pending is not None and last_step > self._pending:
            before, self._pending = self._pending, None
            if before in needed([*self.candidates(), before], self._wanted):
                self._copy(checkpoint, others, stamp, before)

    def candidates(self) -> list[int]:
        """Steps after which checkpoints were seen and kept, ascending."""
        folder = self.kept / _CANDIDATES
        return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())

    def candidate_files(self, candidate: int) -> Path:
        """Return the folder of the trainer's files of a candidate."""
        return self.kept / _CANDIDATES / str(candidate)

    def next_to_try(self, resumes_at: Mapping[int, int | None]) -> int | None:
        """Return the next candidate to resume, or None if the nearest one of each wanted step is known.

        ``resumes_at`` has the first step printed by each tried candidate, None if it printed none. The candidate after
        a step is tried only if it may be the nearest one because output was read late.
        """
        candidates = self.candidates()
        for step in self._wanted:
            late: int | None = None
            for candidate in reversed([c for c in candidates if c < step]):
                if candidate not in resumes_at:
                    return candidate
                at = resumes_at[candidate]
                if at is not None and at <= step:
                    late = max(0, candidate + 1 - at)  # steps between its writing and its discovery
                    break
            after = next((c for c in candidates if c >= step), None)
            if after is None or after in resumes_at:
                continue
            if late is None or after + 1 - _LATE_FACTOR * max(late, _MIN_LATE_STEPS) <= step:
                return after
        return None

    def settle(self, resumes_at: Mapping[int, int], problem: str | None) -> None:
        """Keep the nearest checkpoint at or before each wanted step, and drop the others.

        ``resumes_at`` has the first step printed by each resumable candidate. Raises StorageError.
        """
        known = ResumeSteps.read(self.kept)
        first = {at: candidate for candidate, at in sorted(resumes_at.items(), reverse=True)}
        nearest = {step: max((at for at in first if at <= step), default=None) for step in self._wanted}
        with storage_errors(self.kept):
            make_folder(self.kept)
            for at in sorted({at for at in nearest.values() if at is not None}):
                if not (self.kept / str(at)).is_dir():
                    self._keep(first[at], at)
        # Steps settled by an earlier attempt stay: it may have been killed before its result was recorded.
        steps = {str(step): at for step, at in sorted({**nearest, **known.steps}.items())}
        atomic_write(self.kept / _STEPS_FILE, json.dumps({"steps": steps, "problem": problem}, indent=1))
        shutil.rmtree(self.kept / _CANDIDATES, ignore_errors=True)

    def _copy(self, checkpoint: str, others: Iterable[str], stamp: Stamp, before: int) -> None:
        target = self.candidate_files(before)
        new = target.with_name(target.name + _NEW)
        with storage_errors(target):
            make_folder(target.parent)
            is_whole = _copy_files(self._trial, new, leave_out=set(others) - {checkpoint})
            if not is_whole or _stamp(checkpoint) != stamp:  # the trainer has written in the meantime
                shutil.rmtree(new, ignore_errors=True)
                return
            shutil.rmtree(target, ignore_errors=True)
            new.rename(target)
            still = needed(self.candidates(), self._wanted)
            for candidate in set(self.candidates()) - still:
                shutil.rmtree(self.candidate_files(candidate), ignore_errors=True)

    def _keep(self, candidate: int, at: int) -> None:
        """Move a candidate to the folder of its step ``at``, with the curve before that step."""
        new = self.kept / f"{at}{_NEW}"
        shutil.rmtree(new, ignore_errors=True)
        (new / _PAST).mkdir(parents=True)
        for file in self._trial.curve_files:
            if rows := [row for row in step_rows(file) if row["step"] < at]:
                (new / _PAST / file.name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self.candidate_files(candidate).rename(new / _FILES)
        new.rename(self.kept / str(at))


def needed(candidates: Iterable[int], wanted: Iterable[int]) -> set[int]:
    """Return the candidates that wanted steps may need: the last two before each step, and the first one after it."""
    ordered, kept = sorted(candidates), set()
    for step in wanted:
        before = [candidate for candidate in ordered if candidate < step]
        kept |= {*before[-_NUM_BEFORE:], *ordered[len(before) : len(before) + 1]}
    return kept


def restore_fork(kept: Path, step: int, trial: TrialFolder) -> bool:
    """Replace a fork's folder with the checkpoint that resumes at ``step`` and the curve before it.

    Returns False without such a checkpoint. Raises StorageError.
    """
    source = kept / str(step)
    if not source.is_dir():
        return False
    new = trial.path.with_name(trial.path.name + _NEW)
    with storage_errors(trial.path):
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(source / _FILES, new, symlinks=True)
        shutil.copytree(source / _PAST, new, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(trial.path, ignore_errors=True)
        new.rename(trial.path)
    return True


def drop_trainer_files(trial: TrialFolder) -> None:
    """Remove files that the trainer has written, such as checkpoints; its output and curve stay."""
    own = _own_files(trial)
    for path in trial.path.iterdir() if trial.path.is_dir() else ():
        if path.name not in own and not _is_output(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _copy_files(trial: TrialFolder, target: Path, leave_out: set[str]) -> bool:
    """Copy the trainer's files; returns False if one of the files disappeared in the meantime."""
    own = _own_files(trial)

    def ignored(folder: str, names: list[str]) -> set[str]:
        is_top = Path(folder) == trial.path
        return {
            name
            for name in names
            if os.path.join(folder, name) in leave_out or (is_top and (name in own or _is_output(name)))
        }

    shutil.rmtree(target, ignore_errors=True)
    try:
        shutil.copytree(trial.path, target, symlinks=True, ignore=ignored)
    except shutil.Error as error:
        if all(os.path.lexists(source) for source, _, _ in error.args[0]):
            raise
        return False
    return True


def _own_files(trial: TrialFolder) -> set[str]:
    return {path.name for path in (trial.settings, trial.joules, *trial.curve_files)}


def _is_output(name: str) -> bool:
    return name.startswith("output.") and name.endswith("log")


def _stamp(checkpoint: str) -> Stamp | None:
    """Return values that change when a checkpoint, a file or folder, is written, or None if it is gone."""
    files = [checkpoint]
    if os.path.isdir(checkpoint):
        files = [os.path.join(folder, name) for folder, _, names in os.walk(checkpoint) for name in names]
    try:
        stats = [os.stat(file) for file in files]
    except OSError:
        return None
    if not stats:
        return None
    newest, size = max(stat.st_mtime_ns for stat in stats), sum(stat.st_size for stat in stats)
    return f"{checkpoint}:{stats[0].st_ino}", len(stats), size, newest
