"""How the driver monitors jobs: of Slurm, or of submitit's local substitute for it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.processes import end_marked

_COMMAND_TIMEOUT_S = 60.0
_LOCAL_JOB = "SUBMITIT_LOCAL_JOB_ID"  # set by submitit for a local job's process and all its descendants
OVER = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT", "GONE"),
    *("FINISHED", "INTERRUPTED"),  # submitit's states for local jobs
}
# A job that has run before and waits for its next start.
WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}


class Job(Protocol):
    """The part of a submitit job that is used here."""

    job_id: str

    @property
    def state(self) -> str:
        """Its state, as named by Slurm, or by submitit for a local job."""

    @property
    def paths(self) -> Any:
        """Its files."""

    def done(self) -> bool:
        """Whether it has ended."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals and limits, in seconds."""

    looks_s: float  # between reads of reports
    checks_s: float  # between checks on jobs
    submissions_s: float
    reports_s: float
    late_s: float  # longest time for a file to become visible on another machine


SLURM_PACE = Pace(looks_s=2.0, checks_s=15.0, submissions_s=5.0, reports_s=10.0, late_s=40.0)
LOCAL_PACE = Pace(looks_s=0.1, checks_s=0.1, submissions_s=0.0, reports_s=0.5, late_s=0.0)


class Cluster(Protocol):
    """Reports the states of jobs, and cancels them."""

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job, if known."""

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs; only on a cluster do running ones get a moment to end."""


class SlurmCluster:
    """Slurm jobs, through Slurm's commands: submitit queries one job at a time, and only by sacct."""

    def __init__(self) -> None:
        self._missing: frozenset[str] = frozenset()

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job; empty where squeue fails, and GONE for a job that it did not know twice."""
        command = ("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--states=all", "--format=%i %T")
        output = _said_by(*command)
        if output is None:
            return {}
        listed = dict(line.split(maxsplit=1) for line in output.splitlines() if len(line.split()) == 2)
        missing = frozenset(job.job_id for job in jobs) - listed.keys()
        gone, self._missing = missing & self._missing, missing
        return {job.job_id: listed[job.job_id] for job in jobs if job.job_id in listed} | dict.fromkeys(gone, "GONE")

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs by scancel."""
        if jobs:
            _said_by("scancel", *(job.job_id for job in jobs))


class LocalCluster:
    """Processes on this machine started by submitit, for trying things out."""

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job. Nothing is left of one that has ended."""
        states = {job.job_id: job.state for job in jobs}
        for job_id, state in states.items():
            if state in OVER:
                end_marked(job_id, variable=_LOCAL_JOB)
        return states

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Kill each job, its supervisor first, which would restart it."""
        for job in jobs:
            if not job.done():
                os.kill(int(job.job_id), signal.SIGKILL)
            end_marked(job.job_id, variable=_LOCAL_JOB)


def _said_by(*command: str) -> str | None:
    """The output of a Slurm command; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
