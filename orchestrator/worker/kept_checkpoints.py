"""The checkpoints of a custom trainer from which forks start: kept while it trains, each with the curve before it.

A checkpoint is complete when the trainer has printed a further loss since the file last changed. The step at which it
resumes is what the trainer prints first when it is resumed from there, so that is tried out once for each.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.files import atomic_write, make_folder, storage_errors
from orchestrator.worker.trial_folder import TrialFolder

KEPT = "kept"
_CANDIDATES, _FILES, _PAST = "candidates", "files", "past"
_ANSWERS = "steps.json"
_NEW = ".new"  # at the end of the name of a folder that is not complete yet
_BEFORE = 2  # candidates before a step that are tried out, and one after it: what was printed may be late
_LATER = 4  # times as late as the one before it a checkpoint may have been seen
_LATE = 1  # steps that the one before it counts as late at least: any look may miss a print

Stamp = tuple[str, int, int, int]  # path, files, bytes and time of the last change


@dataclass(frozen=True, slots=True)
class Answers:
    """For each fork step asked for, the step at which the nearest checkpoint resumes; None where there is none."""

    steps: Mapping[int, int | None]
    problem: str | None  # what went wrong when a checkpoint was tried out

    @classmethod
    def read(cls, kept: Path) -> Answers:
        """What is known in the folder ``kept``; nothing without a file."""
        try:
            found = json.loads((kept / _ANSWERS).read_text())
            return cls({int(step): at for step, at in found["steps"].items()}, found["problem"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls({}, None)


class Keeper:
    """Keeps the checkpoints of a trial in training that the ``wanted`` fork steps may need."""

    def __init__(self, kept: Path, trial: TrialFolder, wanted: Sequence[int]) -> None:
        self.kept, self._trial, self._wanted = kept, trial, [step for step in wanted if step > 0]
        self._seen: Stamp | None = None
        self._pending: int | None = None  # the last step that was printed when the new checkpoint was seen

    def look(self, checkpoint: str | None, others: Iterable[str], last_step: int | None) -> None:
        """Copy ``checkpoint``, the newest, if it is new and complete; not ``others``, which are older ones.

        ``last_step`` is the last that was printed. Raises StorageError.
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
        """The steps after which checkpoints were seen and kept, ascending."""
        folder = self.kept / _CANDIDATES
        return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())

    def candidate_files(self, candidate: int) -> Path:
        """The trainer's files of a candidate."""
        return self.kept / _CANDIDATES / str(candidate)

    def next_to_try(self, resumes_at: Mapping[int, int | None]) -> int | None:
        """The next candidate to resume, None when the nearest of each wanted step is known.

        ``resumes_at`` has the first step that each one printed which was tried, None for one that printed none. The
        one after a step is only tried where it may be the nearest, as what was printed before it was seen late.
        """
        candidates = self.candidates()
        for step in self._wanted:
            late: int | None = None
            for candidate in reversed([one for one in candidates if one < step]):
                if candidate not in resumes_at:
                    return candidate
                at = resumes_at[candidate]
                if at is not None and at <= step:
                    late = max(0, candidate + 1 - at)  # steps by which it was seen after it was written
                    break
            after = next((one for one in candidates if one >= step), None)
            if after is None or after in resumes_at:
                continue
            if late is None or after + 1 - _LATER * max(late, _LATE) <= step:
                return after
        return None

    def settle(self, resumes_at: Mapping[int, int], problem: str | None) -> None:
        """Keep the nearest checkpoint at or before each wanted step, and drop the others.

        ``resumes_at`` has the first step that each candidate printed which could be resumed. Raises StorageError.
        """
        known = Answers.read(self.kept)
        first = {at: candidate for candidate, at in sorted(resumes_at.items(), reverse=True)}
        found: dict[int, int | None] = {}
        for step in self._wanted:
            found[step] = max((at for at in first if at <= step), default=None)
        with storage_errors(self.kept):
            make_folder(self.kept)
            for at in sorted({at for at in found.values() if at is not None}):
                if not (self.kept / str(at)).is_dir():
                    self._keep(first[at], at)
        # What an earlier attempt has settled stays: it may have been killed before its result was recorded.
        steps = {str(step): at for step, at in sorted({**found, **known.steps}.items())}
        atomic_write(self.kept / _ANSWERS, json.dumps({"steps": steps, "problem": problem}, indent=1))
        shutil.rmtree(self.kept / _CANDIDATES, ignore_errors=True)

    def _copy(self, checkpoint: str, others: Iterable[str], stamp: Stamp, before: int) -> None:
        target = self.candidate_files(before)
        new = target.with_name(target.name + _NEW)
        with storage_errors(target):
            make_folder(target.parent)
            is_whole = _copy_files(self._trial, new, leave_out=set(others) - {checkpoint})
            if not is_whole or _stamp(checkpoint) != stamp:  # the trainer has written meanwhile
                shutil.rmtree(new, ignore_errors=True)
                return
            shutil.rmtree(target, ignore_errors=True)
            new.rename(target)
            still = needed(self.candidates(), self._wanted)
            for candidate in set(self.candidates()) - still:
                shutil.rmtree(self.candidate_files(candidate), ignore_errors=True)

    def _keep(self, candidate: int, at: int) -> None:
        """Move a candidate to its place, with the curve before the step ``at``."""
        new = self.kept / f"{at}{_NEW}"
        shutil.rmtree(new, ignore_errors=True)
        (new / _PAST).mkdir(parents=True)
        for file in _curve_files(self._trial):
            if rows := [row for row in _rows(file) if row["step"] < at]:
                (new / _PAST / file.name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self.candidate_files(candidate).rename(new / _FILES)
        new.rename(self.kept / str(at))


def needed(candidates: Iterable[int], wanted: Iterable[int]) -> set[int]:
    """The candidates that a wanted step may need: the last two before it, and the first one after."""
    ordered, found = sorted(candidates), set()
    for step in wanted:
        before = [one for one in ordered if one < step]
        found |= {*before[-_BEFORE:], *ordered[len(before) : len(before) + 1]}
    return found


def seed(kept: Path, step: int, trial: TrialFolder) -> bool:
    """Give the folder of a fork the checkpoint that resumes at ``step``, and the curve before it; false without one.

    What was in the folder is lost. Raises StorageError.
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


def seed_trial(files: Path, trial: TrialFolder) -> None:
    """Give the folder of a trial the files of a checkpoint, without a curve. Raises StorageError."""
    with storage_errors(trial.path):
        shutil.rmtree(trial.path, ignore_errors=True)
        shutil.copytree(files, trial.path, symlinks=True)


def drop_files_of_trainer(trial: TrialFolder) -> None:
    """Remove what the trainer has written, such as its checkpoints; its output and curve stay."""
    own = _own_files(trial)
    for path in trial.path.iterdir() if trial.path.is_dir() else ():
        if path.name not in own and not _is_output(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _copy_files(trial: TrialFolder, target: Path, leave_out: set[str]) -> bool:
    """Copy the trainer's files; false where one of them went away meanwhile."""
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
    return {path.name for path in (trial.settings, *_curve_files(trial))}


def _curve_files(trial: TrialFolder) -> tuple[Path, ...]:
    """The files that have a row for each step."""
    return trial.rows, trial.telemetry, trial.points, trial.readings


def _is_output(name: str) -> bool:
    return name.startswith("output.") and name.endswith("log")


def _stamp(checkpoint: str) -> Stamp | None:
    """What changes when a checkpoint, a file or a folder, is written; None where it is gone."""
    files = [checkpoint]
    if os.path.isdir(checkpoint):
        files = [os.path.join(folder, name) for folder, _, names in os.walk(checkpoint) for name in names]
    try:
        found = [os.stat(file) for file in files]
    except OSError:
        return None
    if not found:
        return None
    newest, size = max(one.st_mtime_ns for one in found), sum(one.st_size for one in found)
    return f"{checkpoint}:{found[0].st_ino}", len(found), size, newest


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a curve on disk, without lines that a crash cut off."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError):
            continue
        yield row
