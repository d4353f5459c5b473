"""Processes that drivers have left behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.base.processes import MARK, SCRATCH, dead_scratch, leftovers, listening, new_mark

LISTEN = """
import socket, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("is_own", [True, False])
def test_processes_that_somebody_else_left_behind_are_neither_listed_nor_ended(is_own: bool) -> None:
    user = os.getuid() + (not is_own)
    mark = f"{2**22}.1.abcdef01.{user}"  # of a driver that is dead
    process = subprocess.Popen([sys.executable, "-c", LISTEN], env={MARK: mark}, stdout=subprocess.PIPE, text=True)
    with process:
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        found = process.pid in leftovers(), address in listening()
        process.kill()
    assert found == (is_own, is_own)
    assert new_mark().endswith(f".{os.getuid()}")


def test_scratch_folders_of_dead_runs_are_this_user_s_alone() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{ended.pid}-", dir="/tmp") as folder:
        assert Path(folder) in dead_scratch(os.getuid())
        assert Path(folder) not in dead_scratch(os.getuid() + 1)
