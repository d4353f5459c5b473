"""Trials as jobs of a real Slurm, with its own preemption, limits, memory and devices."""

import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from custom_cases import only_pack, sweep_in, trained
from fault_kit import results_of, run, wait_until
from slurm_cases import (
    FORGETFUL,
    ONE,
    POLITE,
    QUICK,
    RESUMES,
    SLEEPS,
    TWO,
    assert_same,
    closing,
    events_until,
    executor_for,
    has_last,
    killed_driver,
    meanwhile,
    rows_of,
)
from slurm_kit import KERNEL, MEASURED, Slurm

from orchestrator.base.packs import Completed, PackLost
from orchestrator.base.processes import is_alive
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.slurm import SlurmExecutor
from orchestrator.ledger.reader import LedgerReader

pytestmark = pytest.mark.slurm
USAGE = {f"median_{name}" for name in ("peak_memory", "peak_device_memory", "joules")}
LOW = {"time": "30", "partition": "low"}
Start = Callable[..., Slurm]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a Slurm that the commands of this process and of its children reach."""
    made: list[Slurm] = []

    def begin(nodes: int = 1, low: str = "", **settings: str) -> Slurm:
        made.append(Slurm(nodes, low, **settings))
        monkeypatch.setenv("SLURM_CONF", str(made[-1].conf))
        made[-1].start()
        return made[-1]

    yield begin
    for slurm in made:
        slurm.close()


def packs_of(folder: Path) -> list[str]:
    with LedgerReader(folder / "ledger.db") as ledger:
        return [pack.ended for pack in ledger.packs()]


def has_checkpoint(folder: Path) -> bool:
    """Whether the trial was asked to end, and had the time to write what it then resumed from."""
    return bool(list(folder.glob("results/trials/*/ckpt")))


def assert_whole(row) -> None:
    """All 60 steps of gradient descent, each once."""
    np.testing.assert_array_equal(row.curve["step"], np.arange(60))
    np.testing.assert_allclose(row.curve["grad_norm"], 2.0 * 0.9 ** np.arange(60), rtol=1e-8)


def map_in(path: Path) -> list[dict[str, str]]:
    """The rows of an exported map, without what the machine was measured to use."""
    with open(path, newline="") as file:
        return [{name: value for name, value in row.items() if name not in USAGE} for row in csv.DictReader(file)]


def test_a_sweep_runs_to_its_map_and_has_the_results_of_the_inline_executor(tmp_path: Path, start: Start) -> None:
    start(nodes=2)
    for folder, arguments in (
        ("jobs", ["--executor", "slurm", "--slurm", "partition=low", "--slurm", "time=30"]),
        ("inline", ["--executor", "inline"]),
    ):
        (tmp_path / folder).mkdir()
        sweep_in(tmp_path / folder)
        code, output = run(tmp_path / folder, "run", "mine.yaml", *arguments)
        assert code == 0, output
        code, output = run(tmp_path / folder, "export", "heatmap", "mine", "--output", "../" + folder + ".csv")
        assert code == 0, output
    assert map_in(tmp_path / "jobs.csv") == map_in(tmp_path / "inline.csv")
    assert results_of(tmp_path / "jobs", "mine") == results_of(tmp_path / "inline", "mine")


def test_more_trials_than_an_array_may_have_are_submitted_in_parts(tmp_path: Path, start: Start) -> None:
    slurm = start(MaxArraySize="3")
    sweep = sweep_in(tmp_path)
    rows = rows_of(sweep, tmp_path / "jobs", parallel=6, **LOW)
    assert_same(rows, trained(sweep, tmp_path))
    assert [row.num_attempts for row in rows] == [1] * 6
    assert len(slurm.jobs()) == 6


def highest(slurm: Slurm, seconds: int = 3) -> str:
    """A job that needs a whole node and goes first."""
    return slurm.submit("--partition=high", "--exclusive", "--time=1", script=f"sleep {seconds}")


@pytest.mark.parametrize(
    ("low", "settings"),
    [
        ("", {}),
        ("GraceTime=20", {}),
        ("GraceTime=20", {"SlurmctldParameters": "preempt_send_user_signal"}),
    ],
    ids=["killed after KillWait", "killed after GraceTime", "asked by the user's signal"],
)
@pytest.mark.parametrize(("script", "text"), [(POLITE, RESUMES), (FORGETFUL, ONE)], ids=["resumes", "begins anew"])
def test_a_preempted_job_is_requeued_and_its_curve_is_whole(
    tmp_path: Path, start: Start, script: str, text: str, low: str, settings: dict[str, str]
) -> None:
    slurm = start(low=low, KillWait="10", **settings)

    def preempt() -> None:
        wait_until((tmp_path / "waits").exists, "trial that waits")
        time.sleep(0.8)  # for a report
        slurm.wait_for(highest(slurm), "COMPLETED")

    with meanwhile(preempt):
        (row,) = rows_of(sweep_in(tmp_path, script, text), tmp_path / "results", **LOW)
    assert (row.status, row.outcome, row.num_attempts) == ("finished", "stable", 1)
    assert_whole(row)
    assert has_checkpoint(tmp_path) == (script == POLITE)
    assert len(slurm.jobs()) == 2
    assert slurm.show("1")["Restarts"] == "1"


def test_a_job_that_is_requeued_by_hand_goes_on_and_its_curve_is_whole(tmp_path: Path, start: Start) -> None:
    slurm = start(KillWait="5")

    def requeue() -> None:
        wait_until((tmp_path / "waits").exists, "trial that waits")
        time.sleep(0.8)  # for a report
        slurm.say("scontrol", "requeue", "1")

    with meanwhile(requeue):
        (row,) = rows_of(sweep_in(tmp_path, POLITE, RESUMES), tmp_path / "results", **LOW)
    assert (row.status, row.num_attempts) == ("finished", 1)
    assert_whole(row)
    assert slurm.show("1")["Restarts"] == "1"


def test_a_job_that_somebody_cancels_is_lost_and_tried_again(tmp_path: Path, start: Start) -> None:
    slurm = start(KillWait="5")

    def cancel() -> None:
        wait_until((tmp_path / "waits").exists, "trial that waits")
        slurm.say("scancel", "1")

    with meanwhile(cancel):
        (row,) = rows_of(sweep_in(tmp_path, POLITE, RESUMES), tmp_path / "results", **LOW)
    assert (row.status, row.num_attempts) == ("finished", 2)
    assert_whole(row)
    assert packs_of(tmp_path / "results") == ["lost", "done"]
    assert slurm.jobs()["1"] == "CANCELLED"


GREEDY = 'import time\nprint("step 0 loss 3.0", flush=True)\ntime.sleep(1)\nx = b"x" * (1 << 30)\ntime.sleep(30)\n'


@pytest.mark.parametrize("settings", [KERNEL, MEASURED], ids=["by the kernel", "by Slurm"])
def test_a_trial_that_needs_more_memory_than_its_job_has_is_an_error_that_says_so(
    tmp_path: Path, start: Start, settings: dict[str, str]
) -> None:
    slurm = start(**settings)
    sweep = sweep_in(tmp_path, GREEDY, ONE)
    (row,) = rows_of(sweep, tmp_path / "results", mem_gb="0.5", **LOW)
    assert (row.status, row.num_attempts) == ("errored", 3)
    assert "its job ran out of memory (raise --slurm mem_gb=)" in row.reason
    assert len(slurm.jobs()) == 3


def test_trials_that_need_gpus_have_different_ones(tmp_path: Path, start: Start) -> None:
    slurm = start()
    script = (
        'import os, time, glob\nopen("gpu-" + os.environ["CUDA_VISIBLE_DEVICES"], "w").close()\n'
        'while len(glob.glob("gpu-*")) < 2:\n    time.sleep(0.1)\n'
        'print("step 0 loss 1.0")\nprint("step 59 loss 0.5")\n'
    )
    sweep = sweep_in(tmp_path, script, TWO)
    run_sweep(sweep, tmp_path / "results", lambda: SlurmExecutor(tmp_path / "results", 1, 1.0, 1, 2, LOW, QUICK))
    assert sorted(path.name for path in tmp_path.glob("gpu-*")) == ["gpu-0", "gpu-1"]
    assert slurm.show("1_0")["TresPerNode"] == "gres:gpu:1"


def test_a_trial_goes_on_in_further_jobs_where_the_time_of_one_is_over(tmp_path: Path, start: Start) -> None:
    slurm = start()
    (row,) = rows_of(sweep_in(tmp_path, POLITE, RESUMES), tmp_path / "results", time="1", signal_delay_s="30")
    assert (row.status, row.num_attempts) == ("finished", 1)
    assert_whole(row)
    assert has_checkpoint(tmp_path)
    assert slurm.show("1")["Restarts"] == "1"


def test_a_trial_without_a_checkpoint_is_an_error_where_its_time_is_over(tmp_path: Path, start: Start) -> None:
    slurm = start()
    with closing(executor_for(tmp_path / "results", time="1", signal_delay_s="30")) as executor:
        executor.submit(only_pack(sweep_in(tmp_path, SLEEPS, ONE), tmp_path))
        last = events_until(executor, has_last)[-1]
        assert "1 minutes were not enough" in last.error
        events_until(executor, lambda _: executor._jobs == {})
    assert slurm.show("1")["Restarts"] == "0"


def test_the_jobs_of_a_killed_driver_are_cancelled_before_trials_run_again(tmp_path: Path, start: Start) -> None:
    slurm = start()
    script = killed_driver(tmp_path, **LOW)
    assert set(slurm.jobs().values()) == {"RUNNING"}
    with closing(executor_for(tmp_path / "results", **LOW)):
        assert not is_alive(script)
        assert set(slurm.jobs().values()) == {"CANCELLED"}


def test_a_controller_that_is_killed_and_started_again_disturbs_no_trial(tmp_path: Path, start: Start) -> None:
    slurm = start()
    script = POLITE.replace("time.sleep(120)", "time.sleep(20)").replace("signal.signal", "(lambda *_: None)")

    def restart() -> None:
        wait_until((tmp_path / "waits").exists, "trial that waits")
        time.sleep(7)  # it writes what it knows every five seconds
        slurm.kill("slurmctld")
        time.sleep(6)
        slurm.start_controller()

    with meanwhile(restart):
        (row,) = rows_of(sweep_in(tmp_path, script, RESUMES), tmp_path / "results", **LOW)
    assert (row.status, row.num_attempts) == ("finished", 1)
    assert_whole(row)


def test_a_job_that_slurm_cannot_start_and_holds_is_lost_and_tried_again(tmp_path: Path, start: Start) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    prolog = tmp_path / "prolog"
    prolog.write_text(f"#!/bin/sh\n! test -e {broken}\n")
    prolog.chmod(0o755)
    slurm = start(Prolog=str(prolog))

    with closing(executor_for(tmp_path / "results", **LOW)) as executor:
        pack = only_pack(sweep_in(tmp_path, text=ONE), tmp_path)
        executor.submit(pack)
        (lost,) = events_until(executor, lambda events: events)
        assert isinstance(lost, PackLost)
        assert "launch failed requeued held" in lost.reason
        broken.unlink()
        slurm.say("scontrol", "update", "nodename=n1", "state=resume")
        executor.submit(replace(pack, pack_id="again"))
        assert events_until(executor, has_last)[-1].ending == Completed()
    assert slurm.jobs()["1"] == "CANCELLED"
