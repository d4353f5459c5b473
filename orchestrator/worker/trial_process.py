"""A process of a custom trainer's trial: a program of its own, or a fork of a server that has imported its modules."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from orchestrator.worker.fork_server import MARK_TO_REPLACE, MAX_MESSAGE, SET_PARENT_DEATH_SIGNAL

# Names the trial in the environment of its processes and of their descendants.
TRIAL_MARK = "SWEEP_TRIAL_PROCESS"
with contextlib.suppress(OSError):
    _LIBC = ctypes.CDLL(None)


class StartedProcess(Protocol):
    """A process in a session of its own; its output can be read from the descriptor ``output``."""

    output: int

    def returncode(self) -> int | None:
        """Return the exit status, minus the signal's number if it was killed, or None while it runs.

        Until `release`, neither its id nor its group's id is reused.
        """

    def signal(self, number: int) -> None:
        """Send a signal to its group."""

    def release(self) -> None:
        """Release it after it was killed."""


class SpawnedProcess:
    """A program; see `StartedProcess` for each method."""

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
            preexec_fn=lambda: _prepare(ignored),
        )
        assert self._process.stdout is not None  # a pipe was asked for
        self._stdout = self._process.stdout
        self.output = self._stdout.fileno()

    def returncode(self) -> int | None:
        """Return the exit status without reaping the process."""
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
        """Reap it."""
        self._process.wait()
        self._stdout.close()


def _prepare(ignored: signal.Signals | None) -> None:
    die_with_this_thread()
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)


def die_with_this_thread() -> None:
    """In a child: let the kernel kill it when the thread that started it ends, for any reason."""
    _LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _signal_group(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, number)


class ForkedProcess:
    """A process that a server has forked, or is about to; see `StartedProcess` for each method."""

    def __init__(self, line: socket.socket, output: int) -> None:
        """``line`` connects to the server, ``output`` is the readable end of a pipe."""
        self.output = output
        self._line, self._received, self._is_alone = line, b"", False

    def returncode(self) -> int | None:
        """Return the exit status, minus the signal's number if it was killed, or None while it runs."""
        self._listen()
        if (status := self._number("exit")) is not None:
            return status
        return -signal.SIGKILL if self._is_alone else None  # the kernel has killed it with its server

    def signal(self, number: int) -> None:
        """Send a signal to its group."""
        self._listen()
        # Its id is not reused until the line is closed.
        if (process := self._number("pid")) is not None and not self._is_alone:
            _signal_group(process, number)

    def release(self) -> None:
        """Let the server kill it if it still runs, and release it."""
        self._line.close()
        os.close(self.output)

    def _number(self, name: str) -> int | None:
        """The number that the server has sent under ``name``."""
        for message in self._received.split(b"\n")[:-1]:
            word, _, number = message.decode().partition(" ")
            if word == name:
                return int(number)
        return None

    def _listen(self) -> None:
        while not self._is_alone and select.select([self._line], [], [], 0.0)[0]:
            try:
                content = self._line.recv(MAX_MESSAGE)
            except OSError:
                content = b""
            self._is_alone = not content
            self._received += content


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
        program = [sys.executable, "-m", "orchestrator.worker.fork_server", str(theirs.fileno()), json.dumps(settings)]
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
                    preexec_fn=die_with_this_thread,
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
