"""A process that has imported what trials import, and forks one process for each trial of a custom trainer.

`python -m orchestrator.worker.fork_server SOCKET SETTINGS`. Each request brings three descriptors: a file with the
command, folder and environment, the pipe for the output, and a line on which the process id and the exit status go
back. Where the line is closed, the process is killed. A request that cannot be served by a fork is served by a new
interpreter: what a trial computes does not depend on how it was started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.worker.preloading import modules_to_preload

# As long as a real mark: the kernel shows a process's first environment, in which a fork has to write its own.
MARK_TO_REPLACE = "0" * 32
_SET_PARENT_DEATH_SIGNAL = 1
_ENVIRONMENT_FIELDS = (49, 50)  # start and end of the environment's memory, among the fields of /proc/self/stat
_LONGEST_MESSAGE = 2**16
_LIBC = ctypes.CDLL(None)


def main() -> None:
    """Import, then serve; a fork goes on from here to run the trial's command."""
    control, settings = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    os.chdir(settings["folder"])
    _look_first_beside(settings["command"])
    gc.disable()  # a collection would touch, and so copy, memory that is shared with the forks
    for name in modules_to_preload(settings["command"], settings["preload"]):
        # A trial that needs it fails at its own import, with its own message.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request = Server(control, settings["mark_variable"]).serve()
    if request is not None:
        gc.enable()
        code = _exit_code_of(request["command"])
        _finish()
        os._exit(code)


def run_as_main(command: Sequence[str]) -> None:
    """What ``command``, python SCRIPT ... or python -m MODULE ..., does, in this process."""
    _look_first_beside(command)
    if command[1] == "-m":
        sys.argv = list(command[2:])
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command[1:])
        runpy.run_path(command[1], run_name="__main__")


def _exit_code_of(command: Sequence[str]) -> int:
    """Run ``command``; returns the exit code that an interpreter would have."""
    try:
        run_as_main(command)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            frames = frames.tb_next  # a script's traceback begins with the script
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 1
    return 0


def _finish() -> None:
    """What an interpreter does at its end, but for taking down the modules, which takes longer than a short trial."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for thing in gc.get_objects():  # without those from before the fork
        if isinstance(thing, io.IOBase) and not thing.closed:
            with contextlib.suppress(Exception):
                thing.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _LIBC.fflush(None)


def _look_first_beside(command: Sequence[str]) -> None:
    """Look for modules where an interpreter started by ``command`` looks first."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if command[1] == "-m" else os.path.dirname(os.path.abspath(command[1]))


class Server:
    """Forks on request, and tells how each fork ended."""

    def __init__(self, control: socket.socket, mark_variable: str) -> None:
        self._control, self._mark_variable = control, mark_variable
        self._lines: dict[int, socket.socket] = {}  # by process id, until the client closes it
        self._ended: set[int] = set()
        self._selector, self._pipe = selectors.DefaultSelector(), os.pipe()
        self._can_fork = _is_safe_to_fork() and _place_of(self._mark_variable) is not None

    def serve(self) -> dict[str, Any] | None:
        """Serve until the client has gone, then None. In a fork: the request that it has to run."""
        news, wake = self._pipe
        for end in self._pipe:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(news, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    content, descriptors, _, _ = socket.recv_fds(self._control, 1, 3)
                    if not content:
                        return None  # the forks get SIGKILL when this process ends
                    request = self._fork(*descriptors)
                    if request is not None:
                        return request
                elif key.fileobj == news:
                    os.read(news, _LONGEST_MESSAGE)
                    self._tell_endings()
                else:
                    self._drop(key.data)

    def _fork(self, text: int, output: int, line_number: int) -> dict[str, Any] | None:
        """Start a process; in the new one: its request."""
        line, server = socket.socket(fileno=line_number), os.getpid()
        process = os.fork()
        if process == 0:
            return self._become_a_trial(text, output, line, server)
        os.close(text)
        os.close(output)
        self._lines[process] = line
        self._selector.register(line, selectors.EVENT_READ, process)
        _say(line, "pid", process)
        return None

    def _tell_endings(self) -> None:
        """Say how processes ended, without reaping them: their ids stay theirs until the client closes the line."""
        for process, line in self._lines.items():
            if process not in self._ended:
                found = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is not None:
                    self._ended.add(process)
                    status = found.si_status
                    _say(line, "exit", status if found.si_code == os.CLD_EXITED else -status)

    def _drop(self, process: int) -> None:
        """End a process whose client has closed its line."""
        line = self._lines.pop(process)
        self._selector.unregister(line)
        line.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it may not have made its group yet
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        self._ended.discard(process)

    def _become_a_trial(self, text: int, output: int, line: socket.socket, server: int) -> dict[str, Any]:
        """In a fork: leave behind what belongs to the server, and take folder, environment and output of the trial."""
        os.setsid()  # so that its group can be signalled
        _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        self._selector.close()
        for other in (*self._lines.values(), self._control, line):
            other.close()
        for number in (output, *self._pipe):
            os.close(number)
        with open(text, "rb") as file:
            file.seek(0)  # the client has written it through the same descriptor
            request: dict[str, Any] = json.load(file)
        os.chdir(request["folder"])
        environment: dict[str, str] = request["environment"]
        if not self._can_fork:
            os.execve(request["command"][0], request["command"], environment)
        os.environ.clear()
        os.environ.update(environment)
        _write_mark(self._mark_variable, environment[self._mark_variable])
        if (random := sys.modules.get("numpy.random")) is not None:
            random.seed()  # its state was drawn when it was imported; that of `random` is drawn anew by a fork
        return request


def _say(line: socket.socket, word: str, number: int) -> None:
    with contextlib.suppress(OSError):  # the client has gone
        line.sendall(f"{word} {number}\n".encode())


def _is_safe_to_fork() -> bool:
    """Whether no thread runs beside this one that a fork would leave out.

    Libraries of linear algebra end their threads before a fork and start them again, so one is tried first.
    """
    if threading.active_count() > 1:
        return False
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return len(os.listdir("/proc/self/task")) == 1


def _place_of(variable: str) -> int | None:
    """The address of a variable's value in the environment as the kernel shows it; None where it cannot be told."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        # The first two fields stand before the bracket.
        start, end = (int(fields[number - 2]) for number in _ENVIRONMENT_FIELDS)
    except (OSError, IndexError, ValueError):
        return None
    name = f"{variable}=".encode()
    found = ctypes.string_at(start, end - start).find(name + MARK_TO_REPLACE.encode() + b"\0") if start else -1
    return start + found + len(name) if found >= 0 else None


def _write_mark(variable: str, mark: str) -> None:
    """Replace the mark in the environment that others see of this process, by which it can be found and ended."""
    place = _place_of(variable)
    assert place is not None  # checked when the server started
    assert len(mark) == len(MARK_TO_REPLACE), mark
    ctypes.memmove(place, mark.encode(), len(mark))


if __name__ == "__main__":
    main()
