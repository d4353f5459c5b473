"""A process that has imported the modules of a custom trainer, and forks a process for each of its trials.

Run as `python fork_server.py SOCKET SETTINGS`, without sweep's packages, since the user's modules may have their names.
Each request brings three descriptors: a file with the command, folder and environment, the pipe for the output, and a
line that returns the process id and the exit status. Closing the line kills the process. A request that cannot be
served by a fork is served by a new interpreter: the results of a trial do not depend on how it was started.

The server imports the installed modules that a script imports at its top. Each trial executes the user's own modules
itself, so their state is the state of a fresh process.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Generator, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

# As long as a real mark: the kernel shows a process's first environment, where a fork must write its own mark.
MARK_TO_REPLACE = "0" * 32
SET_PARENT_DEATH_SIGNAL = 1
_ENVIRONMENT_FIELDS = (49, 50)  # start and end of the environment's memory, among the fields of /proc/self/stat
MAX_MESSAGE = 2**16
_LIBC = ctypes.CDLL(None)
# The program that trains with a Python function, and its own imports.
FUNCTION = "orchestrator.worker.function"
_FUNCTION_IMPORTS = ("orchestrator.detection.watch",)
_INSTALLED = ("site-packages", "dist-packages")
_ENVIRONMENT = ("environ", "putenv", "setenv")


def main() -> None:
    """Import, then serve; a fork returns from serving to run its trial's command."""
    control, settings = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    os.chdir(settings["folder"])
    command = _after_start(settings["command"])
    _search_modules_as(command)
    gc.disable()  # a collection would touch, and so copy, memory that is shared with the forks
    for name in modules_to_preload(command, settings["preload"]):
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
    """Run ``command``, python SCRIPT ... or python -m MODULE ..., in this process."""
    command = _after_start(command)
    _search_modules_as(command)
    if command[1] == "-m":
        sys.argv = list(command[2:])
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command[1:])
        runpy.run_path(command[1], run_name="__main__")


def _exit_code_of(command: Sequence[str]) -> int:
    """Run ``command`` and return the exit code of an interpreter."""
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
    """Finish as an interpreter does, except for the teardown of modules, which takes longer than a short trial."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for non-daemon threads
    atexit._run_exitfuncs()
    for file in gc.get_objects():  # frozen objects, from before the fork, are not among them
        if isinstance(file, io.IOBase) and not file.closed:
            with contextlib.suppress(Exception):
                file.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _LIBC.fflush(None)


def _after_start(command: Sequence[str]) -> Sequence[str]:
    """Return ``command``, for a Python function without sweep_stability.py, which this imports instead."""
    if list(command[3:5]) != ["-m", FUNCTION]:
        return command
    runpy.run_path(command[2])
    return [command[0], *command[3:]]


def _search_modules_as(command: Sequence[str]) -> None:
    """Set the first entry of sys.path as an interpreter started by ``command`` does."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if command[1] == "-m" else os.path.dirname(os.path.abspath(command[1]))


class Server:
    """Forks on request, and reports how each fork ended."""

    def __init__(self, control: socket.socket, mark_variable: str) -> None:
        self._control, self._mark_variable = control, mark_variable
        self._lines: dict[int, socket.socket] = {}  # by process id, until the client closes it
        self._ended: set[int] = set()
        self._selector, self._pipe = selectors.DefaultSelector(), os.pipe()
        self._can_fork = _is_safe_to_fork() and _address_of(self._mark_variable) is not None

    def serve(self) -> dict[str, Any] | None:
        """Serve until the client is gone, then return None; in a fork, return the request to run."""
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
                    os.read(news, MAX_MESSAGE)
                    self._report_endings()
                else:
                    self._drop(key.data)

    def _fork(self, text: int, output: int, line_number: int) -> dict[str, Any] | None:
        """Start a process; returns its request in the new process, else None."""
        line, server = socket.socket(fileno=line_number), os.getpid()
        process = os.fork()
        if process == 0:
            return self._become_a_trial(text, output, line, server)
        os.close(text)
        os.close(output)
        self._lines[process] = line
        self._selector.register(line, selectors.EVENT_READ, process)
        _send(line, "pid", process)
        return None

    def _report_endings(self) -> None:
        """Report how processes ended. They are reaped, and their ids reused, only after the client closes the line."""
        for process, line in self._lines.items():
            if process not in self._ended:
                ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None:
                    self._ended.add(process)
                    status = ended.si_status
                    _send(line, "exit", status if ended.si_code == os.CLD_EXITED else -status)

    def _drop(self, process: int) -> None:
        """End a process after the client has closed its line."""
        line = self._lines.pop(process)
        self._selector.unregister(line)
        line.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it may not have created its group yet
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        self._ended.discard(process)

    def _become_a_trial(self, text: int, output: int, line: socket.socket, server: int) -> dict[str, Any]:
        """In a fork: release the server's resources, and take on the trial's folder, environment and output."""
        os.setsid()  # so that its group can be signalled
        _LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
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
            random.seed()  # its state was drawn at import; Python reseeds its own `random` after a fork
        return request


def _send(line: socket.socket, word: str, number: int) -> None:
    with contextlib.suppress(OSError):  # the client has gone
        line.sendall(f"{word} {number}\n".encode())


def _is_safe_to_fork() -> bool:
    """Whether no other thread runs, since a fork would lose it.

    Libraries of linear algebra end their threads before a fork and restart them on demand, so one fork is tried first.
    """
    if threading.active_count() > 1:
        return False
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return len(os.listdir("/proc/self/task")) == 1


def _address_of(variable: str) -> int | None:
    """Return the address of a variable's value in the environment as the kernel shows it, or None if unknown."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        # The first two fields precede the bracket.
        start, end = (int(fields[number - 2]) for number in _ENVIRONMENT_FIELDS)
    except (OSError, IndexError, ValueError):
        return None
    name = f"{variable}=".encode()
    index = ctypes.string_at(start, end - start).find(name + MARK_TO_REPLACE.encode() + b"\0") if start else -1
    return start + index + len(name) if index >= 0 else None


def _write_mark(variable: str, mark: str) -> None:
    """Replace the mark in the environment that other processes see, so that this one can be found and ended."""
    address = _address_of(variable)
    assert address is not None  # checked when the server started
    assert len(mark) == len(MARK_TO_REPLACE), mark
    ctypes.memmove(address, mark.encode(), len(mark))


def modules_to_preload(command: Sequence[str], preload: str | Sequence[str]) -> list[str]:
    """Return the modules to import for ``command``: the names in ``preload``, or for "auto" the script's imports.

    ``command`` is python SCRIPT or python -m MODULE. Names are resolved as this process would import them.
    """
    is_function = list(command[1:3]) == ["-m", FUNCTION]
    first = list(_FUNCTION_IMPORTS) if is_function else []
    if not isinstance(preload, str):
        return [*first, *preload]
    if is_function:
        file = _file_of(command[3].partition(":")[0])
    elif command[1] == "-m":
        file = _file_of(f"{command[2]}.__main__") or _file_of(command[2])
    else:
        file = Path(command[1])
    return list(dict.fromkeys([*first, *(_installed_imports(file, set()) if file is not None else ())]))


def _installed_imports(file: Path, seen: set[Path]) -> Generator[str, None, bool]:
    """Yield the installed modules that ``file``, and the user's modules that it imports, import at their top, in order.

    Stops at a change of the environment, since later imports may depend on it; returns whether there was one.
    """
    if file in seen:
        return False
    seen.add(file)
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    for statement in _at_import(statements):
        if _touches_environment(statement):
            return True
        for name in _names(statement):
            spec = _spec(name.partition(".")[0])
            if spec is None:
                continue
            if _is_installed(spec):
                yield name
            elif (own := _file_of(name)) is not None and (yield from _installed_imports(own, seen)):
                return True
    return False


def _at_import(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported, including the bodies of ``if`` and ``try``."""
    for statement in statements:
        if isinstance(statement, ast.Try):
            yield from _at_import([*statement.body, *statement.orelse, *statement.finalbody])
        elif isinstance(statement, ast.If):
            if "TYPE_CHECKING" not in ast.dump(statement.test):
                yield from _at_import([*statement.body, *statement.orelse])
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement


def _touches_environment(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return False
    return any(
        getattr(node, "attr", None) in _ENVIRONMENT or getattr(node, "id", None) in _ENVIRONMENT
        for node in ast.walk(statement)
    )


def _names(statement: ast.stmt) -> list[str]:
    """Full names of the modules that a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        return [statement.module]
    return []


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _is_installed(spec: ModuleSpec) -> bool:
    """Whether a module belongs to Python or to an installed package rather than to the user."""
    locations = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    if not locations:
        return True  # built in or frozen
    paths = [Path(location) for location in locations if location]
    standard = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return any(
        any(part in _INSTALLED for part in path.parts) or any(path.is_relative_to(folder) for folder in standard)
        for path in paths
    )


def _file_of(name: str) -> Path | None:
    """Return the file of a user's module without importing its package, or None."""
    first, *rest = name.split(".")
    spec = _spec(first)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.has_location and spec.origin else None
    for location in spec.submodule_search_locations or ():
        inner = Path(location).joinpath(*rest)
        for file in (inner.with_suffix(".py"), inner / "__init__.py"):
            if file.is_file():
                return file
    return None


if __name__ == "__main__":
    main()
