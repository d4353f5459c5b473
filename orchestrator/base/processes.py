"""Processes that a run has started: found by a mark in their environment, and killed reliably.

A mark is inherited by all descendants, even if their parents have ended. It names the driver and its user, so that what
a killed driver left running can be distinguished from processes of other drivers or users. psutil inspects processes;
the rest is read from Linux's /proc.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

MARK = "SWEEP_RUN"
SCRATCH = "sweep-tune-"  # prefix of a run's folder for temporary files; the pid of its process follows


def new_mark() -> str:
    """A mark for processes that this one starts."""
    return f"{os.getpid()}.{_started(os.getpid())}.{uuid.uuid4().hex[:8]}.{os.getuid()}"


def all_marked(variable: str = MARK) -> dict[int, str]:
    """Every other process with a mark in ``variable`` that this user may inspect, with its mark."""
    return {process.pid: mark for process, mark in _with_marks(variable)}


def _with_marks(variable: str) -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.process_iter():
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.Error, OSError):
                if (mark := process.environ().get(variable)) is not None:
                    yield process, mark


def marked(mark: str, variable: str = MARK) -> list[int]:
    """Processes that carry ``mark``, without this one."""
    return [process.pid for process in _alive_with(mark, variable)]


def _alive_with(mark: str, variable: str) -> list[psutil.Process]:
    return [process for process, found in _with_marks(variable) if found == mark and is_alive(process.pid)]


def _own() -> dict[int, str]:
    """Processes marked by drivers of this user, with their marks.

    Root sees those of all users. A process in a container may be visible outside, where its driver has another pid.
    """
    return {pid: mark for pid, mark in all_marked().items() if mark.endswith(f".{os.getuid()}") and _is_beside(pid)}


def _is_beside(pid: int) -> bool:
    """Whether ``pid`` is in the same pid namespace as this process."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def leftovers() -> dict[int, str]:
    """Processes whose driver, one of this user's, is dead, with their marks."""
    found = {}
    for pid, mark in _own().items():
        driver, _, rest = mark.partition(".")
        if driver.isdigit() and str(_started(int(driver))) != rest.partition(".")[0] and is_alive(pid):
            found[pid] = mark
    return found


def listening() -> dict[str, str]:
    """Addresses (host:port) on which processes of this user's drivers listen, with the names of the processes."""
    own, found = _own(), {}
    for socket in psutil.net_connections("tcp") if own else ():
        if socket.status == psutil.CONN_LISTEN and socket.pid in own:
            address = ipaddress.ip_address(socket.laddr.ip)
            with contextlib.suppress(psutil.Error):
                name = psutil.Process(socket.pid).name()
                found[f"{getattr(address, 'ipv4_mapped', None) or address}:{socket.laddr.port}"] = name
    return found


def _started(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 when there is none.

    psutil uses the wall clock, which may be changed while a driver lives: its processes would then seem left over.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def end_marked(mark: str, timeout_s: float = 2.0, variable: str = MARK) -> list[int]:
    """Kill every process that carries ``mark``, including new ones meanwhile; returns those killed."""
    killed: dict[int, None] = {}
    deadline = time.monotonic() + timeout_s
    while (left := _alive_with(mark, variable)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
                killed[process.pid] = None
        time.sleep(0.02)
    return list(killed)


def tree_of(pid: int) -> list[psutil.Process]:
    """All descendants of a process."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def end_all(processes: Iterable[psutil.Process]) -> None:
    """Kill those that still run; an id that has been used again is left alone."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def is_alive(pid: int) -> bool:
    """Whether process ``pid`` exists and has not ended."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (psutil.Error, OSError):
        return False


def children(pid: int) -> dict[int, str]:
    """Direct children of ``pid`` with their names."""
    found: dict[int, str] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                found[child.pid] = child.name()
    return found


def scratch_of(pid: int) -> list[Path]:
    """The scratch folders of a process."""
    return list(Path("/tmp").glob(f"{SCRATCH}{pid}-*"))


def dead_scratch(user_id: int) -> list[Path]:
    """Scratch folders of this user's runs whose process has ended; other users' folders are ignored."""
    found = []
    for path in Path("/tmp").glob(f"{SCRATCH}*"):
        pid = path.name.removeprefix(SCRATCH).partition("-")[0]
        is_ours = path.is_dir() and not path.is_symlink() and path.stat().st_uid == user_id
        if is_ours and pid.isdigit() and not is_alive(int(pid)):
            found.append(path)
    return found
