"""Processes that a run has started, found by a mark in their environment and ended for good. Linux's /proc.

A mark is inherited by children of children, also by those whose parents are gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from pathlib import Path

MARK = "SWEEP_RUN"


def new_mark() -> str:
    """A mark for the processes of one run."""
    return uuid.uuid4().hex


def marked(mark: str) -> list[int]:
    """Processes that carry ``mark``, but for this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def end_marked(mark: str, timeout_s: float = 2.0) -> list[int]:
    """Kill every process that carries ``mark``, also those that they start meanwhile; returns those killed."""
    killed: dict[int, None] = {}
    deadline = time.monotonic() + timeout_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            killed[pid] = None
        time.sleep(0.02)
    return list(killed)


def is_alive(pid: int) -> bool:
    """Whether there is a process ``pid`` that has not ended."""
    try:
        # The state follows the name, which may hold anything but ends with the last bracket.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def children(pid: int) -> dict[int, str]:
    """Direct children of ``pid`` with their names."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            head, _, tail = (folder / "stat").read_text().rpartition(")")
            if int(tail.split()[1]) == pid:
                found[int(folder.name)] = head.partition("(")[2]
    return found
