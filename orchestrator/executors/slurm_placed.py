"""A pack with a submitted job: what the driver has read of it so far, and what it reads next."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.errors import printable
from orchestrator.base.files import remove
from orchestrator.base.packs import LaunchedPack
from orchestrator.base.reports import Event, PackLost, PackStarted, Report
from orchestrator.executors.report_files import from_json
from orchestrator.executors.slurm_cluster import Job
from orchestrator.executors.slurm_job import MORE_MEMORY

_LAST_LINES = 3
_LAST_BYTES = 8192
# What slurmstepd says where the kernel, or Slurm itself, has killed processes of a job.
_OUT_OF_MEMORY = re.compile(r"oom[_-]kill|exceeded (job )?memory limit", re.IGNORECASE)
_REPORT = re.compile(r"(\d{4})-(\d{6})\.json")


@dataclass
class SubmittedPack:
    """A pack with a submitted job, until the job has ended."""

    pack: LaunchedPack
    job: Job
    attempt: int = 0
    next_report: int = 1
    is_started: bool = False
    is_forgotten: bool = False  # the driver has its last report, or has given up on it
    ended: float | None = None  # when the trial's processes were known to have ended, so that it may be retried
    last: Report | None = None
    over_since: float | None = None
    state: str = ""

    def read(self, reports: Path) -> Iterator[Event]:
        """New reports below ``reports``, in order; those of a superseded attempt are ignored.

        Ends with PackLost if a report is damaged.
        """
        folder = reports / self.pack.pack_id
        for name in sorted(names_in(folder)):
            match = _REPORT.fullmatch(name)
            if match is None:
                continue  # still being written
            attempt, number = map(int, match.groups())
            if number == 0:
                if attempt > self.attempt:
                    self.attempt, self.next_report = attempt, 1
                    yield PackStarted(self.pack.pack_id) if not self.is_started else self.sign_of_life()
                    self.is_started = True
            elif attempt < self.attempt:
                remove([folder / name])
            elif (attempt, number) == (self.attempt, self.next_report):
                try:
                    report = _report_in(folder / name, self.pack.pack_id)
                except ValueError as error:
                    yield PackLost(self.pack.pack_id, f"report {name} of its job is damaged: {error}")
                    return
                if report is None:
                    return
                remove([folder / name])
                self.next_report, self.last = number + 1, report
                yield report
                if report.ending is not None:
                    self.is_forgotten, self.ended = True, time.monotonic()
                    shutil.rmtree(folder, ignore_errors=True)
                    return

    def sign_of_life(self) -> Report:
        """A heartbeat for a pack that waits to be restarted."""
        steps, seconds = (self.last.member_steps, self.last.seconds) if self.last is not None else (0, 0.0)
        return Report(self.pack.pack_id, steps, 0, seconds)

    def held(self) -> PackLost:
        """The event for a job that Slurm holds, which would wait forever."""
        reason = self.state.partition(" ")[2]
        return PackLost(
            self.pack.pack_id, f"Slurm has stopped its job {self.job.job_id}, which it could not start: {reason}"
        )

    def lost(self) -> PackLost:
        """The event for a job that ended without a last report."""
        # If squeue no longer lists the job, this asks accounting for its state.
        state = self.job.state if self.state == "GONE" else self.state
        shown = state.split()[0] if state.strip() else "UNKNOWN"
        words = _last_words(self.job.paths.stderr)
        reason = f"its job {self.job.job_id} ended without a last report ({shown})"
        if words:
            reason += f": {words}"
        if shown == "OUT_OF_MEMORY" or _OUT_OF_MEMORY.search(words):
            reason += f"; {MORE_MEMORY}"
        return PackLost(self.pack.pack_id, reason)


def names_in(folder: Path) -> set[str]:
    """The files in ``folder`` now, including those that another machine has written."""
    with contextlib.suppress(OSError):
        folder.chmod(folder.stat().st_mode & 0o7777)  # makes an NFS client drop its cache
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _report_in(path: Path, pack_id: str) -> Report | None:
    """The report in a file; None if it cannot be read now. Raises ValueError for any other content."""
    try:
        text = path.read_bytes()
    except OSError:
        return None
    report = from_json(text)
    if report.pack_id != pack_id:
        raise ValueError(f"it belongs to pack {report.pack_id[:20]!r}")
    return report


def _last_words(log: Path) -> str:
    """The last lines of a job's standard error, joined."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return printable(" / ".join([line.strip()[:200] for line in lines if line.strip()][-_LAST_LINES:]))
