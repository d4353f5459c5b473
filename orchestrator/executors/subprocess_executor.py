"""Run another executor in a separate process, so that its failure cannot end the driver.

Ray's libraries take over signals, and abort the process that loaded them when a part of Ray dies. The driver holds the
ledger, the terminal and the signals, so it must survive Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

from orchestrator.base.environment import OWN_PYTHON, PLACE, are_first, collect_rarely
from orchestrator.base.errors import ExecutorError, SweepError
from orchestrator.base.packs import Event, Pack
from orchestrator.base.processes import MARK, end_all, end_marked, leftovers, new_mark, scratch_of, tree_of
from orchestrator.executors import Executor

_START_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 8.0
_POLL_S = 0.1


class SubprocessExecutor:
    """The executor made by ``module.factory(**arguments)``, in a separate process with this ``environment``."""

    def __init__(
        self,
        name: str,
        module: str,
        factory: str,
        arguments: dict[str, Any],
        environment: Mapping[str, str],
        may_be_killed: bool = False,
    ) -> None:
        """Start the process and wait until it is ready. Raises the executor's errors, or ExecutorError if it dies.

        An executor that ``may_be_killed`` holds nothing outside of its processes and scratch folder, so `close` kills
        it.
        """
        self.name, self._may_be_killed = name, may_be_killed
        for mark in set(leftovers().values()):
            end_marked(mark)  # left by drivers that were killed
        self.mark = new_mark()
        ours, theirs = socket.socketpair()
        # For Ray's own messages, since the last one may be the only hint why Ray died.
        self._log: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        command = [*OWN_PYTHON, "-m", "orchestrator.executors.subprocess_executor", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                # Ray's workers look for modules in the folder where Ray starts, and then where this process does.
                cwd=None if are_first([os.getcwd(), *sys.path]) else PLACE,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, **environment, MARK: self.mark},
                start_new_session=True,  # Ctrl-C in the terminal goes to the driver
            )
        self._connection = Connection(ours.detach())
        try:
            self._send((module, factory, arguments))
            if not self._connection.poll(_START_TIMEOUT_S):
                raise ExecutorError(f"{name} did not start within {_START_TIMEOUT_S:g} s")
            kind, value = self._receive()
            if kind == "refused":
                raise value
            self.slots: int = value
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def submit(self, pack: Pack) -> None:
        """Queue ``pack``."""
        self._send(("submit", pack))

    def poll(self, timeout_s: float) -> list[Event]:
        """Return events so far, waiting for the first. Raises ExecutorError if it failed or its process died."""
        if not self._connection.poll(timeout_s):
            return []
        kind, value = self._receive()
        if kind == "failed":
            raise value
        self.slots, events = value
        return events

    def pause(self) -> None:
        """Drop queued packs; running packs end with a checkpoint."""
        self._send(("pause",))

    def kill(self, pack_id: str) -> None:
        """End the process that trains a pack."""
        self._send(("kill", pack_id))

    def close(self) -> None:
        """Ask the executor to end unless it may be killed, then kill its process and all descendants."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        if not self._may_be_killed:
            with contextlib.suppress(ExecutorError, subprocess.TimeoutExpired):
                self._send(("close",))
                self._process.wait(max(0.0, deadline - time.monotonic()))
        self._end()

    def _end(self) -> None:
        # Ray's agents overwrite their environment, including the mark, with their title.
        descendants = tree_of(self.pid)
        if self._process.poll() is None:
            self._process.kill()
        end_all(descendants)
        end_marked(self.mark)
        self._process.wait()
        for folder in scratch_of(self.pid):
            shutil.rmtree(folder, ignore_errors=True)
        self._connection.close()
        self._log.close()

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise ExecutorError(self._death()) from error

    def _receive(self) -> tuple[str, Any]:
        try:
            return self._connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise ExecutorError(self._death()) from error

    def _death(self) -> str:
        """Say why the process ended, as far as known."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        code = self._process.returncode
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        last = f": {lines[-1][:300]}" if lines else ""
        remedy = "run the same command again; it continues"
        return f"the process that talks to {self.name} ended {how}{last}\n    remedy: {remedy}"


def serve(connection: Connection) -> None:
    """Serve the executor over ``connection`` until the driver asks to close or has ended."""
    module, factory, arguments = connection.recv()
    try:
        executor: Executor = getattr(importlib.import_module(module), factory)(**arguments)
    except SweepError as error:
        connection.send(("refused", error))
        return
    try:
        connection.send(("ready", executor.slots))
        _serve(connection, executor)
    except (EOFError, OSError):
        pass  # the driver has ended
    except Exception as error:  # from any library that the executor uses
        cause = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        failure = error if isinstance(error, SweepError) else ExecutorError(f"{type(error).__name__}: {cause}")
        with contextlib.suppress(OSError):
            connection.send(("failed", failure))
    finally:
        executor.close()


def _serve(connection: Connection, executor: Executor) -> None:
    # Read in a separate thread, since two sides that both write would wait for each other to read.
    messages: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, messages), daemon=True, name="driver").start()
    slots = executor.slots
    while True:
        while not messages.empty():
            what, *values = messages.get()
            if what == "close":
                return
            getattr(executor, what)(*values)
        events = executor.poll(_POLL_S)
        if events or executor.slots != slots:
            slots = executor.slots
            connection.send(("events", (slots, events)))


def _read(connection: Connection, messages: queue.SimpleQueue[tuple[Any, ...]]) -> None:
    """Forward the driver's messages; a closed connection means close."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv())
    messages.put(("close",))


if __name__ == "__main__":
    collect_rarely()
    serve(Connection(int(sys.argv[1])))
    # A hanging thread or exit handler must not keep the process alive.
    os._exit(0)
