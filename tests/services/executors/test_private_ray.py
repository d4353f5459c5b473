import time
from pathlib import Path

import psutil
import pytest
from custom_cases import only_pack, sweep_in

from orchestrator.base.packs import Report
from orchestrator.base.processes import scratch_of, tree_of
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.executors.subprocess_executor import SubprocessExecutor

pytestmark = pytest.mark.services
WAITS = (
    'import os, subprocess, time\nsubprocess.Popen(["sleep", "1000"], start_new_session=True)\n'
    'print("step 0 loss 3.0", flush=True)\ntime.sleep(1000)\n'
)


def test_closing_in_the_middle_of_a_trial_ends_every_process_and_removes_the_scratch_folder(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, WAITS)
    executor = executor_loader("ray", ExecutorOptions(tmp_path, sweep.resources))()()
    assert isinstance(executor, SubprocessExecutor)
    executor.submit(only_pack(sweep, tmp_path))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        isinstance(event, Report) and event.traces for event in executor.poll(0.1)
    ):
        pass
    processes = tree_of(executor.pid)
    # Ray's agents carry no mark that can be read: they have overwritten it.
    names = " ".join(" ".join(process.cmdline()) for process in processes)
    assert "ray::DashboardAgent" in names
    assert "raylet" in names
    sleeping = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "1000"]]
    assert len(scratch_of(executor.pid)) == 1
    began = time.monotonic()
    executor.close()
    assert time.monotonic() - began < 5
    gone, alive = psutil.wait_procs([*processes, *sleeping], timeout=5)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert gone
    assert scratch_of(executor.pid) == []
