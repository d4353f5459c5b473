"""A trial of several processes as a job of a real Slurm, which loses a node and gets one back."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from elastic_cases import (
    ROUNDING,
    advance_until,
    has_checkpoint,
    set_limit,
    undisturbed_losses,
    write_elastic_trainer,
)
from fault_kit import assert_sound, losses_and_resizes, wait_until, workers_of
from slurm_cases import QUICK, meanwhile
from slurm_kit import Slurm

from orchestrator.driver.runner import run_sweep
from orchestrator.executors.slurm import SlurmExecutor
from orchestrator.sweepfile.spec import load_sweep

pytestmark = pytest.mark.slurm


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Two nodes."""
    made = Slurm(2)
    monkeypatch.setenv("SLURM_CONF", str(made.conf))
    made.start()
    yield made
    made.close()


def test_a_job_that_loses_a_node_goes_on_with_one_and_takes_another_when_it_is_free(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "disturbed"
    here.mkdir()
    write_elastic_trainer(here)
    set_limit(here, 50)

    def disturb() -> None:
        wait_until(lambda: has_checkpoint(here) and workers_of(here) == ["2"], "checkpoint")
        other = slurm.submit("--partition=high", "--exclusive", "--time=30")  # preempts the job, which starts again
        wait_until(lambda: workers_of(here) == ["1"], "restart on one node")
        slurm.say("scancel", other)
        advance_until(here, 50, lambda: workers_of(here) == ["1", "2"])
        (here / "limit").unlink()

    def executor() -> SlurmExecutor:
        options = {"time": "30", "partition": "low"}
        return SlurmExecutor(here / "results/edge", 1, 0.0, 2, 1, options, QUICK, fewest=1)

    with meanwhile(disturb):
        run_sweep(load_sweep(here / "edge.yaml"), here / "results/edge", executor)
    assert_sound(here)
    found, resizes = losses_and_resizes(here)
    assert [(resize.before, resize.after) for resize in resizes] == [(2, 1), (1, 2)]
    np.testing.assert_allclose(found, undisturbed_losses(tmp_path / "undisturbed"), rtol=ROUNDING)
