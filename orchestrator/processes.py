"""Processes that a run has started, found by a mark in their environment and ended for good. Linux's /proc.

A mark is inherited by children of children, also by those whose parents are gone. It names the driver and its user,
so that what a killed driver has left behind can be distinguished from what belongs to another driver or user.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import time
import uuid
from pathlib import Path

MARK = "SWEEP_RUN"
SCRATCH = "sweep-tune-"  # a run's folder for temporary files begins so; the pid of its process follows


def new_mark() -> str:
    """A mark for processes that this one starts."""
    return f"{os.getpid()}.{_started(os.getpid())}.{uuid.uuid4().hex[:8]}.{os.getuid()}"


def all_marked(variable: str = MARK) -> dict[int, str]:
    """Every process with a mark in ``variable`` that this user may look at, and its mark; not this one."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                if entry.startswith(f"{variable}=".encode()) and int(folder.name) != os.getpid():
                    found[int(folder.name)] = entry.decode(errors="replace").partition("=")[2]
    return found


def marked(mark: str, variable: str = MARK) -> list[int]:
    """Processes that carry ``mark``, without this one."""
    return [pid for pid, found in all_marked(variable).items() if found == mark and is_alive(pid)]


def _own() -> dict[int, str]:
    """Processes that drivers of this user have marked, and their marks.

    Root sees those of all users. One in a container may be seen from outside, where its driver has another pid.
    """
    return {pid: mark for pid, mark in all_marked().items() if mark.endswith(f".{os.getuid()}") and _is_beside(pid)}


def _is_beside(pid: int) -> bool:
    """Whether ``pid`` counts processes as this one does."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def leftovers() -> dict[int, str]:
    """Processes whose driver, one of this user's, is dead, and their marks."""
    found = {}
    for pid, mark in _own().items():
        driver, _, rest = mark.partition(".")
        if driver.isdigit() and str(_started(int(driver))) != rest.partition(".")[0] and is_alive(pid):
            found[pid] = mark
    return found


def listening() -> dict[str, str]:
    """Addresses (host:port) on which processes of this user's drivers listen, and the names of those processes."""
    sockets: dict[str, str] = {}
    for table, size in (("/proc/net/tcp", 8), ("/proc/net/tcp6", 32)):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":  # listens
                    address, port = fields[1].split(":")
                    sockets[fields[9]] = f"{_address(address, size)}:{int(port, 16)}"
    found: dict[str, str] = {}
    for pid in _own():
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inode = os.readlink(handle).removeprefix("socket:[").removesuffix("]")
                    if inode in sockets:
                        found[sockets[inode]] = name
    return found


def _address(text: str, size: int) -> str:
    """An address as /proc/net writes it: hexadecimal, each group of 32 bits in the order of the machine."""
    groups = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, size, 8)]
    address = ipaddress.ip_address(b"".join(groups))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _started(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def end_marked(mark: str, timeout_s: float = 2.0, variable: str = MARK) -> list[int]:
    """Kill every process that carries ``mark``, also those that they start meanwhile; returns those killed."""
    killed: dict[int, None] = {}
    deadline = time.monotonic() + timeout_s
    while (left := marked(mark, variable)) and time.monotonic() < deadline:
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


def dead_scratch(user_id: int) -> list[Path]:
    """Scratch folders of this user's runs whose process is gone; those of other users are not ours to judge."""
    found = []
    for path in Path("/tmp").glob(f"{SCRATCH}*"):
        pid = path.name.removeprefix(SCRATCH).partition("-")[0]
        is_ours = path.is_dir() and not path.is_symlink() and path.stat().st_uid == user_id
        if is_ours and pid.isdigit() and not is_alive(int(pid)):
            found.append(path)
    return found
