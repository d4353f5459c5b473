"""Trials as Slurm jobs: with submitit's local jobs, and with a Slurm that is a script."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import submitit
from custom_cases import TRAIN, only_pack, sweep_in, trained
from fault_kit import wait_until
from slurm_cases import (
    FORGETFUL,
    LOCAL,
    ONE,
    POLITE,
    RESUMES,
    SLEEPS,
    TWO,
    Watching,
    assert_same,
    closing,
    events_until,
    executor_for,
    has_last,
    job_process,
    killed_driver,
    meanwhile,
    rows_of,
    script_in,
)
from sweep_cases import QUADRATIC

from orchestrator.base.errors import ExecutorError, InputError
from orchestrator.base.packs import Completed, Failed, PackLost, PackStarted, Paused, Report
from orchestrator.base.processes import children, is_alive, marked
from orchestrator.driver.packing import make_packs
from orchestrator.executors.slurm import SlurmExecutor
from orchestrator.executors.slurm_cluster import SlurmCluster, SubmittedPack
from orchestrator.executors.slurm_worker import Outbox
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

# --- a pack that begins anew -------------------------------------------------------------------------


def test_a_pack_that_starts_over_has_one_curve_in_the_ledger(tmp_path: Path) -> None:
    pack = only_pack(sweep_in(tmp_path), tmp_path)
    (trial_id,) = pack.trial_ids

    def report(steps: range, **kind: bool) -> Report:
        trace = {"step": np.array(steps), "loss": np.array([1.0] * len(steps))}
        return Report(pack.pack_id, steps.stop, 0, 1.0, traces={trial_id: trace}, **kind)

    sweep = sweep_in(tmp_path)
    with LedgerWriter(tmp_path / "ledger.db") as ledger:
        ledger.plan("command", sweep.trials, {})
        ledger.start_pack(pack, "slurm")
        ledger.record(report(range(7), is_from_start=True))
        ledger.record(report(range(7, 9)))
        np.testing.assert_array_equal(ledger.trace(trial_id)["step"], np.arange(9))
        ledger.record(report(range(3), is_from_start=True))
        np.testing.assert_array_equal(ledger.trace(trial_id)["step"], np.arange(3))
        ledger.record(report(range(3, 6)))
        np.testing.assert_array_equal(ledger.trace(trial_id)["step"], np.arange(6))
        ledger.end_pack(pack.pack_id, "lost", "lost", "gone")
        ledger.record(report(range(1), is_from_start=True))  # it owns the trial no more
        np.testing.assert_array_equal(ledger.trace(trial_id)["step"], np.arange(6))


# --- local jobs --------------------------------------------------------------------------------------


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each array has that is submitted."""
    sizes: list[int] = []
    map_array = submitit.AutoExecutor.map_array
    spy = lambda self, job, packs: (sizes.append(len(packs)), map_array(self, job, packs))[1]  # noqa: E731
    monkeypatch.setattr(submitit.AutoExecutor, "map_array", spy)
    return sizes


def test_a_sweep_of_local_jobs_is_one_array_with_the_results_of_the_inline_executor(
    tmp_path: Path, sizes: list[int]
) -> None:
    sweep = sweep_in(tmp_path, text=TWO)
    folder = tmp_path / "jobs of 2"
    rows = rows_of(sweep, folder)
    assert sizes == [2]
    assert_same(rows, trained(sweep, tmp_path))
    assert [row.num_attempts for row in rows] == [1, 1]
    assert not (folder / "slurm").exists()


@pytest.mark.parametrize(("script", "text"), [(POLITE, RESUMES), (FORGETFUL, ONE)], ids=["resumes", "begins anew"])
def test_a_preempted_job_goes_on_and_its_curve_is_whole(tmp_path: Path, script: str, text: str) -> None:
    def preempt() -> None:
        wait_until((tmp_path / "waits").exists, "trial that waits")
        time.sleep(0.8)  # for a report
        # What Slurm sends for submitit; `_interrupt` of a local job hits the process that watches it instead.
        os.kill(job_process(script_in(tmp_path)), signal.SIGUSR2)

    watching = Watching()
    with meanwhile(preempt):
        (row,) = rows_of(sweep_in(tmp_path, script, text), tmp_path / "results", [watching])
    assert (row.status, row.outcome, row.num_attempts) == ("finished", "stable", 1)
    assert_whole(row)
    assert watching.steps == sorted(watching.steps)
    assert watching.steps[-1] >= 60


def assert_whole(row: Any) -> None:
    np.testing.assert_array_equal(row.curve["step"], np.arange(60))
    np.testing.assert_allclose(row.curve["grad_norm"], 2.0 * 0.9 ** np.arange(60), rtol=1e-8)


def test_a_job_whose_time_is_over_is_an_error_where_the_command_cannot_resume(tmp_path: Path) -> None:
    with closing(executor_for(tmp_path / "results", cluster="local", time="1")) as executor:
        executor.submit(only_pack(sweep_in(tmp_path, SLEEPS, ONE), tmp_path))
        events_until(executor, lambda events: list(tmp_path.glob("pid-*")))
        os.kill(job_process(script_in(tmp_path)), signal.SIGUSR2)
        last = events_until(executor, has_last)[-1]
    assert "1 minutes were not enough" in last.error
    assert isinstance(last.ending, Failed)


def test_a_job_that_is_killed_is_lost_and_tried_again(tmp_path: Path) -> None:
    script = (
        'import os, time\nprint("step 0 loss 3.0", flush=True)\n'
        'if not os.path.exists("died"):\n    open("died", "w").close()\n'
        "    os.kill(os.getppid(), 9)\n    time.sleep(60)\n"
    )
    folder = tmp_path / "results"
    (row,) = rows_of(sweep_in(tmp_path, script + TRAIN.replace("step {step}", "step {step + 1}"), ONE), folder)
    assert (row.status, row.num_attempts) == ("finished", 2)
    with LedgerReader(folder / "ledger.db") as ledger:
        assert [pack.ended for pack in ledger.packs()] == ["lost", "done"]


def test_a_job_that_cannot_even_begin_is_lost_with_its_last_words(tmp_path: Path) -> None:
    with closing(executor_for(tmp_path / "results")) as executor:
        pack = only_pack(sweep_in(tmp_path, text=ONE), tmp_path)
        (executor._folder / "reports").write_text("in the way")
        executor.submit(pack)
        (lost,) = events_until(executor, lambda events: events)
    assert isinstance(lost, PackLost)
    assert "ended without a last report (FINISHED)" in lost.reason
    assert "reports: is a file, not a folder" in lost.reason


def test_the_jobs_of_a_killed_driver_are_ended_by_the_next_one(tmp_path: Path) -> None:
    script = killed_driver(tmp_path, **LOCAL)
    job = job_process(script)
    with closing(executor_for(tmp_path / "results")):
        assert not is_alive(script)
        assert not is_alive(job)
        assert children(job) == {}


def test_a_pause_ends_what_runs_and_drops_what_waits(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, SLEEPS, TWO)
    launch = only_pack(sweep, tmp_path).launch
    first, second = (replace(pack, launch=launch) for pack in make_packs(sweep, sweep.trials, 1))
    with closing(executor_for(tmp_path / "results", parallel=1)) as executor:
        executor.submit(first)
        executor.submit(second)
        events_until(executor, lambda events: any(isinstance(event, Report) for event in events))
        executor.pause()
        events = events_until(executor, has_last)
        assert events[-1].ending == Paused()
        assert {event.pack_id for event in events} == {first.pack_id}
        assert not is_alive(int((tmp_path / "pid-0.1").read_text()))


def test_a_trial_runs_once_at_a_time_and_closing_leaves_no_process(tmp_path: Path) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPS
    pack = only_pack(sweep_in(tmp_path, stubborn, ONE), tmp_path)
    folder = tmp_path / "results"
    executor = executor_for(folder)
    with closing(executor):
        executor.submit(pack)
        events_until(executor, lambda events: list(tmp_path.glob("pid-*")))
        (script,) = (int(path.read_text()) for path in tmp_path.glob("pid-*"))
        (tmp_path / "pid-0.1").unlink()
        again = replace(pack, pack_id="again")
        executor.submit(again)
        executor.poll(0.5)
        assert "again" not in executor._jobs
        executor.kill(pack.pack_id)
        events = events_until(executor, lambda events: (tmp_path / "pid-0.1").exists())
        assert not is_alive(script)
        assert {event.pack_id for event in events} <= {"again"}
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert marked(executor._mark) == []
    assert not is_alive(int((tmp_path / "pid-0.1").read_text()))
    assert not (folder / "slurm" / "jobs").exists()


class Job:
    """What the executor asks of a submitit job, for one that is not there."""

    def __init__(self, job_id: str, folder: Path) -> None:
        self.job_id, self.state = job_id, "RUNNING"
        self.paths = submitit.LocalJob(folder, job_id).paths

    def done(self) -> bool:
        return True


def test_reports_come_in_order_and_those_of_an_attempt_that_was_replaced_count_no_more(tmp_path: Path) -> None:
    pack = only_pack(sweep_in(tmp_path), tmp_path)
    with closing(executor_for(tmp_path / "results")) as executor:
        executor._jobs[pack.pack_id] = SubmittedPack(pack, Job("0", tmp_path))
        folder = executor._folder / "reports" / pack.pack_id
        first = Outbox(folder, "slurm", "1_0")
        first.write(Report(pack.pack_id, 1, 1, 1.0))
        started, report = executor.poll(1.0)
        assert (started, report.member_steps) == (PackStarted(pack.pack_id), 1)
        second = Outbox(folder, "slurm", "1_0")
        assert first.is_outdated()
        assert not second.is_outdated()
        (sign,) = executor.poll(1.0)  # no second start
        assert (sign.member_steps, sign.traces) == (1, {})
        first.write(Report(pack.pack_id, 2, 2, 2.0, ending=Completed()))
        second.write(Report(pack.pack_id, 7, 7, 3.0, is_from_start=True))
        assert [event.member_steps for event in executor.poll(1.0)] == [7]
        assert sorted(path.name for path in folder.iterdir()) == ["0001-000000.json", "0002-000000.json"]
        (folder / "0002-000003.json").write_text("not yet: the second is missing")
        assert executor.poll(0.3) == []
        second.write(Report("another", 8, 8, 4.0))
        (lost,) = executor.poll(1.0)
        assert "damaged" in lost.reason


def test_a_pack_that_waits_to_be_started_again_gives_signs_of_life(tmp_path: Path) -> None:
    pack, job = only_pack(sweep_in(tmp_path), tmp_path), Job("0", tmp_path)
    with closing(executor_for(tmp_path / "results")) as executor:
        executor._jobs[pack.pack_id] = SubmittedPack(pack, job)
        job.state = "PENDING"
        assert executor.poll(0.3) == []
        executor._jobs[pack.pack_id].is_started = True
        (sign,) = executor.poll(1.0)
        assert (sign.pack_id, sign.member_steps, sign.ending) == (pack.pack_id, 0, None)


def test_more_jobs_report_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    with closing(executor_for(tmp_path / "results", parallel=300)) as executor:
        monkeypatch.setattr(executor._submitit, "map_array", lambda _, packs: sent.extend(packs) or [])
        executor._jobs.clear()
        pack = only_pack(sweep_in(tmp_path), tmp_path)
        for number in range(300):
            executor.submit(replace(pack, pack_id=str(number), members=()))
        with pytest.raises(ValueError, match="zip"):
            executor.poll(0.0)
    assert {pack.launch.report_s for pack in sent} == {12.0}


# --- a Slurm that is a script ------------------------------------------------------------------------

FAKE = '''#!{python} -IS
"""sbatch, squeue, scancel, srun, scontrol and sacct of a Slurm with one node; its state is the folder below."""
import os, re, signal, subprocess, sys, time
HOME = {home!r}
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(HOME + "/calls", "a") as calls:
    calls.write(" ".join([name, *arguments]) + "\\n")

def put(what, text):
    with open(HOME + "/" + what + ".new", "w") as file:
        file.write(text)
    os.rename(HOME + "/" + what + ".new", HOME + "/" + what)

def get(what):
    try:
        return open(HOME + "/" + what).read()
    except OSError:
        return ""

def jobs():
    return [entry[6:] for entry in os.listdir(HOME) if entry.startswith("state-") and not entry.endswith(".new")]

if name == "sbatch" and len(arguments) == 1:
    text = open(arguments[0]).read()
    array = re.search("--array=0-([0-9]+)", text)
    unfinished = [job for job in jobs() if get("state-" + job) in ("PENDING", "RUNNING")]
    if len(unfinished) + (int(array.group(1)) + 1 if array else 1) > int(get("limit") or 1000):
        print("sbatch: error: QOSMaxSubmitJobPerUserLimit", file=sys.stderr)
        sys.exit("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
                 "(job submit limit, user's size and/or time limits)")
    number = str(100 + len(jobs()))
    elements = ["_" + str(i) for i in range(int(array.group(1)) + 1)] if array else [""]
    for element in elements:
        put("state-" + number + element, "PENDING")
        subprocess.Popen([sys.argv[0], arguments[0], number, element[1:]], start_new_session=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print("Submitted batch job " + number)
elif name == "sbatch":
    script, number, element = arguments
    job = number + ("_" + element if element else "")
    ids = {{"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": element}} if element else {{}}
    environment = {{**os.environ, **ids, "SLURM_JOB_ID": number, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}}
    while not get("cancelled-" + job):
        put("state-" + job, "RUNNING")
        code = subprocess.call(["bash", script], env=environment)
        if not get("requeued-" + job):
            break
        os.unlink(HOME + "/requeued-" + job)
        put("state-" + job, "PENDING")
        time.sleep(0.3)
    put("state-" + job, "CANCELLED" if get("cancelled-" + job) else "FAILED" if code else "COMPLETED")
elif name == "srun":
    at = next(i for i, word in enumerate(arguments) if not word.startswith("-") and arguments[i - 1] not in
              ("--output", "--error"))
    job, number = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_ARRAY_TASK_ID")
    job += "_" + number if number else ""
    put("pid-" + job, str(os.getpid()))
    for option, handle in (("--output", 1), ("--error", 2)):
        path = arguments[arguments.index(option) + 1].replace("%A_%a", job).replace("%j", job).replace("%t", "0")
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), handle)
    os.execvp(arguments[at], arguments[at:])
elif name == "squeue":
    for job in jobs():
        print(job, get("state-" + job), get("reason-" + job) or "None")
elif name == "scontrol" and arguments[0] == "show":
    print("MaxArraySize            = " + (get("largest") or "1001"))
elif name == "scontrol":
    put("requeued-" + arguments[1], "yes")
elif name == "sacct":
    print("JobID|State|NodeList")
elif name == "scancel":
    chosen = [job for job in jobs() if job in arguments or job.split("_")[0] in arguments]
    for job in chosen:
        put("cancelled-" + job, "yes")
        if get("pid-" + job) and get("state-" + job) == "RUNNING":
            subprocess.Popen(["sh", "-c", "kill -TERM $0; sleep 2; kill -KILL $0", get("pid-" + job)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
'''


class FakeSlurm:
    """The scripts on the path, and what was asked of them."""

    def __init__(self, folder: Path) -> None:
        self.home, self.commands = folder / "cluster", folder / "bin"
        self.home.mkdir()
        self.commands.mkdir()
        script = FAKE.format(python=sys.executable, home=str(self.home))
        for name in ("sbatch", "squeue", "scancel", "srun", "scontrol", "sacct"):
            (self.commands / name).write_text(script)
            (self.commands / name).chmod(0o755)

    def calls(self, name: str) -> list[str]:
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines if line.split()[0] == name]

    def pids(self) -> list[int]:
        return [int(path.read_text()) for path in self.home.glob("pid-*[0-9]")]

    def states(self) -> dict[str, str]:
        return {path.name[6:]: path.read_text() for path in self.home.glob("state-*[0-9]")}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    found = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{found.commands}:{os.environ['PATH']}")
    yield found
    for pid in found.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    over = {"COMPLETED", "FAILED", "CANCELLED"}
    wait_until(lambda: set(found.states().values()) <= over, "end of all jobs", 10)


def test_a_sweep_on_slurm_is_one_array_with_the_results_of_the_inline_executor(tmp_path: Path, fake: FakeSlurm) -> None:
    sweep = sweep_in(tmp_path, text=TWO)
    folder = tmp_path / "results-2"
    seen: list[str] = []

    class Keeps(Watching):
        def changed(self, progress, *_) -> None:
            seen.extend(path.read_text() for path in (folder / "slurm").glob("*_submission.sh") if not seen)

    rows = rows_of(sweep, folder, [Keeps()], time="30", partition="gpu", account="me", mem_gb="4", qos="low")
    assert_same(rows, trained(sweep, tmp_path))
    assert len(fake.calls("sbatch")) == 1 + 2  # and each element of the array starts itself
    assert fake.calls("scancel") == []
    lines = seen[0].splitlines()
    for line in (
        "#SBATCH --array=0-1%2", "#SBATCH --cpus-per-task=1", "#SBATCH --time=30", "#SBATCH --partition=gpu",
        "#SBATCH --account=me", "#SBATCH --mem=4GB", "#SBATCH --qos=low", "#SBATCH --requeue", "#SBATCH --nodes=1",
        "#SBATCH --signal=USR2@90", "#SBATCH --job-name=sweep-results-2", "#SBATCH --ntasks-per-node=1",
    ):  # fmt: skip
        assert line in lines
    assert "srun" in seen[0]
    assert " --cpus-per-task=1 " in seen[0].partition("# command")[2]
    assert "gpus" not in seen[0]


def test_a_job_that_slurm_starts_again_goes_on_and_its_curve_is_whole(tmp_path: Path, fake: FakeSlurm) -> None:
    def preempt() -> None:
        wait_until((tmp_path / "waits").exists, "trial that waits")
        time.sleep(0.8)  # for a report
        (pid,) = fake.pids()
        os.kill(pid, signal.SIGTERM)  # what submitit itself sends to try it out, first this and then that
        os.kill(pid, signal.SIGUSR2)

    with meanwhile(preempt):
        (row,) = rows_of(sweep_in(tmp_path, POLITE, RESUMES), tmp_path / "results", time="30")
    assert (row.status, row.num_attempts) == ("finished", 1)
    assert_whole(row)
    assert fake.calls("scontrol") == ["show config", "requeue 100"]


def test_the_jobs_of_a_killed_driver_are_cancelled_and_waited_for(tmp_path: Path, fake: FakeSlurm) -> None:
    script = killed_driver(tmp_path, time="30")
    executor = executor_for(tmp_path / "results", time="30")
    assert not is_alive(script)
    assert fake.calls("scancel") == ["100"]  # which the driver wrote down before it died
    assert fake.states() == {"100": "CANCELLED"}
    executor.submit(only_pack(sweep_in(tmp_path, SLEEPS, ONE), tmp_path))
    events_until(executor, lambda events: events)
    began = time.monotonic()
    executor.close()
    assert time.monotonic() - began < 2
    assert fake.calls("scancel")[1:] == ["101"]
    wait_until(lambda: fake.states()["101"] == "CANCELLED", "end of the job", 10)
    assert json.loads((tmp_path / "results" / "slurm" / "jobs").read_text())["jobs"] == ["101"]


@pytest.mark.parametrize(("setting", "arrays"), [("largest", [3, 3]), ("limit", [6, 3])])
def test_trials_beyond_the_limits_of_a_cluster_are_submitted_in_parts(
    tmp_path: Path, fake: FakeSlurm, sizes: list[int], monkeypatch: pytest.MonkeyPatch, setting: str, arrays: list[int]
) -> None:
    monkeypatch.setattr("orchestrator.executors.slurm._SECONDS_PER_REJECTION", 0.5)
    (fake.home / setting).write_text("3")
    sweep = sweep_in(tmp_path)
    rows = rows_of(sweep, tmp_path / "results-2", parallel=None, time="30")
    assert_same(rows, trained(sweep, tmp_path))
    assert sizes[:2] == arrays
    assert [row.num_attempts for row in rows] == [1] * 6
    assert len(fake.states()) == 6


def test_a_limit_is_waited_for_as_long_as_own_jobs_are_there(
    tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.executors.slurm._SECONDS_PER_REJECTION", 0.1)
    (fake.home / "limit").write_text("1")
    sweep = sweep_in(tmp_path, SLEEPS.replace("time.sleep(120)", "time.sleep(6)"), TWO)
    rows = rows_of(sweep, tmp_path / "results", parallel=None, time="30")
    assert [row.num_attempts for row in rows] == [1, 1]
    # Ten refusals in a row end a driver that has no jobs.
    assert len([call for call in fake.calls("sbatch") if len(call.split()) == 1]) > 12


def test_a_job_that_slurm_holds_is_lost_and_one_that_somebody_holds_is_waited_for(
    tmp_path: Path, fake: FakeSlurm
) -> None:
    (fake.home / "state-100").write_text("PENDING")
    cluster, job = SlurmCluster(), Job("100", tmp_path)
    for state, reason, expected in (
        ("PENDING", "JobHeldUser", "PENDING"),
        ("PENDING", "launch failed requeued held", "HELD launch failed requeued held"),
        ("CANCELLED", "launch failed requeued held", "CANCELLED"),
    ):
        (fake.home / "state-100").write_text(state)
        (fake.home / "reason-100").write_text(reason)
        assert cluster.states([job]) == {"100": expected}


def test_what_sbatch_says_against_the_jobs_is_shown(tmp_path: Path, fake: FakeSlurm) -> None:
    (fake.commands / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n"
    )
    with closing(executor_for(tmp_path / "results", time="30")) as executor:
        executor.submit(only_pack(sweep_in(tmp_path), tmp_path))
        with pytest.raises(ExecutorError, match="invalid partition specified: gpu"):
            executor.poll(0.1)


def test_gpus_are_asked_for_once(tmp_path: Path, fake: FakeSlurm) -> None:
    for options, expected in (({}, 3), ({"gres": "gpu:a100:3"}, None)):
        made = SlurmExecutor(tmp_path / "results", 2, 1.5, 2, None, {"time": "30", **options})
        parameters = made._submitit._executor.parameters
        assert (parameters["cpus_per_task"], parameters.get("gpus_per_node")) == (4, expected)
        assert made.slots == 1000
        made.close()


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partion": "gpu", **LOCAL}, ["partion", "choose one of: account,", "did you mean `partition`?"]),
        ({"nodes": "2", **LOCAL}, ["nodes", "resources"]),
        ({"cluster": "locl"}, ["'locl' is unknown; choose one of: local, slurm", "did you mean `local`?"]),
        ({"time": "2:00:00", **LOCAL}, ["'2:00:00' is not a positive integer, in minutes"]),
        ({"mem_gb": "much", **LOCAL}, ["'much' is not a number of GB"]),
        ({"comment": "a\nrm -r .", **LOCAL}, ["is not a valid value"]),
        ({"srun_args": "'", **LOCAL}, ["No closing quotation"]),
        ({"time": "60"}, ["needs Slurm, but cannot find sbatch, squeue, scancel, srun", "--slurm cluster=local"]),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], words: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        executor_for(tmp_path / "results", **options)
    for word in words:
        assert word in str(caught.value)


def test_a_job_without_an_end_is_refused(tmp_path: Path, fake: FakeSlurm) -> None:
    with pytest.raises(InputError, match="--slurm: time: is missing"):
        executor_for(tmp_path / "results", partition="gpu")


def test_built_in_objectives_are_refused(tmp_path: Path) -> None:
    sweep = build_sweep(parse_document(QUADRATIC, "edge.yaml"))
    with closing(executor_for(tmp_path / "results")) as executor:
        with pytest.raises(InputError, match="built-in objectives train with ray"):
            executor.submit(make_packs(sweep, sweep.trials, 1)[0])
