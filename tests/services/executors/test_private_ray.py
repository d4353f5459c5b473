import contextlib
import os
import time
from pathlib import Path

import psutil
import pytest
from custom_cases import only_pack, sweep_in
from sweep_cases import sweep_of

from orchestrator.base.packs import Completed, Report
from orchestrator.base.processes import scratch_of, tree_of
from orchestrator.driver.packing import make_packs
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.executors.subprocess_executor import SubprocessExecutor

pytestmark = pytest.mark.services
SHORT = 'for step in range(20): print(f"step {step} loss {3 - step / 10}", flush=True)\n'
WAITS = (
    'import os, subprocess, time\nsubprocess.Popen(["sleep", "1000"], start_new_session=True)\n'
    'print("step 0 loss 3.0", flush=True)\ntime.sleep(1000)\n'
)


def test_closing_in_the_middle_of_a_trial_ends_every_process_and_removes_the_scratch_folder(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, WAITS)
    executor = executor_loader("ray", ExecutorOptions(tmp_path, sweep.resources))()()
    assert isinstance(executor, SubprocessExecutor)
    executor.submit(only_pack(sweep, tmp_path))
    deadline = time.monotonic() + 600
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


def test_workers_with_nothing_left_to_train_end_one_of_them_after_a_while_and_a_next_pack_starts_a_new_one(
    tmp_path: Path,
) -> None:
    """While another pack trains on, a worker that has ended its own gives back its memory and its CPU."""
    sweeps = []
    for name, script in (("a", SHORT), ("b", SHORT), ("c", SHORT), ("long", WAITS)):
        (tmp_path / name).mkdir()
        sweeps.append((sweep_in(tmp_path / name, script), tmp_path / name))
    resources = sweeps[0][0].resources.model_copy(update={"parallel": 4})
    executor = executor_loader("ray", ExecutorOptions(tmp_path, resources))()()
    assert isinstance(executor, SubprocessExecutor)
    try:
        for sweep, folder in sweeps:
            executor.submit(only_pack(sweep, folder))
        num_ended, seen, deadline = 0, 0, time.monotonic() + 600
        while time.monotonic() < deadline and not (num_ended == 3 and workers(executor.pid) == (1, 1)):
            ended = [e for e in executor.poll(0.2) if isinstance(e, Report) and isinstance(e.ending, Completed)]
            num_ended += len(ended)
            seen = max(seen, sum(workers(executor.pid)))
        assert (num_ended, workers(executor.pid)) == (3, (1, 1))
        assert seen > 2
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and workers(executor.pid) != (0, 1):
            executor.poll(0.2)
        assert workers(executor.pid) == (0, 1)
        executor.submit(only_pack(*sweeps[0]))
        deadline, has_ended = time.monotonic() + 600, False
        while time.monotonic() < deadline and not has_ended:
            events = executor.poll(0.2)
            has_ended = any(isinstance(e, Report) and isinstance(e.ending, Completed) for e in events)
        assert has_ended
    finally:
        executor.close()


def workers(pid: int) -> tuple[int, int]:
    """How many workers of a private Ray wait, and how many train."""
    names = []
    for process in tree_of(pid):
        with contextlib.suppress(psutil.Error):
            names.append(" ".join(process.cmdline()).strip())
    return names.count("ray::ImplicitFunc"), names.count("ray::ImplicitFunc.train")


@pytest.mark.parametrize(("fewest", "size"), [(1, 2), (4, 4)])
def test_an_elastic_trial_takes_the_places_that_ray_has_and_waits_for_no_more_than_its_fewest(
    tmp_path: Path, fewest: int, size: int
) -> None:
    body = f"fixed: {{batch_size: 8, width: 8, context: 8}}\nresources: {{workers: {{min: {fewest}, max: 8}}}}\n"
    sweep = sweep_of(body, "name: case\nobjective: gpt\nsteps: 20\n")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])  # a private Ray has as many places, or the fewest
    try:
        executor = executor_loader("ray", ExecutorOptions(tmp_path, sweep.resources))()()
    finally:
        os.sched_setaffinity(0, cores)
    reports: list[Report] = []
    try:
        assert executor.slots == 1
        (pack,) = make_packs(sweep, sweep.trials, 1)
        executor.submit(pack)
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and not any(report.ending for report in reports):
            reports += [event for event in executor.poll(0.2) if isinstance(event, Report)]
    finally:
        executor.close()
    assert isinstance(reports[-1].ending, Completed), reports[-1].ending
    assert [report.environment["workers"] for report in reports if report.environment] == [str(size)]
