"""The job script of docs/clusters.md: Ray and the driver inside one job of a real Slurm."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_kit import LONGER, assert_sound, can_go_on, results_of, undisturbed_results, wait_until, write_sweep
from slurm_kit import Slurm

pytestmark = pytest.mark.slurm
DOCS = Path(__file__).parents[3] / "docs" / "clusters.md"
# All that the test changes: the numbers of the job, and the name of the sweep file.
NUMBERS = {"--nodes=4": "--nodes=2", "--cpus-per-task=16": "--cpus-per-task=1", "--time=04:00:00": "--time=00:10:00"}
LONGEST = LONGER.replace("steps: 3000", "steps: 5000").replace("pack: 4", "pack: 2")


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """Two nodes, on which the commands of this Python are found."""
    made = Slurm(nodes=2, KillWait="30")
    made.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        made.start()
        yield made
    finally:
        made.close()


def script_in(folder: Path) -> Path:
    """The script of the documentation, for a small cluster."""
    (text,) = re.findall(r"```text\n(#!/bin/bash\n#SBATCH.*?)```", DOCS.read_text(), re.DOTALL)
    for documented, small in {**NUMBERS, "my_sweep.yaml": "edge.yaml"}.items():
        assert text.count(documented) == 1
        text = text.replace(documented, small)
    path = folder / "job.sh"
    path.write_text(text)
    return path


def submitted(slurm: Slurm, folder: Path) -> str:
    """The script as a job of ``folder``; its number."""
    where = [f"--chdir={folder}", f"--output={folder}/job-%j.log", "--open-mode=append"]
    return slurm.say("sbatch", "--parsable", *where, str(script_in(folder))).strip()


def ended(slurm: Slurm, job: str, folder: Path, state: str) -> str:
    """Wait for the end of a job; its exit code."""
    wait_until(lambda: slurm.jobs()[job] not in ("PENDING", "RUNNING", "COMPLETING"), "end of the job")
    assert slurm.jobs()[job] == state, (folder / f"job-{job}.log").read_text()
    return slurm.show(job)["ExitCode"]


def test_a_job_that_is_asked_to_end_exits_with_143_and_the_same_script_resumes_its_sweep(
    tmp_path: Path, slurm: Slurm
) -> None:
    expected = undisturbed_results(tmp_path, LONGEST)
    folder = tmp_path / "job"
    folder.mkdir()
    write_sweep(folder, LONGEST)
    first = submitted(slurm, folder)
    wait_until(lambda: can_go_on(folder), "checkpoint")
    slurm.say("scancel", "--batch", "--signal=TERM", first)  # what --signal=B:TERM@120 does before the time limit
    assert ended(slurm, first, folder, "FAILED") == "143:0"
    second = submitted(slurm, folder)
    assert ended(slurm, second, folder, "COMPLETED") == "0:0"
    assert results_of(folder) == expected
    assert_sound(folder)


def test_a_job_that_is_preempted_is_requeued_and_resumes_its_sweep(tmp_path: Path, slurm: Slurm) -> None:
    expected = undisturbed_results(tmp_path, LONGEST)
    folder = tmp_path / "job"
    folder.mkdir()
    write_sweep(folder, LONGEST)
    job = submitted(slurm, folder)
    wait_until(lambda: can_go_on(folder), "checkpoint")
    other = slurm.submit("--partition=high", "--nodes=2", "--exclusive", "--time=1", script="sleep 3")
    slurm.wait_for(other, "COMPLETED")
    assert ended(slurm, job, folder, "COMPLETED") == "0:0"
    assert slurm.show(job)["Restarts"] == "1"
    assert results_of(folder) == expected
    assert_sound(folder)
