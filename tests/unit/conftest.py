"""No test below starts a process, and what would otherwise differ between machines is frozen here.

Tests that start processes stand in tests/processes, those of Ray, MLflow and Slurm in tests/services.
"""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import QUADRATIC

from orchestrator.driver import facts

HERE = Path(__file__).parent
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
WATCHED: list[bool] = []  # while a test below runs
STARTED: list[str] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Forbid what starts a process, whoever asks for it, while a test below runs."""
    if WATCHED and event in STARTS:
        STARTED.append(f"{event}: {str(arguments[:2])[:200]}")
        raise AssertionError(f"a unit test starts a process: {STARTED[-1]}")


sys.addaudithook(watch)
platform.platform()  # runs `uname` once, and remembers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Around a test and all its fixtures."""
    if HERE not in item.path.parents:
        return (yield)
    with pytest.MonkeyPatch.context() as frozen:
        frozen.setattr(facts, "git_commit", lambda: "0" * 40)  # git is a process, too
        WATCHED.append(True)
        try:
            return (yield)
        finally:
            WATCHED.clear()


@pytest.fixture
def refused_starts() -> list[str]:
    """Processes that this test was refused; a test that leaves any there fails."""
    return STARTED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """Fail also where the product swallows the refusal."""
    report = yield
    if STARTED and HERE in item.path.parents:
        report.outcome, report.longrepr = "failed", f"a unit test starts a process: {STARTED[0]}"
        STARTED.clear()
    return report


@pytest.fixture
def sweep_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: Any) -> Any:
    """Run the command line in a folder with a sweep file: exit code and everything it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge.yaml").write_text(QUADRATIC)
    return command_line
