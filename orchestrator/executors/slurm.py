"""Train packs of a custom trainer as Slurm jobs, without Ray. The only importer of submitit.

The driver stays on the login node. Jobs write their reports as JSON files below the sweep's results folder, which the
nodes share; the driver reads and deletes them. submitit submits and restarts jobs. The folder ``slurm`` of a sweep
holds

    run-TOKEN               the driver's permission for its jobs to run; jobs check that it still exists
    jobs                    the driver's jobs, so that the next driver can cancel leftover ones
    reports/PACK/A-N.json   report N of attempt A at a pack; report 0 names the attempt's job
    JOB_*                   submitit's files of a job: its pickled pack, its result and its log
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import shlex
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.environment import OWN_PYTHON, install_command
from orchestrator.base.errors import ExecutorError, InputError, Problem, StorageError, printable
from orchestrator.base.files import JOBS, atomic_write, check_no_links, remove, withdraw_jobs
from orchestrator.base.packs import Event, LaunchedPack, Pack, PackLost
from orchestrator.base.processes import MARK, end_marked, inherited, new_mark
from orchestrator.executors.slurm_cluster import (
    HELD,
    LOCAL_PACE,
    OVER,
    SLURM_PACE,
    WAITING,
    LocalCluster,
    Pace,
    SlurmCluster,
    SubmittedPack,
    is_local,
    most_nodes,
    names_in,
    submission_parameters,
)
from orchestrator.executors.slurm_worker import REPORTS, TrialJob

try:
    import submitit
except ImportError as _error:
    raise InputError(Problem("--executor", "slurm", f"needs submitit: {_error}", install_command("slurm"))) from None

_JOBS = "jobs"
# Slurm's default MaxArraySize.
_MAX_SLOTS = 1000
# A trial that resumes from checkpoints may need many jobs, but a trial without progress must end.
_MAX_TIMEOUTS = 100
_END_EARLIER_S = 120.0
_CLOSE_S = 5.0
_MAX_EXIT_S = 60.0  # for a job to exit after its last report
_STEP_S = 0.05
_SECONDS_PER_ASKING = 1.0  # only squeue reports the end of a job, and the controller is shared
_MAX_REPORTS_PER_S = 25.0
_MAX_REJECTIONS = 10
_LIMIT = "submit limit"  # in sbatch's message about MaxSubmitJobs
_SECONDS_PER_REJECTION = 60.0


class PackJob(TrialJob):
    """The callable that submitit pickles, calls in each job, and asks for a ``checkpoint`` before the job stops."""

    def __reduce__(self) -> Any:
        return (PackJob, self.arguments)

    def __call__(self, pack: LaunchedPack) -> None:
        """Train ``pack``."""
        environment = submitit.JobEnvironment()
        self.train(pack, environment.cluster, environment.job_id)

    def checkpoint(self, pack: LaunchedPack) -> Any:
        """Return the submission of a restart, or None if the job must not restart."""
        return submitit.helpers.DelayedSubmission(PackJob(*self.arguments), pack) if self.end(pack) else None


class SlurmExecutor:
    """One job per pack, with ``cpus`` and ``gpus`` for each of its trial's ``workers`` processes."""

    name = "slurm"

    def __init__(
        self,
        folder: Path,
        cpus: int,
        gpus: float,
        workers: int,
        parallel: int | None,
        options: Mapping[str, str],
        pace: Pace | None = None,
        fewest: int | None = None,
    ) -> None:
        """Clean up after an earlier driver of the sweep in ``folder``, and prepare for ``parallel`` jobs.

        ``pace`` sets how often it checks on them, by default SLURM_PACE, or LOCAL_PACE for local jobs. The job of an
        elastic trial has ``fewest`` processes on each of as many nodes as are free, up to ``workers`` in all. Raises
        InputError for invalid ``options`` or without Slurm.
        """
        here, known = is_local(options), submitit.SlurmExecutor._valid_parameters()
        on_node = fewest or workers
        num_nodes = 1 if here else most_nodes(workers, on_node)
        parameters = submission_parameters(options, known, cpus * on_node, math.ceil(gpus * on_node - 1e-9), num_nodes)
        self._folder = folder.absolute() / JOBS
        if "%" in str(self._folder):
            raise InputError(Problem(str(self._folder), "", "contains a %, which Slurm expands", "change --results"))
        max_slots = max(1, len(os.sched_getaffinity(0)) // (cpus * on_node)) if here else _MAX_SLOTS
        self.slots = min(parallel or max_slots, _MAX_SLOTS)
        self._cluster = LocalCluster() if here else SlurmCluster()
        self._pace = pace or (LOCAL_PACE if here else SLURM_PACE)
        # submitit's log messages would disturb the live view.
        logging.getLogger("submitit").setLevel(logging.CRITICAL)
        self._largest_array = self._cluster.largest_array()
        check_no_links(folder, self._folder)
        self._end_earlier()
        token = f"run-{uuid.uuid4().hex[:12]}"
        self._permission = self._folder / token
        self._mark = new_mark() if here else ""
        self._jobs: dict[str, SubmittedPack] = {}
        self._write_jobs()
        atomic_write(self._permission, "")
        kind = "local" if here else "slurm"
        python = shlex.join([OWN_PYTHON[0], "-u", *OWN_PYTHON[1:]])  # submitit's own -u follows the script
        settings = {f"{kind}_max_num_timeout": _MAX_TIMEOUTS, f"{kind}_python": python}
        self._submitit = submitit.AutoExecutor(self._folder, cluster=kind, **settings)
        defaults = {"name": f"sweep-{folder.name}", "slurm_array_parallelism": self.slots}
        # Ctrl-C signals the driver's whole process group, which includes submitit's local jobs.
        ignoring = {"local_setup": ["trap '' INT"]} if here else {}
        self._submitit.update_parameters(**{**defaults, **ignoring, **parameters})
        self._job = PackJob(str(self._folder), token, parameters["timeout_min"], parameters["slurm_signal_delay_s"])
        self._queue: list[LaunchedPack] = []
        self._num_rejections = 0
        self._has_submitted = False
        self._next_submission = self._next_read = self._next_check = 0.0

    def submit(self, pack: Pack) -> None:
        """Queue ``pack``. Raises InputError unless it belongs to a custom trainer."""
        if not isinstance(pack, LaunchedPack):
            message = "--executor slurm trains only custom trainers; built-in objectives train with ray"
            raise InputError(Problem("", "", message, "--executor ray"))
        self._queue.append(pack)

    def poll(self, timeout_s: float) -> list[Event]:
        """Submit queued packs as arrays, and return new events, waiting at most ``timeout_s`` for the first."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._submit_queued()
            events = self._events()
            left_s = deadline - time.monotonic()
            if events or left_s <= 0:
                return events
            time.sleep(min(_STEP_S, left_s))

    def pause(self) -> None:
        """Stop trials at their next report, and cancel pending jobs."""
        self._queue.clear()
        remove([self._permission])
        waiting = [submitted for submitted in self._jobs.values() if not submitted.is_started]
        for submitted in waiting:
            submitted.is_forgotten = True
        self._cluster.cancel([submitted.job for submitted in waiting])

    def kill(self, pack_id: str) -> None:
        """Cancel the job of a pack; its trial is retried only after the job has ended."""
        submitted = self._jobs.get(pack_id)
        if submitted is not None:
            submitted.is_forgotten = True
            self._cluster.cancel([submitted.job])

    def close(self) -> None:
        """Cancel all jobs. Local jobs have ended when it returns; on a cluster the next driver waits for them."""
        self._queue.clear()
        remove([self._permission])
        if self._mark:
            end_marked(self._mark)
            deadline = time.monotonic() + _CLOSE_S
            while not all(submitted.job.done() for submitted in self._jobs.values()) and time.monotonic() < deadline:
                time.sleep(_STEP_S)
            for submitted in self._jobs.values():
                self._tidy(submitted)
            self._jobs.clear()
        else:
            self._cluster.cancel([submitted.job for submitted in self._jobs.values() if submitted.ended is None])
        if not self._jobs:
            scripts = (*self._folder.glob("*_submission.sh"), *self._folder.glob(".submission_file_*"))
            remove([self._folder / _JOBS, *scripts])
            for empty in (self._folder / REPORTS, self._folder):
                with contextlib.suppress(OSError):
                    empty.rmdir()  # it stays if it has logs of lost jobs

    # --- jobs ------------------------------------------------------------------------------------

    def _submit_queued(self) -> None:
        """Submit as many packs as fit, as arrays; a trial waits while an earlier job of its own may still run."""
        now = time.monotonic()
        if not self._queue or now < self._next_submission:
            return
        present = [submitted for submitted in self._jobs.values() if submitted.ended is None]
        taken = {trial_id for submitted in present for trial_id in submitted.pack.trial_ids}
        ready = [pack for pack in self._queue if taken.isdisjoint(pack.trial_ids)][: max(0, self.slots - len(present))]
        if not ready:
            return
        self._next_submission = now + self._pace.submissions_s
        # Each report costs a read through a shared file system and a write to the ledger.
        report_s = max(self._pace.reports_s, (len(present) + len(ready)) / _MAX_REPORTS_PER_S)
        while ready:
            part = ready[: self._largest_array]
            sent = [replace(pack, launch=replace(pack.launch, report_s=report_s)) for pack in part]
            try:
                with inherited(MARK, self._mark or os.environ.get(MARK)), contextlib.redirect_stderr(io.StringIO()):
                    jobs: list[Any] = self._submitit.map_array(self._job, sent)
            except OSError as error:
                raise StorageError(f"{self._folder}: {error.strerror or error}") from error
            except RuntimeError as error:  # base class of submitit's errors
                if _LIMIT not in str(error) or len(part) == 1:
                    return self._rejected(str(error))
                self._largest_array = len(part) // 2  # a limit of the account or QOS, which only sbatch knows
                continue
            self._has_submitted, self._num_rejections = True, 0
            submitted_ids = {pack.pack_id for pack in part}
            self._queue = [pack for pack in self._queue if pack.pack_id not in submitted_ids]
            self._jobs |= {pack.pack_id: SubmittedPack(pack, job) for pack, job in zip(part, jobs, strict=True)}
            self._write_jobs()
            ready = ready[len(part) :]

    def _rejected(self, cause: str) -> None:
        """Handle a failed sbatch: try again later if it worked before, since the controller may be busy.

        While this driver has jobs, it waits for them, since an account may have a limit. Raises ExecutorError.
        """
        self._next_submission = time.monotonic() + _SECONDS_PER_REJECTION
        self._num_rejections += all(submitted.ended is not None for submitted in self._jobs.values())
        if not self._has_submitted or self._num_rejections > _MAX_REJECTIONS:
            lines = [line.strip() for line in cause.splitlines() if line.strip()] or ["no cause given"]
            remedy = "check --slurm partition=, account= and time=; resources.parallel may be too large"
            raise ExecutorError(f"sbatch rejected the jobs: {printable(lines[-1][:300])}\n    remedy: {remedy}")

    def _write_jobs(self) -> None:
        record: dict[str, Any] = {"mark": self._mark, "jobs": []}
        if not self._mark:
            record["jobs"] = [submitted.job.job_id for submitted in self._jobs.values()]
        atomic_write(self._folder / _JOBS, json.dumps(record))

    def _end_earlier(self) -> None:
        """Cancel the jobs of an earlier driver that was killed, since a trial must not train twice at the same time."""
        if not self._folder.is_dir():
            return
        withdraw_jobs(self._folder.parent)
        mark, job_ids = _leftover_jobs(self._folder)
        if mark:
            end_marked(mark)
        if job_ids:
            if shutil.which("squeue") is None:
                jobs = ", ".join(sorted(job_ids)[:5])
                message = f"an earlier run may have left Slurm jobs behind: {jobs}"
                raise InputError(Problem(str(self._folder), "", message, "run it on a machine that has squeue"))
            self._wait_for_end(job_ids)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for_end(self, job_ids: Collection[str]) -> None:
        cluster = SlurmCluster()
        left: list[Any] = [submitit.SlurmJob(self._folder, job_id) for job_id in sorted(job_ids)]
        cluster.cancel(left)
        deadline = time.monotonic() + _END_EARLIER_S
        while left:
            states = cluster.states(left)
            left = [job for job in left if states.get(job.job_id) not in OVER]
            if left and time.monotonic() > deadline:
                jobs = ", ".join(job.job_id for job in left[:5])
                remedy = "`squeue --me` lists them; run the same command again once they have ended"
                raise ExecutorError(f"jobs of an earlier run have not ended: {jobs}\n    remedy: {remedy}")
            if left:
                time.sleep(_SECONDS_PER_ASKING)

    # --- events ----------------------------------------------------------------------------------

    def _events(self) -> list[Event]:
        began = time.monotonic()
        if began < self._next_read:
            return []
        events = self._check() if began >= self._next_check else []
        seen = names_in(self._folder / REPORTS) if self._jobs else set()
        for submitted in self._jobs.values():
            if not submitted.is_forgotten and submitted.pack.pack_id in seen:
                events += self._read(submitted)
        for submitted in list(self._jobs.values()):
            if submitted.over_since is not None:
                events += self._end(submitted)
        # Do not poll a slow file system all the time.
        ended = time.monotonic()
        self._next_read = ended + max(self._pace.reads_s, 4 * (ended - began))
        return events

    def _check(self) -> list[Event]:
        """Query which jobs have ended; reports are read afterwards, since the last one precedes the end of a job."""
        events: list[Event] = []
        states = self._cluster.states([submitted.job for submitted in self._jobs.values()])
        now = time.monotonic()
        for submitted in self._jobs.values():
            submitted.state = states.get(submitted.job.job_id, submitted.state)
            if submitted.state not in OVER:
                submitted.over_since = None
            elif submitted.over_since is None:
                submitted.over_since = now
            if submitted.state.startswith(HELD) and not submitted.is_forgotten:
                events.append(submitted.held())
                self.kill(submitted.pack.pack_id)
            if submitted.is_started and not submitted.is_forgotten and submitted.state in WAITING:
                events.append(submitted.heartbeat())
            if submitted.ended is not None and submitted.over_since is None and now - submitted.ended > _MAX_EXIT_S:
                self._cluster.cancel([submitted.job])  # it hangs or was restarted needlessly
        self._next_check = now + self._pace.checks_s
        return events

    def _read(self, submitted: SubmittedPack) -> list[Event]:
        """Return new events of a pack; a job with a damaged report is lost."""
        events = list(submitted.read(self._folder / REPORTS))
        if any(isinstance(event, PackLost) for event in events):
            self.kill(submitted.pack.pack_id)
        return events

    def _end(self, submitted: SubmittedPack) -> Iterator[Event]:
        """Handle the end of a job; without a last report its pack is lost."""
        if not submitted.is_forgotten:
            assert submitted.over_since is not None
            if time.monotonic() - submitted.over_since < self._pace.late_s:
                return
            yield submitted.lost()
        self._tidy(submitted)
        del self._jobs[submitted.pack.pack_id]
        self._write_jobs()

    def _tidy(self, submitted: SubmittedPack) -> None:
        """Remove the files of a job; a log that may explain a missing result stays until the next run."""
        paths = submitted.job.paths
        remove([paths.submitted_pickle, paths.result_pickle])
        if submitted.ended is not None:
            remove([paths.stdout, paths.stderr])
        shutil.rmtree(self._folder / REPORTS / submitted.pack.pack_id, ignore_errors=True)


def _leftover_jobs(folder: Path) -> tuple[str, set[str]]:
    """Return an earlier driver's mark of local processes, and its Slurm jobs: recorded, or registered by themselves."""
    mark, job_ids = "", set()
    path = folder / _JOBS
    try:
        if path.exists():
            record = json.loads(path.read_text())
            mark, job_ids = str(record["mark"]), {str(job_id) for job_id in record["jobs"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        remedy = "make sure that no job of this sweep is running, then delete the file"
        raise StorageError(f"{path}: is damaged: {error}\n    remedy: {remedy}") from None
    for claim in folder.glob(f"{REPORTS}/*/*-000000.json"):
        # An incomplete file belongs to a job that has not yet checked its permission.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            registered = json.loads(claim.read_text())
            if registered["cluster"] == "slurm":
                job_ids.add(str(registered["job"]))
    return mark, job_ids
