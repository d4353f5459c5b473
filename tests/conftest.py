"""Fixtures that many tests share."""

import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import scipy.linalg  # noqa: F401 - its own library of linear algebra
import torch
from hypothesis import settings
from sweep_cases import QUADRATIC
from threadpoolctl import threadpool_limits
from tiers import ALL_EXAMPLES

from objectives.native.cache import kernel_folder
from objectives.native.library import KERNELS, built
from orchestrator import cli
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.watch import TRIAL_VARIABLE
from orchestrator.driver import timing
from orchestrator.driver.progress import Summary
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render import style
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document
from orchestrator.worker.machine import measure

NUMBERS = itertools.count()

settings.register_profile("any machine", deadline=None, max_examples=ALL_EXAMPLES // 4)
settings.register_profile("every example", deadline=None, max_examples=ALL_EXAMPLES)
settings.load_profile("any machine")  # the other one by `make test-slow`


def pytest_configure() -> None:
    """Undo what a shell and nohup do to jobs in the background, which the processes of tests would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Threads of small matrices wait for each other on a busy machine, where they took half of the processors' time.
    threadpool_limits(limits=1, user_api="blas")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes


def pytest_sessionstart() -> None:
    """Compile the kernels once for all tests, where the user keeps them: no unit test starts a process."""
    os.environ["SWEEP_KERNELS"] = str(kernel_folder())
    for name, real in itertools.product(KERNELS, ("float", "double")):
        built(name, kernel_folder(), real)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing that is collected becomes garbage, and to look for that took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/services" in item.path.as_posix():
            item.add_marker(pytest.mark.services)
        runs_by_default = getattr(getattr(item, "cls", None), "runs_by_default", None)
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        if runs_by_default is not None and not runs_by_default(arguments):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def users_cache_untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures of whole files do not write into the user's cache either; and a measurement takes no second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(measure, "__defaults__", ("default", 0.01))
        patch.setattr(timing, "calibrate", lambda *_: None)  # a plan that is asked for in this process
        yield


@pytest.fixture(autouse=True)
def own_cache(
    users_cache_untouched: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one test measures of this machine does not set the width of another test's packs.

    Most tests need no folder, so none is made for it.
    """
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path_factory.getbasetemp() / f"cache_of_test_{next(NUMBERS)}"))


@pytest.fixture(autouse=True)
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is itself a trial of a sweep, whoever runs the tests."""
    for name in (TRIAL_VARIABLE, "RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Sums come out in one order, and tests do not fight for cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def quadratic_sweep() -> Sweep:
    """Six cells of two seeds, some beyond the known edge; a second of work."""
    return build_sweep(parse_document(QUADRATIC, "edge.yaml"))


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Summary]:
    """Train a sweep in this process, results below tmp_path."""

    def run(sweep: Sweep, make_executor=InlineExecutor, observers=(), **options) -> Summary:
        return run_sweep(sweep, tmp_path / sweep.name, make_executor, observers, **options)

    return run


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run `sweep` with arguments in this process: exit code and everything it printed."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sweep", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    return call


@pytest.fixture
def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run writes its ledger alone, without map and report, where a test is about something else that it does."""
    monkeypatch.setattr("orchestrator.pages.report.export_all", lambda folder, **options: [])


@pytest.fixture(scope="module")
def small_pictures() -> Iterator[None]:
    """Pictures have few dots, where a file draws many and looks at their kind alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "_KINDS", {kind: (20, settings) for kind, (_, settings) in style._KINDS.items()})
        yield


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[str], list[TrialResult]]:
    """The ledger's rows of a sweep below tmp_path."""

    def read(name: str) -> list[TrialResult]:
        with LedgerReader(tmp_path / name / LEDGER) as ledger:
            return ledger.trials()

    return read
