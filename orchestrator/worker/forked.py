"""Starts trials as forks of a process that has imported what they import (`fork_server`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from orchestrator.worker.fork_server import MARK_TO_REPLACE
from orchestrator.worker.spawned import TRIAL_MARK, die_with_this_thread

_LONGEST_MESSAGE = 2**16
_running: dict[str, ForkServer] = {}  # the one of this process, by its settings


def server_for(
    command: Sequence[str], preload: str | Sequence[str], folder: str, environment: Mapping[str, str]
) -> ForkServer:
    """The server that this process has for trials like ``command``; one of other settings is replaced."""
    settings = json.dumps([command[:2], list(preload), folder, dict(environment)], sort_keys=True)
    server = _running.get(settings)
    if server is None or not server.is_alive:
        close_server()
        _running[settings] = server = ForkServer(command, preload, folder, environment)
    return server


def close_server() -> None:
    """End the server of this process, if there is one, and its forks."""
    while _running:
        _running.popitem()[1].close()


class Forked:
    """A process that a server has forked, or is about to; the methods are those of `spawned.Spawned`."""

    def __init__(self, line: socket.socket, output: int) -> None:
        """``line`` is the server's, ``output`` the end of a pipe to read from."""
        self.output = output
        self._line, self._told, self._is_alone = line, b"", False

    def returncode(self) -> int | None:
        """Its exit status, minus the signal's number where one killed it; None while it runs."""
        self._listen(0.0)
        if (status := self._word("exit")) is not None:
            return status
        return -signal.SIGKILL if self._is_alone else None  # the kernel has killed it with its server

    def signal(self, number: int) -> None:
        """Send a signal to its group."""
        self._listen(0.0)
        if (process := self._word("pid")) is not None and not self._is_alone:
            # Its id stays its own until the line is closed.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process, number)

    def release(self) -> None:
        """Have it killed if it still runs, and forget it."""
        self._line.close()
        os.close(self.output)

    def _word(self, name: str) -> int | None:
        """What the server has said of the process under ``name``."""
        for message in self._told.split(b"\n")[:-1]:
            word, _, number = message.decode().partition(" ")
            if word == name:
                return int(number)
        return None

    def _listen(self, timeout_s: float) -> None:
        while not self._is_alone and select.select([self._line], [], [], timeout_s)[0]:
            try:
                content = self._line.recv(_LONGEST_MESSAGE)
            except OSError:
                content = b""
            self._is_alone = not content
            self._told += content


class ForkServer:
    """A running `fork_server`. It ends with this process, or when it is closed, and its forks with it."""

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
            # The kernel ends a child with the thread that started it; this one lasts as long as the process.
            with theirs:
                self._process = subprocess.Popen(
                    program,
                    cwd="/",  # modules of the folder must not replace those that the server itself imports
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

    def start(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> Forked:
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
        return Forked(here, output)

    def close(self) -> None:
        """End it and its forks."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
