"""Find the processes that a run has started by a mark in their environment, and kill them reliably.

All descendants inherit a mark, even if their parents have ended. It names the driver and its user, so leftovers of a
killed driver can be distinguished from processes of other drivers or users. psutil inspects processes; the rest is read
from Linux's /proc.
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
SCRATCH = "sweep-tune-"  # prefix of a run's temporary folder, followed by the id of its process


def new_mark() -> str:
    """Return a new mark for processes that this one starts."""
    return f"{os.getpid()}.{_started(os.getpid())}.{uuid.uuid4().hex[:8]}.{os.getuid()}"


@contextlib.contextmanager
def inherited(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable during the block, for processes that it starts too; None removes the variable."""
    before = os.environ.get(name)
    _put(name, value)
    try:
        yield
    finally:
        _put(name, before)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def all_marked(variable: str = MARK) -> dict[int, str]:
    """Return the marks in ``variable`` of all other processes that this user may inspect, by process id."""
    return {process.pid: mark for process, mark in _with_marks(variable)}


def _with_marks(variable: str) -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.process_iter():
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.Error, OSError):
                if (mark := process.environ().get(variable)) is not None:
                    yield process, mark


def marked(mark: str, variable: str = MARK) -> list[int]:
    """Return the ids of other processes that carry ``mark``."""
    return [process.pid for process in _alive_with(mark, variable)]


def _alive_with(mark: str, variable: str) -> list[psutil.Process]:
    return [process for process, other in _with_marks(variable) if other == mark and is_alive(process.pid)]


def _own() -> dict[int, str]:
    """The marks of processes that drivers of this user have started, by process id.

    Root sees processes of all users. A process in a container may be visible outside, where its driver has another id.
    """
    user = f".{os.getuid()}"
    return {pid: mark for pid, mark in all_marked().items() if mark.endswith(user) and _shares_namespace(pid)}


def _shares_namespace(pid: int) -> bool:
    """Whether ``pid`` is in the pid namespace of this process."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def leftovers() -> dict[int, str]:
    """Return the marks of processes whose driver, of this user, is dead, by process id."""
    marks = {}
    for pid, mark in _own().items():
        driver, _, rest = mark.partition(".")
        if driver.isdigit() and str(_started(int(driver))) != rest.partition(".")[0] and is_alive(pid):
            marks[pid] = mark
    return marks


def listening() -> dict[str, str]:
    """Return the names of processes of this user's drivers that listen, by address (host:port)."""
    own, names = _own(), {}
    for socket in psutil.net_connections("tcp") if own else ():
        if socket.status == psutil.CONN_LISTEN and socket.pid in own:
            address = ipaddress.ip_address(socket.laddr.ip)
            with contextlib.suppress(psutil.Error):
                name = psutil.Process(socket.pid).name()
                names[f"{getattr(address, 'ipv4_mapped', None) or address}:{socket.laddr.port}"] = name
    return names


def _started(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it does not exist.

    psutil uses the wall clock. If that changed while a driver lives, its processes would seem left over.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def end_marked(mark: str, timeout_s: float = 2.0, variable: str = MARK) -> list[int]:
    """Kill every process that carries ``mark``, including new ones; returns the ids of killed processes."""
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
    """Return all descendants of a process."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def end_all(processes: Iterable[psutil.Process]) -> None:
    """Kill ``processes`` that still run; a reused id is left alone."""
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
    """Return the names of direct children of ``pid``, by id."""
    names: dict[int, str] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                names[child.pid] = child.name()
    return names


def scratch_of(pid: int) -> list[Path]:
    """Return the scratch folders of a process."""
    return list(Path("/tmp").glob(f"{SCRATCH}{pid}-*"))


def dead_scratch(user_id: int) -> list[Path]:
    """Return scratch folders of this user's runs whose process has ended."""
    folders = []
    for path in Path("/tmp").glob(f"{SCRATCH}*"):
        pid = path.name.removeprefix(SCRATCH).partition("-")[0]
        is_ours = path.is_dir() and not path.is_symlink() and path.stat().st_uid == user_id
        if is_ours and pid.isdigit() and not is_alive(int(pid)):
            folders.append(path)
    return folders
