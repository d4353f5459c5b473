"""Trains packs of a custom trainer as Slurm jobs, without Ray (the one importer of submitit).

The driver stays on the login node. Jobs write their reports as files of JSON below the sweep's results folder,
which the nodes share; the driver reads and deletes them. submitit submits jobs and starts them again. The folder
``slurm`` of a sweep holds

    run-TOKEN               the driver's permission for its jobs to run; jobs check that it still exists
    jobs                    the driver's jobs, so that the next driver can end those that it left behind
    reports/PACK/A-N.json   report N of attempt A at a pack; the first, N = 0, names the attempt's job
    JOB_*                   what submitit keeps of a job: its pickled pack, its result and its log
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import ExecutorError, InputError, Problem, StorageError, printable
from orchestrator.executors.report_files import from_json
from orchestrator.executors.slurm_job import REPORTS, TrialJob
from orchestrator.executors.slurm_options import is_local, submission_parameters
from orchestrator.files import JOBS, atomic_write, refuse_links, remove, withdraw_jobs
from orchestrator.messages import Event, Pack, PackLost, PackStarted, Report
from orchestrator.processes import MARK, end_marked, new_mark

try:
    import submitit
except ImportError as _error:
    _remedy = "pip install 'sweep-stability[slurm]'"
    raise InputError(Problem("--executor", "slurm", f"needs submitit: {_error}", _remedy)) from None

_JOBS = "jobs"
# Slurm takes no larger array, unless its MaxArraySize says so.
_MOST_SLOTS = 1000
# A trial that resumes from its checkpoint may need many jobs; one that never makes progress has to end.
_MOST_TIMEOUTS = 100
_END_EARLIER_S = 120.0
_CLOSE_S = 5.0
_LONGEST_EXIT_S = 60.0  # of a job whose last report is there
_COMMAND_TIMEOUT_S = 60.0
_STEP_S = 0.05
_SECONDS_PER_ASKING = 1.0  # squeue tells of an end in no other way, and a controller has many users
_MOST_REPORTS_PER_S = 25.0
_MOST_REFUSALS = 10
_SECONDS_PER_REFUSAL = 60.0
_LAST_LINES = 3
_LAST_BYTES = 8192
_LOCAL_JOB = "SUBMITIT_LOCAL_JOB_ID"  # which submitit sets for a local job's process, and all that this starts
_REPORT = re.compile(r"(\d{4})-(\d{6})\.json")
_OVER = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT", "GONE"),
    *("FINISHED", "INTERRUPTED"),  # submitit's words for local jobs
}
# A job that has run before, and waits for its next start.
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}


class PackJob(TrialJob):
    """What submitit pickles into each job, calls there, and asks for a ``checkpoint`` before the job ends."""

    def __reduce__(self) -> Any:
        return (PackJob, self.arguments)

    def __call__(self, pack: Pack) -> None:
        """Train ``pack``."""
        environment = submitit.JobEnvironment()
        self.train(pack, environment.cluster, environment.job_id)

    def checkpoint(self, pack: Pack) -> Any:
        """What the job does when it is restarted; None where it must not be."""
        return submitit.helpers.DelayedSubmission(PackJob(*self.arguments), pack) if self.end(pack) else None


class Cluster(Protocol):
    """How jobs are looked after; all times in seconds, between two of what they name."""

    looks_s: float  # at reports
    checks_s: float  # on jobs
    submissions_s: float
    reports_s: float
    late_s: float  # that a file takes at most to be seen on another machine

    def states(self, jobs: Sequence[submitit.Job]) -> dict[str, str]:
        """State of each job, as far as it is known."""

    def cancel(self, jobs: Sequence[submitit.Job]) -> None:
        """End jobs; those that run get a moment only on a cluster."""


class SlurmCluster:
    """Jobs of Slurm, through its own commands: submitit knows one job at a time, and believes only in sacct."""

    looks_s, checks_s, submissions_s, reports_s, late_s = 2.0, 15.0, 5.0, 10.0, 40.0

    def __init__(self) -> None:
        self._missing: frozenset[str] = frozenset()

    def states(self, jobs: Sequence[submitit.Job]) -> dict[str, str]:
        """State of each job; nothing where squeue fails, and GONE for what it has not known twice."""
        command = ("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--states=all", "--format=%i %T")
        output = _said_by(*command)
        if output is None:
            return {}
        listed = dict(line.split(maxsplit=1) for line in output.splitlines() if len(line.split()) == 2)
        missing = frozenset(job.job_id for job in jobs) - listed.keys()
        gone, self._missing = missing & self._missing, missing
        return {job.job_id: listed[job.job_id] for job in jobs if job.job_id in listed} | dict.fromkeys(gone, "GONE")

    def cancel(self, jobs: Sequence[submitit.Job]) -> None:
        """scancel."""
        if jobs:
            _said_by("scancel", *(job.job_id for job in jobs))


class LocalCluster:
    """Processes of this machine that submitit starts, to try things out. All carry ``mark``."""

    looks_s, checks_s, submissions_s, reports_s, late_s = 0.1, 0.1, 0.0, 0.5, 0.0

    def states(self, jobs: Sequence[submitit.Job]) -> dict[str, str]:
        """State of each job. Of what is over, nothing is left."""
        states = {job.job_id: job.state for job in jobs}
        for job_id, state in states.items():
            if state in _OVER:
                end_marked(job_id, variable=_LOCAL_JOB)
        return states

    def cancel(self, jobs: Sequence[submitit.Job]) -> None:
        """Kill each job, what watches it first: it would start it again."""
        for job in jobs:
            if not job.done():
                os.kill(int(job.job_id), signal.SIGKILL)
            end_marked(job.job_id, variable=_LOCAL_JOB)


@dataclass
class Placed:
    """A pack whose job was submitted, until that is over."""

    pack: Pack
    job: submitit.Job
    attempt: int = 0
    next_report: int = 1
    is_started: bool = False
    is_forgotten: bool = False  # the driver has its last report, or has given it up
    ended: float | None = None  # when the trial's processes were known to be gone, so that it may be tried again
    last: Report | None = None
    over_since: float | None = None
    state: str = ""


class SlurmExecutor:
    """Each pack a job, of ``cpus`` and ``gpus`` for each of the ``workers`` processes of its trial."""

    name = "slurm"

    def __init__(
        self,
        folder: Path,
        cpus: int,
        gpus: float,
        workers: int,
        parallel: int | None,
        options: Mapping[str, str],
    ) -> None:
        """End what an earlier driver of the sweep in ``folder`` has left, and be ready for ``parallel`` jobs.

        Raises InputError for ``options`` that cannot be, or where there is no Slurm.
        """
        here, knows = is_local(options), submitit.SlurmExecutor._valid_parameters()
        parameters = submission_parameters(options, knows, cpus * workers, math.ceil(gpus * workers - 1e-9))
        self._folder = folder.absolute() / JOBS
        if "%" in str(self._folder):
            raise InputError(Problem(str(self._folder), "", "holds a %, which Slurm replaces", "choose --results"))
        most = max(1, len(os.sched_getaffinity(0)) // (cpus * workers)) if here else _MOST_SLOTS
        self.slots = min(parallel or most, _MOST_SLOTS)
        self._cluster: Cluster = LocalCluster() if here else SlurmCluster()
        # Its messages would end up between the lines of the live view.
        logging.getLogger("submitit").setLevel(logging.CRITICAL)
        refuse_links(folder, self._folder)
        self._end_earlier()
        token = f"run-{uuid.uuid4().hex[:12]}"
        self._go = self._folder / token
        self._mark = new_mark() if here else ""
        self._placed: dict[str, Placed] = {}
        self._write_jobs()
        atomic_write(self._go, "")
        kind = "local" if here else "slurm"
        self._submitit = submitit.AutoExecutor(
            self._folder, cluster=kind, **{f"{kind}_max_num_timeout": _MOST_TIMEOUTS}
        )
        defaults = {"name": f"sweep-{folder.name}", "slurm_array_parallelism": self.slots}
        # Ctrl-C in a terminal is for the driver, but submitit leaves local jobs in its group.
        alone = {"local_setup": ["trap '' INT"]} if here else {}
        self._submitit.update_parameters(**{**defaults, **alone, **parameters})
        self._job = PackJob(str(self._folder), token, parameters["timeout_min"], parameters["slurm_signal_delay_s"])
        self._queue: list[Pack] = []
        self._num_refusals = 0
        self._has_submitted = False
        self._next_submission = self._next_look = self._next_check = 0.0

    def submit(self, pack: Pack) -> None:
        """Queue ``pack``. Raises InputError for one of an objective."""
        if pack.launch is None:
            message = "--executor slurm trains commands and functions of your own"
            raise InputError(Problem("", "", f"{message}; the built-in objectives train with ray", "--executor ray"))
        self._queue.append(pack)

    def poll(self, timeout_s: float) -> list[Event]:
        """Submit what is queued as one array, and return events, waiting for the first."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._submit_queued()
            events = self._look()
            left_s = deadline - time.monotonic()
            if events or left_s <= 0:
                return events
            time.sleep(min(_STEP_S, left_s))

    def pause(self) -> None:
        """Let trials end at their next report, and cancel jobs that wait."""
        self._queue.clear()
        remove([self._go])
        waiting = [placed for placed in self._placed.values() if not placed.is_started]
        for placed in waiting:
            placed.is_forgotten = True
        self._cluster.cancel([placed.job for placed in waiting])

    def kill(self, pack_id: str) -> None:
        """Cancel the job of a pack. Its trial is tried again only once that is over."""
        placed = self._placed.get(pack_id)
        if placed is not None:
            placed.is_forgotten = True
            self._cluster.cancel([placed.job])

    def close(self) -> None:
        """Cancel all jobs. On this machine they are over then; on a cluster the next driver waits for them."""
        self._queue.clear()
        remove([self._go])
        if self._mark:
            end_marked(self._mark)
            self._wait_for_local_jobs()
            for placed in self._placed.values():
                self._tidy(placed)
            self._placed.clear()
        else:
            self._cluster.cancel([placed.job for placed in self._placed.values() if placed.ended is None])
        if not self._placed:
            scripts = (*self._folder.glob("*_submission.sh"), *self._folder.glob(".submission_file_*"))
            remove([self._folder / _JOBS, *scripts])
            for empty in (self._folder / REPORTS, self._folder):
                with contextlib.suppress(OSError):
                    empty.rmdir()  # logs of jobs that were lost keep it

    def _wait_for_local_jobs(self) -> None:
        """Take note of the end of processes that were killed."""
        deadline = time.monotonic() + _CLOSE_S
        jobs = [placed.job for placed in self._placed.values()]
        while not all(job.done() for job in jobs) and time.monotonic() < deadline:
            time.sleep(_STEP_S)

    # --- jobs ------------------------------------------------------------------------------------

    def _submit_queued(self) -> None:
        """Submit what has room as one array; a trial of which something may still run waits."""
        now = time.monotonic()
        if not self._queue or now < self._next_submission:
            return
        there = [placed for placed in self._placed.values() if placed.ended is None]
        taken = {trial_id for placed in there for trial_id in placed.pack.trial_ids}
        ready = [pack for pack in self._queue if taken.isdisjoint(pack.trial_ids)][: max(0, self.slots - len(there))]
        if not ready:
            return
        self._next_submission = now + self._cluster.submissions_s
        # The driver writes each report to the ledger, and reads it through a file system that others use too.
        report_s = max(self._cluster.reports_s, (len(there) + len(ready)) / _MOST_REPORTS_PER_S)
        sent = [replace(pack, launch=replace(pack.launch, report_s=report_s)) for pack in ready]
        try:
            with _environment(self._mark), contextlib.redirect_stderr(io.StringIO()):
                jobs = self._submitit.map_array(self._job, sent)
        except OSError as error:
            raise StorageError(f"{self._folder}: {error.strerror or error}") from error
        except RuntimeError as error:  # all of submitit's own
            self._refused(str(error))
            return
        self._has_submitted, self._num_refusals = True, 0
        submitted = {pack.pack_id for pack in ready}
        self._queue = [pack for pack in self._queue if pack.pack_id not in submitted]
        self._placed |= {pack.pack_id: Placed(pack, job) for pack, job in zip(ready, jobs, strict=True)}
        self._write_jobs()

    def _refused(self, cause: str) -> None:
        """sbatch failed. Where it has worked before, the controller may be busy. Raises ExecutorError."""
        self._num_refusals += 1
        self._next_submission = time.monotonic() + _SECONDS_PER_REFUSAL
        if not self._has_submitted or self._num_refusals > _MOST_REFUSALS:
            lines = [line.strip() for line in cause.splitlines() if line.strip()] or ["no cause given"]
            remedy = "--slurm partition=, account= or time= may be missing, or resources.parallel be too high"
            raise ExecutorError(f"sbatch refuses the jobs: {printable(lines[-1][:300])}\n    remedy: {remedy}")

    def _write_jobs(self) -> None:
        known = {"mark": self._mark, "jobs": []}
        if not self._mark:
            known["jobs"] = [placed.job.job_id for placed in self._placed.values()]
        atomic_write(self._folder / _JOBS, json.dumps(known))

    def _end_earlier(self) -> None:
        """End the jobs of an earlier driver that was killed: no trial is trained twice at a time."""
        if not self._folder.is_dir():
            return
        withdraw_jobs(self._folder.parent)
        mark, job_ids = _left_behind(self._folder)
        if mark:
            end_marked(mark)
        if job_ids:
            if shutil.which("squeue") is None:
                jobs = ", ".join(sorted(job_ids)[:5])
                message = f"an earlier run may have left jobs of Slurm behind: {jobs}"
                raise InputError(Problem(str(self._folder), "", message, "run it where there is squeue"))
            self._wait_for_end(job_ids)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for_end(self, job_ids: Collection[str]) -> None:
        cluster = SlurmCluster()
        left: list[submitit.Job] = [submitit.SlurmJob(self._folder, job_id) for job_id in sorted(job_ids)]
        cluster.cancel(left)
        deadline = time.monotonic() + _END_EARLIER_S
        while left:
            states = cluster.states(left)
            left = [job for job in left if states.get(job.job_id) not in _OVER]
            if left and time.monotonic() > deadline:
                jobs = ", ".join(job.job_id for job in left[:5])
                remedy = "`squeue --me` shows them; the same command goes on once they are gone"
                raise ExecutorError(f"jobs of an earlier run do not end: {jobs}\n    remedy: {remedy}")
            if left:
                time.sleep(_SECONDS_PER_ASKING)

    # --- events ----------------------------------------------------------------------------------

    def _look(self) -> list[Event]:
        began = time.monotonic()
        if began < self._next_look:
            return []
        events = self._check() if began >= self._next_check else []
        seen = _names(self._folder / REPORTS) if self._placed else set()
        for placed in self._placed.values():
            if not placed.is_forgotten and placed.pack.pack_id in seen:
                events += self._read(placed)
        for placed in list(self._placed.values()):
            if placed.over_since is not None:
                events += self._end(placed)
        # A file system that is slow is not asked all the time.
        ended = time.monotonic()
        self._next_look = ended + max(self._cluster.looks_s, 4 * (ended - began))
        return events

    def _check(self) -> list[Event]:
        """See which jobs are over, before reports are read: what a job says last comes before its end."""
        events: list[Event] = []
        states = self._cluster.states([placed.job for placed in self._placed.values()])
        now = time.monotonic()
        for placed in self._placed.values():
            placed.state = states.get(placed.job.job_id, placed.state)
            if placed.state not in _OVER:
                placed.over_since = None
            elif placed.over_since is None:
                placed.over_since = now
            if placed.is_started and not placed.is_forgotten and placed.state in _WAITING:
                events.append(_sign_of_life(placed))
            if placed.ended is not None and placed.over_since is None and now - placed.ended > _LONGEST_EXIT_S:
                self._cluster.cancel([placed.job])  # it hangs, or was started again for nothing
        self._next_check = now + self._cluster.checks_s
        return events

    def _read(self, placed: Placed) -> Iterator[Event]:
        """New reports of a pack, in order; those of an attempt that another one has followed count no more."""
        folder = self._folder / REPORTS / placed.pack.pack_id
        for name in sorted(_names(folder)):
            match = _REPORT.fullmatch(name)
            if match is None:
                continue  # it is being written
            attempt, number = map(int, match.groups())
            if number == 0:
                if attempt > placed.attempt:
                    placed.attempt, placed.next_report = attempt, 1
                    yield PackStarted(placed.pack.pack_id) if not placed.is_started else _sign_of_life(placed)
                    placed.is_started = True
            elif attempt < placed.attempt:
                remove([folder / name])
            elif (attempt, number) == (placed.attempt, placed.next_report):
                try:
                    report = _report_in(folder / name, placed.pack.pack_id)
                except ValueError as error:
                    self.kill(placed.pack.pack_id)
                    yield PackLost(placed.pack.pack_id, f"report {name} of its job is damaged: {error}")
                    return
                if report is None:
                    return
                remove([folder / name])
                placed.next_report, placed.last = number + 1, report
                yield report
                if report.is_last:
                    placed.is_forgotten, placed.ended = True, time.monotonic()
                    shutil.rmtree(folder, ignore_errors=True)
                    return

    def _end(self, placed: Placed) -> Iterator[Event]:
        """A job is over: without a last report, its pack is lost."""
        if not placed.is_forgotten:
            if time.monotonic() - placed.over_since < self._cluster.late_s:
                return
            words = _last_words(placed.job.paths.stderr)
            reason = f"its job {placed.job.job_id} ended without a last report ({_final_state(placed)})"
            yield PackLost(placed.pack.pack_id, f"{reason}: {words}" if words else reason)
        self._tidy(placed)
        del self._placed[placed.pack.pack_id]
        self._write_jobs()

    def _tidy(self, placed: Placed) -> None:
        """Remove what is left of a job; its log, where it says why there is no result, stays until the next run."""
        paths = placed.job.paths
        remove([paths.submitted_pickle, paths.result_pickle])
        if placed.ended is not None:
            remove([paths.stdout, paths.stderr])
        shutil.rmtree(self._folder / REPORTS / placed.pack.pack_id, ignore_errors=True)


def _left_behind(folder: Path) -> tuple[str, set[str]]:
    """The mark of local processes and the jobs of Slurm that an earlier driver knew, or that have said so."""
    mark, job_ids = "", set()
    path = folder / _JOBS
    try:
        if path.exists():
            known = json.loads(path.read_text())
            mark, job_ids = str(known["mark"]), {str(job_id) for job_id in known["jobs"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        remedy = "see to it that no job of this sweep runs, then delete the file"
        raise StorageError(f"{path}: is damaged: {error}\n    remedy: {remedy}") from None
    for claim in folder.glob(f"{REPORTS}/*/*-000000.json"):
        # One that is not whole is of a job that has yet to see that it is not wanted.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            said = json.loads(claim.read_text())
            if said["cluster"] == "slurm":
                job_ids.add(str(said["job"]))
    return mark, job_ids


@contextlib.contextmanager
def _environment(mark: str) -> Iterator[None]:
    """With the ``mark`` for processes that are started here; without one, as it is."""
    before = os.environ.get(MARK)
    if mark:
        os.environ[MARK] = mark
    try:
        yield
    finally:
        if mark:
            os.environ.pop(MARK)
            os.environ.update({MARK: before} if before is not None else {})


def _said_by(*command: str) -> str | None:
    """What a command of Slurm prints; None where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _names(folder: Path) -> set[str]:
    """What is in ``folder`` now, also where another machine has put it there."""
    with contextlib.suppress(OSError):
        folder.chmod(folder.stat().st_mode & 0o7777)  # makes a client of NFS forget what it knew
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _report_in(path: Path, pack_id: str) -> Report | None:
    """The report in a file; None where it cannot be read now. Raises ValueError for another one."""
    try:
        text = path.read_bytes()
    except OSError:
        return None
    report = from_json(text)
    if report.pack_id != pack_id:
        raise ValueError(f"it is one of pack {report.pack_id[:20]!r}")
    return report


def _sign_of_life(placed: Placed) -> Report:
    """That a pack waits to be started again is no silence."""
    last = placed.last
    steps, seconds = (last.member_steps, last.seconds) if last is not None else (0, 0.0)
    return Report(placed.pack.pack_id, steps, 0, seconds)


def _final_state(placed: Placed) -> str:
    """How a job ended; where squeue has forgotten it, as the accounts say."""
    state = placed.job.state if placed.state == "GONE" else placed.state
    return state.split()[0] if state.strip() else "UNKNOWN"


def _last_words(log: Path) -> str:
    """The last lines that a job said on its standard error, as one."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return printable(" / ".join([line.strip()[:200] for line in lines if line.strip()][-_LAST_LINES:]))
