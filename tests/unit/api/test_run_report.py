"""The line that a watch says each minute: what is known, and nothing else."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from orchestrator.api.run_report import Reporter
from orchestrator.detection.config import StoppingConfig
from orchestrator.logs.point_maker import Point
from orchestrator.maps.followed import FollowedRun


def run_of(num: int) -> FollowedRun:
    run = FollowedRun(StoppingConfig())
    run.add([Point(step, 3.0 - step / num, 0.5, {}) for step in range(num)])
    return run


def nvml(*used: int, error: Exception | None = None) -> ModuleType:
    """A library for GPUs with so many GiB in use, of 80 each."""
    module = ModuleType("pynvml")
    module.__spec__ = ModuleSpec("pynvml", None)
    module.NVMLError = OSError

    def init() -> None:
        if error is not None:
            raise error

    module.nvmlInit, module.nvmlDeviceGetCount = init, lambda: len(used)
    module.nvmlDeviceGetHandleByIndex = lambda number: number
    module.nvmlDeviceGetMemoryInfo = lambda number: SimpleNamespace(used=used[number] * 2**30, total=80 * 2**30)
    return module


def test_a_line_has_what_is_known() -> None:
    reporter, run = Reporter(None), run_of(50)
    reporter.at(0.0, 0)
    assert reporter.report(run, {}, None).line() == "step 49  loss 2.02  norm 0.5  episodes 0"
    reporter.at(10.0, 49)
    report = Reporter(100).report(run, {"learning_rate": 1e-4}, 2.5)
    assert report.line() == "step 49 of 100  loss 2.02  norm 0.5  lr 0.0001  episodes 0  validation 2.5"
    assert reporter.report(run, {}, None).steps_per_s == pytest.approx(4.9)


def test_a_run_that_goes_back_is_timed_anew() -> None:
    reporter = Reporter(None)
    for now, step in ((0.0, 100), (10.0, 200), (20.0, 150), (30.0, 160)):
        reporter.at(now, step)
    assert reporter.steps_per_s == pytest.approx(1.0)


@pytest.mark.parametrize(("name", "is_memory"), [("gpu_mem_gb", True), ("memory", True), ("memorized", False)])
def test_memory_is_read_from_the_log_under_its_own_name(name: str, is_memory: bool) -> None:
    found = Reporter(None).report(run_of(20), {name: 61.5}, None).gpu_memory
    assert found == (f"61.5 ({name})" if is_memory else None)


@pytest.mark.parametrize(
    ("library", "shown"),
    [
        (nvml(10, 62), "62.0 of 80.0 GiB"),
        (nvml(error=OSError()), None),
        (nvml(error=AttributeError()), None),
        (nvml(), None),
    ],
    ids=["two GPUs", "no driver", "an older library", "no GPU"],
)
def test_memory_is_that_of_the_fullest_gpu_where_the_log_has_none(library, shown, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert Reporter(None).report(run_of(20), {}, None).gpu_memory == shown
