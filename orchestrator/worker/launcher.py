"""Launch the processes of one trial: torchrun's environments, their output, and the end of all descendants."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.base.consumption import peak_memory_of
from orchestrator.base.processes import MARK, end_marked, new_mark
from orchestrator.detection.watch import TRIAL_VARIABLE
from orchestrator.worker import fork_server
from orchestrator.worker.fork_server import MARK_TO_REPLACE, MAX_MESSAGE, SET_PARENT_DEATH_SIGNAL
from orchestrator.worker.points import OutputLog, Process
from orchestrator.worker.torchrun import free_port, largest_that_fits, places_here, torchrun_environments

_CHUNK_BYTES = 2**20
_LAST_BYTES = 16 * 2**10
_MAX_LINE = 500
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_OF_ONE_PROCESS = (TRIAL_VARIABLE, *_RANK_VARIABLES)
# Names the trial in the environment of its processes and of their descendants.
TRIAL_MARK = "SWEEP_TRIAL_PROCESS"
with contextlib.suppress(OSError):
    _LIBC = ctypes.CDLL(None)


class CannotStart(Exception):
    """A command cannot be run because of its program, folder, arguments or permissions."""


class Launcher:
    """Launches the processes of one trial on this machine, once or several times in sequence.

    With ``preload`` they are forks of a process that has imported those modules.
    """

    def __init__(self, preload: str | Sequence[str] | None = None) -> None:
        self._preload = preload
        self._environments: list[dict[str, str]] = []
        self._children: list[Child] = []

    @property
    def peak_memory(self) -> float | None:
        """The largest memory in MiB of a process that it launched on this machine; None if none was seen."""
        return max((child.peak_memory for child in self._children if child.peak_memory), default=None)

    def environments(self, workers: int, *, is_elastic: bool = False) -> list[dict[str, str]]:
        """Return the environment of each of ``workers`` processes, by rank; the same ones at each call.

        One process has torchrun's variables only if its trial ``is_elastic``, and may have had more.
        """
        if not self._environments:
            self._environments = self.rank_environments(workers) if workers > 1 or is_elastic else [{}]
        return self._environments

    def fit(self, sizes: Sequence[int], cpus: int) -> int:
        """Return the largest of ascending ``sizes`` with a place of ``cpus`` cores for each process now."""
        return largest_that_fits(sizes, places_here(cpus))

    def has_room(self, size: int, cpus: int) -> bool:
        """Return whether there are places for ``size`` processes of ``cpus`` cores now, more than it has launched."""
        return size <= places_here(cpus)

    def rank_environments(self, workers: int) -> list[dict[str, str]]:
        """Return new environments of several processes that find each other."""
        return torchrun_environments(["here"] * workers, "127.0.0.1", free_port())

    def start(
        self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path
    ) -> Process:
        """Start a process. Raises CannotStart."""
        server = None
        if self._preload is not None:
            shared = {name: text for name, text in environment.items() if name not in _OF_ONE_PROCESS}
            server = server_for(command, self._preload, folder, {**os.environ, **shared})
        child = Child(command, folder, environment, log, server)
        self._children.append(child)
        return child

    def close(self) -> None:
        """Release resources; there are none on this machine."""


class Child:
    """A running command in its own session. Its descendants carry a mark, so that daemons are found too."""

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        log: Path,
        server: ForkServer | None = None,
        ignored: signal.Signals | None = None,
    ) -> None:
        """Start ``command`` in ``folder``, as a fork of ``server`` or else as a program that ignores a signal.

        Raises CannotStart, and StorageError for its ``log``.
        """
        self._mark, self._is_closed = uuid.uuid4().hex, False
        marks = {MARK: os.environ.get(MARK) or new_mark(), TRIAL_MARK: self._mark}
        if not os.path.isdir(folder):
            raise CannotStart(f"objective.folder {folder} is not a folder on this machine")
        self._log = OutputLog(log)
        try:
            self._process = _started(command, folder, {**os.environ, **environment, **marks}, server, ignored)
        except (OSError, ValueError) as error:
            self._log.close()
            cause = getattr(error, "strerror", None) or str(error)
            raise CannotStart(f"{command[0]!r} cannot be run: {cause}") from None
        self._is_at_end, self._last = False, b""
        self.peak_memory = 0.0  # in MiB, as seen at each read
        os.set_blocking(self._process.output, False)

    def read(self, timeout_s: float = 0.0) -> bytes:
        """Return new output, at most 1 MiB, waiting up to ``timeout_s`` for it. Raises StorageError."""
        if self._is_at_end:
            if self.returncode() is None:
                time.sleep(timeout_s)  # it has closed its output and still runs
            return b""
        is_readable = self.is_readable(timeout_s)
        if (pid := self._process.pid()) is not None:  # of a short trial this is the only look
            self.peak_memory = max(self.peak_memory, peak_memory_of(pid) or 0.0)
        if not is_readable:
            return b""
        content = os.read(self._process.output, _CHUNK_BYTES)
        self._is_at_end = not content
        self._last = (self._last + content)[-_LAST_BYTES:]
        self._log.write(content)
        return content

    def is_readable(self, timeout_s: float = 0.0) -> bool:
        """Whether there is output to read within ``timeout_s``."""
        return not self._is_at_end and bool(select.select([self._process.output], [], [], timeout_s)[0])

    def last_lines(self) -> list[str]:
        """Return the last lines of its output, each cut to a readable length."""
        lines = _COLOURS.sub("", self._last.decode(errors="replace")).replace("\r", "\n").split("\n")
        return [line[:_MAX_LINE] for line in lines if line.strip()]

    def returncode(self) -> int | None:
        """Return the exit status, minus the signal's number if it was killed, or None while it runs."""
        return self._process.returncode()

    def terminate(self) -> None:
        """Ask it and the processes in its group to end."""
        self._process.signal(signal.SIGTERM)

    def close(self) -> None:
        """Kill it and everything it started, and complete its log."""
        if self._is_closed:
            return
        self._is_closed = True
        self._process.signal(signal.SIGKILL)
        end_marked(self._mark, variable=TRIAL_MARK)
        self._process.release()
        self._log.close()


def _started(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    server: ForkServer | None,
    ignored: signal.Signals | None,
) -> SpawnedProcess | ForkedProcess:
    if server is not None:
        try:
            return server.start(command, folder, environment)
        except OSError:
            server.close()  # it was killed; the trial can start without it
    return SpawnedProcess(command, folder, environment, ignored)


class SpawnedProcess:
    """A program in a session of its own; its output can be read from the descriptor ``output``.

    Until `release`, neither its id nor its group's id is reused.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        ignored: signal.Signals | None = None,
    ) -> None:
        """Start ``command`` in ``folder`` with exactly this ``environment``; it ignores the signal ``ignored``.

        Raises OSError and ValueError.
        """
        self._process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to the driver only, and the group can be signalled
            preexec_fn=lambda: _die_with_this_thread(ignored),
        )
        assert self._process.stdout is not None  # a pipe was asked for
        self._stdout = self._process.stdout
        self.output = self._stdout.fileno()

    def pid(self) -> int | None:
        """Return its id, None while unknown."""
        return self._process.pid

    def returncode(self) -> int | None:
        """Return the exit status, minus the signal's number if it was killed, or None while it runs."""
        if self._process.returncode is not None:
            return self._process.returncode
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def signal(self, number: int) -> None:
        """Send a signal to its group."""
        _signal_group(self._process.pid, number)

    def release(self) -> None:
        """Reap it after it was killed."""
        self._process.wait()
        self._stdout.close()


def _die_with_this_thread(ignored: signal.Signals | None = None) -> None:
    """In a child: let the kernel kill it when the thread that started it ends, for any reason; ignore one signal."""
    _LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)


def _signal_group(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, number)


class ForkedProcess:
    """A process that a server has forked, or is about to; see `SpawnedProcess` for each method."""

    def __init__(self, line: socket.socket, output: int) -> None:
        """``line`` connects to the server, ``output`` is the readable end of a pipe."""
        self.output = output
        self._line, self._received, self._is_alone = line, b"", False

    def pid(self) -> int | None:
        """Return its id, None while unknown."""
        return self._listen().get("pid")

    def returncode(self) -> int | None:
        """Return the exit status, minus the signal's number if it was killed, or None while it runs."""
        numbers = self._listen()
        if "exit" in numbers:
            return numbers["exit"]
        return -signal.SIGKILL if self._is_alone else None  # the kernel has killed it with its server

    def signal(self, number: int) -> None:
        """Send a signal to its group."""
        numbers = self._listen()
        # Its id is not reused until the line is closed.
        if "pid" in numbers and not self._is_alone:
            _signal_group(numbers["pid"], number)

    def release(self) -> None:
        """Let the server kill it if it still runs, and release it."""
        self._line.close()
        os.close(self.output)

    def _listen(self) -> dict[str, int]:
        """Return the numbers that the server has sent so far, by name."""
        while not self._is_alone and select.select([self._line], [], [], 0.0)[0]:
            try:
                content = self._line.recv(MAX_MESSAGE)
            except OSError:
                content = b""
            self._is_alone = not content
            self._received += content
        messages = (message.decode().split() for message in self._received.split(b"\n")[:-1])
        return {name: int(number) for name, number in messages}


class ForkServer:
    """A running `fork_server`. It ends with this process or when it is closed, and its forks with it."""

    def __init__(
        self, command: Sequence[str], preload: str | Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> None:
        """Start it in ``environment``, with the modules of ``preload`` for processes like ``command``."""
        self._control, theirs = socket.socketpair()
        settings = {
            "command": list(command),
            "preload": preload if isinstance(preload, str) else list(preload),
            "folder": folder,
            "mark_variable": TRIAL_MARK,
        }
        program = [sys.executable, fork_server.__file__, str(theirs.fileno()), json.dumps(settings)]
        started = threading.Event()

        def keep() -> None:
            # The kernel ends a child with the thread that started it; this thread lasts as long as the process.
            with theirs:
                self._process = subprocess.Popen(
                    program,
                    cwd="/",  # modules of the folder must not replace modules that the server itself imports
                    env={**environment, TRIAL_MARK: MARK_TO_REPLACE},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    preexec_fn=_die_with_this_thread,
                )
            started.set()
            self._process.wait()

        threading.Thread(target=keep, daemon=True, name="fork-server").start()
        started.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def start(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> ForkedProcess:
        """Start ``command`` in ``folder`` with exactly this ``environment``. Raises OSError."""
        request = {"command": command, "folder": folder, "environment": environment}
        here, there = socket.socketpair()
        output, write_end = os.pipe()
        with open(os.memfd_create("request"), "wb") as file, there:
            file.write(json.dumps(request).encode())
            file.flush()
            try:
                socket.send_fds(self._control, [b"1"], [file.fileno(), write_end, there.fileno()])
            except OSError:
                here.close()
                os.close(output)
                raise
            finally:
                os.close(write_end)
        return ForkedProcess(here, output)

    def close(self) -> None:
        """End it and its forks."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


_running: dict[str, ForkServer] = {}  # the server of this process, by its settings


def server_for(
    command: Sequence[str], preload: str | Sequence[str], folder: str, environment: Mapping[str, str]
) -> ForkServer:
    """Return this process's server for trials like ``command``; a server with other settings is replaced."""
    settings = json.dumps([command[:2], list(preload), folder, dict(environment)], sort_keys=True)
    server = _running.get(settings)
    if server is None or not server.is_alive:
        close_server()
        _running[settings] = server = ForkServer(command, preload, folder, environment)
    return server


def close_server() -> None:
    """End the server of this process and its forks, if there is one."""
    while _running:
        _running.popitem()[1].close()
