"""How the driver looks after jobs: of Slurm, or submitit's stand-in for it on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.processes import end_marked

_COMMAND_TIMEOUT_S = 60.0
_LOCAL_JOB = "SUBMITIT_LOCAL_JOB_ID"  # which submitit sets for a local job's process, and all that this starts
OVER = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT", "GONE"),
    *("FINISHED", "INTERRUPTED"),  # submitit's words for local jobs
}
# A job that has run before, and waits for its next start.
WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}


class Job(Protocol):
    """What is asked of a submitit job."""

    job_id: str

    @property
    def state(self) -> str:
        """Its state in Slurm's words, or submitit's for a local job."""

    @property
    def paths(self) -> Any:
        """Its files."""

    def done(self) -> bool:
        """Whether it is over."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two of what they name."""

    looks_s: float  # at reports
    checks_s: float  # on jobs
    submissions_s: float
    reports_s: float
    late_s: float  # that a file takes at most to be seen on another machine


SLURM_PACE = Pace(looks_s=2.0, checks_s=15.0, submissions_s=5.0, reports_s=10.0, late_s=40.0)
LOCAL_PACE = Pace(looks_s=0.1, checks_s=0.1, submissions_s=0.0, reports_s=0.5, late_s=0.0)


class Cluster(Protocol):
    """Tells how jobs are, and ends them."""

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job, as far as it is known."""

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs; those that run get a moment only on a cluster."""


class SlurmCluster:
    """Jobs of Slurm, through its own commands: submitit knows one job at a time, and believes only in sacct."""

    def __init__(self) -> None:
        self._missing: frozenset[str] = frozenset()

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job; nothing where squeue fails, and GONE for what it has not known twice."""
        command = ("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--states=all", "--format=%i %T")
        output = _said_by(*command)
        if output is None:
            return {}
        listed = dict(line.split(maxsplit=1) for line in output.splitlines() if len(line.split()) == 2)
        missing = frozenset(job.job_id for job in jobs) - listed.keys()
        gone, self._missing = missing & self._missing, missing
        return {job.job_id: listed[job.job_id] for job in jobs if job.job_id in listed} | dict.fromkeys(gone, "GONE")

    def cancel(self, jobs: Sequence[Job]) -> None:
        """scancel."""
        if jobs:
            _said_by("scancel", *(job.job_id for job in jobs))


class LocalCluster:
    """Processes of this machine that submitit starts, to try things out."""

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job. Of what is over, nothing is left."""
        states = {job.job_id: job.state for job in jobs}
        for job_id, state in states.items():
            if state in OVER:
                end_marked(job_id, variable=_LOCAL_JOB)
        return states

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Kill each job, what watches it first: it would start it again."""
        for job in jobs:
            if not job.done():
                os.kill(int(job.job_id), signal.SIGKILL)
            end_marked(job.job_id, variable=_LOCAL_JOB)


def _said_by(*command: str) -> str | None:
    """What a command of Slurm prints; None where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
