"""How the driver monitors and cancels jobs, on Slurm or as local processes of submitit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.base.processes import end_marked

_COMMAND_TIMEOUT_S = 60.0
_USUAL_ARRAY = 1000
_LOCAL_JOB = "SUBMITIT_LOCAL_JOB_ID"  # set by submitit for a local job's process and all its descendants
OVER = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT", "GONE"),
    *("FINISHED", "INTERRUPTED"),  # submitit's states for local jobs
}
# A job that Slurm could not start, and starts again only when somebody releases it.
HELD = "HELD"
_HELD_FOR = {"launch failed requeued held", "JobHoldMaxRequeue"}
# States of a job that has run before and waits to be started again.
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

    def largest_array(self) -> int:
        """The largest number of jobs that can be submitted at once."""

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job, if known."""

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs. Only on a cluster do running jobs get time to shut down."""


class SlurmCluster:
    """Slurm jobs, through Slurm's commands: submitit queries one job at a time, and only with sacct."""

    def __init__(self) -> None:
        self._missing: frozenset[str] = frozenset()

    def largest_array(self) -> int:
        """The cluster's MaxArraySize, or Slurm's default."""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _said_by("scontrol", "show", "config") or "", re.MULTILINE)
        return max(1, int(found.group(1))) if found else _USUAL_ARRAY

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job; empty if squeue fails. A job that squeue did not list twice in a row is GONE.

        A job that Slurm holds is HELD, with the reason.
        """
        command = ("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--states=all", "--format=%i %T %r")
        output = _said_by(*command)
        if output is None:
            return {}
        listed = dict(_job_and_state(line) for line in output.splitlines() if len(line.split()) > 1)
        missing = frozenset(job.job_id for job in jobs) - listed.keys()
        gone, self._missing = missing & self._missing, missing
        return {job.job_id: listed[job.job_id] for job in jobs if job.job_id in listed} | dict.fromkeys(gone, "GONE")

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs with scancel."""
        if jobs:
            _said_by("scancel", *(job.job_id for job in jobs))


class LocalCluster:
    """Jobs that submitit runs as processes on this machine, for testing without a cluster."""

    def largest_array(self) -> int:
        """As on a cluster."""
        return _USUAL_ARRAY

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """State of each job. Also kills the remaining processes of a job that has ended."""
        states = {job.job_id: job.state for job in jobs}
        for job_id, state in states.items():
            if state in OVER:
                end_marked(job_id, variable=_LOCAL_JOB)
        return states

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Kill each job, its supervisor first, as the supervisor would restart it."""
        for job in jobs:
            if not job.done():
                os.kill(int(job.job_id), signal.SIGKILL)
            end_marked(job.job_id, variable=_LOCAL_JOB)


def _job_and_state(line: str) -> tuple[str, str]:
    """A job and its state from a line of squeue: id, state, and the reason for it."""
    job_id, state, reason = [*line.split(maxsplit=2), ""][:3]
    # The reason stays when such a job is cancelled.
    is_held = state in WAITING and reason.strip() in _HELD_FOR
    return job_id, f"{HELD} {reason.strip()}" if is_held else state


def _said_by(*command: str) -> str | None:
    """The output of a Slurm command; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
