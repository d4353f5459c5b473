"""Servers of pages as commands start and end them."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from local_server import wait_for
from sweep_cases import ledger_at, record, sweep_of
from tiers import thinned

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.pages.loopback import address_of, listening_socket
from orchestrator.pages.server import page_beside, serve

GRID = "axes: {lr: {values: [0.1, 0.2]}}\n"
KILLED = """
import os, sys, time
from pathlib import Path
from orchestrator.pages.server import page_beside
from orchestrator.pages.loopback import listening_socket
with page_beside(listening_socket(None), Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "case").mkdir()
    sweep = sweep_of(GRID)
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep, ["stable", "diverged"])
    (tmp_path / "case" / FROZEN_SWEEP).write_text(sweep.text)
    return tmp_path


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python process; whatever a test leaves ends with it."""
    processes = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        processes.append(subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        with process:
            process.kill()  # no effect if it has ended


def test_a_page_beside_a_run_is_served_and_ends_with_it(results: Path) -> None:
    listener = listening_socket(None)
    port = listener.getsockname()[1]
    address = address_of(listener, "case")
    before = set(psutil.Process().children())  # what an earlier test of this process left is no concern of this one
    with page_beside(listener, results):
        wait_for(address)
    assert set(psutil.Process().children()) <= before
    listening_socket(port).close()  # which raises an error where something still listens


@pytest.mark.parametrize("is_open", [True, False])
def test_only_an_open_page_keeps_the_server_after_its_run(results: Path, monkeypatch, is_open: bool) -> None:
    listener, after = listening_socket(None), []
    address = address_of(listener, "case")

    def status() -> int:
        return urllib.request.urlopen(address, timeout=30).status

    monkeypatch.setattr(time, "sleep", lambda seconds: after.append((seconds, status())))
    serve(listener, results, status if is_open else lambda: None)
    assert after == ([(2.5, 200)] if is_open else []), "longer than the second between two questions of a page"


@pytest.mark.slow
def test_a_page_ends_when_its_run_is_killed(results: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    run = start("-c", KILLED, str(results))
    assert run.stdout.readline() == "ready\n"
    (server,) = psutil.Process(run.pid).children()
    run.kill()
    run.communicate()
    psutil.wait_procs([server], timeout=30)
    assert not server.is_running()


@pytest.mark.parametrize(("arguments", "ending"), thinned([(["case"], "/case/"), ([], "/")], lambda case: case[0]))
def test_sweep_page_says_its_address_and_ends_well_by_ctrl_c(
    results: Path, start: Callable[..., subprocess.Popen[str]], arguments: list[str], ending: str
) -> None:
    server = start("-m", "orchestrator.cli", "page", *arguments, "--results", str(results))
    address = server.stdout.readline().split()[2]
    assert address.endswith(ending)
    wait_for(address)
    os.kill(server.pid, signal.SIGINT)
    server.communicate()
    assert server.returncode == 0


def test_a_port_without_a_page_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: Callable[..., tuple[int, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.yaml").write_text(sweep_of(GRID).text)
    code, text = command_line("run", "case.yaml", "--executor", "inline", "--port", "8000")
    assert code == 2
    assert "add --page" in text
