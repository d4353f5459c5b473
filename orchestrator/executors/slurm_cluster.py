"""The driver's view of its jobs, on Slurm or as local processes of submitit.

Has the jobs' `--slurm KEY=VALUE` options, states, cancellation and reports.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.base.errors import InputError, Problem, did_you_mean, printable
from orchestrator.base.files import remove
from orchestrator.base.packs import Event, LaunchedPack, PackLost, PackStarted, Report
from orchestrator.base.processes import end_marked
from orchestrator.executors.slurm_worker import MORE_MEMORY, report_from_text

_COMMAND_TIMEOUT_S = 60.0
_DEFAULT_ARRAY = 1000
_LOCAL_JOB = "SUBMITIT_LOCAL_JOB_ID"  # set by submitit for a local job's process and its descendants
OVER = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT", "GONE"),
    *("FINISHED", "INTERRUPTED"),  # submitit's states for local jobs
}
# A job that Slurm could not start, and will not start again until somebody releases it.
HELD = "HELD"
_HELD_FOR = {"launch failed requeued held", "JobHoldMaxRequeue"}
# States of a job that has run before and waits to be started again.
WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_NUM_LAST_LINES = 3
_LAST_BYTES = 8192
# Messages of slurmstepd after the kernel or Slurm has killed processes of a job.
_OUT_OF_MEMORY = re.compile(r"oom[_-]kill|exceeded (job )?memory limit", re.IGNORECASE)
_REPORT = re.compile(r"(\d{4})-(\d{6})\.json")
COMMANDS = ("sbatch", "squeue", "scancel", "srun")
CLUSTERS = ("local", "slurm")
_LOCAL_MINUTES = 7 * 24 * 60
_SIGNAL_DELAY_S = 90
# Set by `resources` in the sweep file, or fixed by the executor.
_RESERVED = {
    *("cpus_per_gpu", "cpus_per_task", "gpus_per_node", "gpus_per_task", "nodes", "ntasks_per_node", "num_gpus"),
    *("additional_parameters", "array_parallelism", "stderr_to_stdout", "use_srun"),
}


class Job(Protocol):
    """The part of a submitit job that is used here."""

    job_id: str

    @property
    def state(self) -> str:
        """Its state as named by Slurm, or by submitit for a local job."""

    @property
    def paths(self) -> Any:
        """Its files."""

    def done(self) -> bool:
        """Whether it has ended."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals and limits, in seconds."""

    reads_s: float  # between reads of reports
    checks_s: float  # between checks on jobs
    submissions_s: float
    reports_s: float
    late_s: float  # longest time for a file to become visible on another machine


SLURM_PACE = Pace(reads_s=2.0, checks_s=15.0, submissions_s=5.0, reports_s=10.0, late_s=40.0)
LOCAL_PACE = Pace(reads_s=0.1, checks_s=0.1, submissions_s=0.0, reports_s=0.5, late_s=0.0)


class SlurmCluster:
    """Slurm jobs through Slurm's commands, since submitit queries one job at a time, and only with sacct."""

    def __init__(self) -> None:
        self._missing: frozenset[str] = frozenset()

    def largest_array(self) -> int:
        """Return the cluster's MaxArraySize, or Slurm's default."""
        match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _output_of("scontrol", "show", "config") or "", re.MULTILINE)
        return max(1, int(match.group(1))) if match else _DEFAULT_ARRAY

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Return the state of each job, or nothing if squeue fails.

        A job that squeue omits twice in a row is GONE; a job that Slurm holds is HELD, with the reason.
        """
        command = ("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--states=all", "--format=%i %T %r")
        output = _output_of(*command)
        if output is None:
            return {}
        listed = dict(_job_and_state(line) for line in output.splitlines() if len(line.split()) > 1)
        missing = frozenset(job.job_id for job in jobs) - listed.keys()
        gone, self._missing = missing & self._missing, missing
        return {job.job_id: listed[job.job_id] for job in jobs if job.job_id in listed} | dict.fromkeys(gone, "GONE")

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs with scancel, which gives running ones time to shut down."""
        if jobs:
            _output_of("scancel", *(job.job_id for job in jobs))


class LocalCluster:
    """Jobs that submitit runs as processes on this machine, for testing without a cluster."""

    def largest_array(self) -> int:
        """Return Slurm's default."""
        return _DEFAULT_ARRAY

    def states(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Return the state of each job, and kill the remaining processes of ended jobs."""
        states = {job.job_id: job.state for job in jobs}
        for job_id, state in states.items():
            if state in OVER:
                end_marked(job_id, variable=_LOCAL_JOB)
        return states

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Kill each job at once, its supervisor first, since the supervisor would restart it."""
        for job in jobs:
            if not job.done():
                os.kill(int(job.job_id), signal.SIGKILL)
            end_marked(job.job_id, variable=_LOCAL_JOB)


def _job_and_state(line: str) -> tuple[str, str]:
    """Parse a line of squeue: id, state and the reason for the state."""
    job_id, state, reason = [*line.split(maxsplit=2), ""][:3]
    # The reason remains when such a job is cancelled.
    is_held = state in WAITING and reason.strip() in _HELD_FOR
    return job_id, f"{HELD} {reason.strip()}" if is_held else state


def _output_of(*command: str) -> str | None:
    """Return the output of a Slurm command, or None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@dataclass
class SubmittedPack:
    """A pack with a submitted job, and the driver's position in its reports."""

    pack: LaunchedPack
    job: Job
    attempt: int = 0
    next_report: int = 1
    is_started: bool = False
    is_forgotten: bool = False  # the driver has its last report, or has given up on it
    ended: float | None = None  # when the trial's processes are known to have ended, so that it may be retried
    last: Report | None = None
    over_since: float | None = None
    state: str = ""

    def read(self, reports: Path) -> Iterator[Event]:
        """Yield new reports below ``reports`` in order, without superseded attempts; PackLost for a damaged one."""
        folder = reports / self.pack.pack_id
        for name in sorted(names_in(folder)):
            match = _REPORT.fullmatch(name)
            if match is None:
                continue  # still being written
            attempt, number = map(int, match.groups())
            if number == 0:
                if attempt > self.attempt:
                    self.attempt, self.next_report = attempt, 1
                    yield PackStarted(self.pack.pack_id) if not self.is_started else self.heartbeat()
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

    def heartbeat(self) -> Report:
        """Return a report without news, for a pack that waits to be restarted."""
        steps, seconds = (self.last.member_steps, self.last.seconds) if self.last is not None else (0, 0.0)
        return Report(self.pack.pack_id, steps, 0, seconds)

    def held(self) -> PackLost:
        """Return the event for a job that Slurm holds, which would wait forever."""
        reason = self.state.partition(" ")[2]
        return PackLost(self.pack.pack_id, f"Slurm could not start its job {self.job.job_id} and holds it: {reason}")

    def lost(self) -> PackLost:
        """Return the event for a job that ended without a last report."""
        # If squeue no longer lists the job, this asks accounting for its state.
        state = self.job.state if self.state == "GONE" else self.state
        shown = state.split()[0] if state.strip() else "UNKNOWN"
        last_lines = _last_lines(self.job.paths.stderr)
        reason = f"its job {self.job.job_id} ended without a last report ({shown})"
        if last_lines:
            reason += f": {last_lines}"
        if shown == "OUT_OF_MEMORY" or _OUT_OF_MEMORY.search(last_lines):
            reason += f"; {MORE_MEMORY}"
        return PackLost(self.pack.pack_id, reason)


def names_in(folder: Path) -> set[str]:
    """Return the files in ``folder`` now, including files that another machine has written."""
    with contextlib.suppress(OSError):
        folder.chmod(folder.stat().st_mode & 0o7777)  # makes an NFS client drop its cache
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _report_in(path: Path, pack_id: str) -> Report | None:
    """Return the report in a file, or None if it cannot be read now. Raises ValueError for any other content."""
    try:
        text = path.read_bytes()
    except OSError:
        return None
    report = report_from_text(text)
    if report.pack_id != pack_id:
        raise ValueError(f"it belongs to pack {report.pack_id[:20]!r}")
    return report


def _last_lines(log: Path) -> str:
    """Return the last lines of a job's standard error, joined."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return printable(" / ".join([line.strip()[:200] for line in lines if line.strip()][-_NUM_LAST_LINES:]))


def read_options(texts: Iterable[str]) -> dict[str, str]:
    """Parse the KEY=VALUE options of the command line. Raises InputError."""
    options: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InputError(Problem("--slurm", "", f"{text!r} is not KEY=VALUE", "write e.g. --slurm partition=gpu"))
        options[key.replace("-", "_")] = value
    return options


def most_nodes(workers: int, on_node: int) -> int:
    """Return how many nodes hold ``workers`` processes. Raises InputError unless each has as many."""
    if workers % on_node:
        message = f"max = {workers} is not a multiple of min = {on_node}, which each node of a Slurm job has"
        raise InputError(Problem("resources", "workers", message, f"write max: {workers - workers % on_node}"))
    return workers // on_node


def submission_parameters(
    options: Mapping[str, str], submitit_knows: Collection[str], cpus: int, gpus: int, num_nodes: int
) -> dict:
    """Return the parameters of submitit's AutoExecutor for jobs of ``cpus`` and ``gpus`` on each of up to some nodes.

    Raises InputError for invalid options.
    """
    known = (set(submitit_knows) | {"cluster", "mem_gb"}) - _RESERVED
    problems = [problem for key, text in options.items() if (problem := _problem(key, text, known))]
    if problems:
        raise InputError(*problems)
    if not is_local(options):
        _check_slurm(options)
    parameters: dict[str, Any] = {
        "timeout_min": int(options.get("time", _LOCAL_MINUTES)),
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": cpus,
        "slurm_signal_delay_s": int(options.get("signal_delay_s", _SIGNAL_DELAY_S)),
        "slurm_additional_parameters": {"requeue": True},
        # Since 22.05, srun does not inherit it from sbatch and may bind the trial to one core.
        "slurm_srun_args": [f"--cpus-per-task={cpus}", *shlex.split(options.get("srun_args", ""))],
    }
    if num_nodes > 1:
        # The first node has this job's process, which starts those on the others.
        # With a number of tasks on each, Slurm would allocate as few nodes as it may.
        del parameters["tasks_per_node"]
        parameters["slurm_additional_parameters"] |= {"nodes": f"1-{num_nodes}", "mincpus": cpus}
        parameters["slurm_srun_args"] += ["--nodes=1", "--ntasks=1"]
    if gpus and not options.get("gres", "").startswith("gpu"):
        parameters["gpus_per_node"] = gpus
    if "mem_gb" in options:
        parameters["mem_gb"] = float(options["mem_gb"])
    for key in options.keys() - {"cluster", "time", "mem_gb", "signal_delay_s", "srun_args"}:
        text = options[key]
        is_script = key in ("setup", "teardown")
        parameters[f"slurm_{key}"] = [text] if is_script else {"true": True, "false": None}.get(text, text)
    return parameters


def is_local(options: Mapping[str, str]) -> bool:
    """Whether jobs are processes on this machine, for testing without a cluster."""
    return options.get("cluster") == "local"


def _problem(key: str, text: str, known: Collection[str]) -> Problem | None:
    """Return the problem of --slurm KEY=TEXT, or None."""
    if key in _RESERVED:
        return Problem("--slurm", key, "is set by `resources` or fixed by sweep", "set `resources`, or omit it")
    if key not in known:
        choices = ", ".join(sorted(known))
        return Problem("--slurm", key, f"is unknown; choose one of: {choices}", did_you_mean(key, known))
    if not text or not text.isprintable():
        return Problem("--slurm", key, f"{text!r} is not a valid value", "write KEY=VALUE")
    if key == "cluster" and text not in CLUSTERS:
        message = f"{text!r} is unknown; choose one of: {', '.join(CLUSTERS)}"
        return Problem("--slurm", key, message, did_you_mean(text, CLUSTERS))
    if key in ("time", "signal_delay_s") and not re.fullmatch("[1-9][0-9]{0,6}", text):
        unit = "minutes" if key == "time" else "seconds"
        return Problem("--slurm", key, f"{text!r} is not a positive integer, in {unit}", f"write e.g. {key}=120")
    if key == "mem_gb" and not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text):
        return Problem("--slurm", key, f"{text!r} is not a number of GB", "write e.g. mem_gb=16")
    if key == "srun_args":
        try:
            shlex.split(text)
        except ValueError as error:
            return Problem("--slurm", key, f"{text!r} cannot be parsed: {error}", "close the quotes")
    return None


def _check_slurm(options: Mapping[str, str]) -> None:
    """Raise InputError if Slurm's commands are missing here, or if jobs have no time limit."""
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        what = f"needs Slurm, but cannot find {', '.join(missing)}"
        remedy = "run it on a login node of the cluster, or test it here with --slurm cluster=local"
        raise InputError(Problem("--executor", "slurm", what, remedy))
    if "time" not in options:
        what = "is missing; it limits the time of a trial's job, in minutes"
        remedy = "set e.g. --slurm time=240; with objective.resume a trial continues in its next job"
        raise InputError(Problem("--slurm", "time", what, remedy))
