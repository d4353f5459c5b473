"""Launch the processes of one trial: torchrun's environments, their output, and the end of all descendants."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from orchestrator.base.processes import MARK, end_marked, new_mark
from orchestrator.detection.watch import TRIAL_VARIABLE
from orchestrator.worker.trial_folder import OutputLog
from orchestrator.worker.trial_process import TRIAL_MARK, ForkServer, SpawnedProcess, StartedProcess, server_for

_CHUNK_BYTES = 2**20
_LAST_BYTES = 16 * 2**10
_MAX_LINE = 500
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_OF_ONE_PROCESS = (TRIAL_VARIABLE, *_RANK_VARIABLES)


class CannotStart(Exception):
    """A command cannot be run because of its program, folder, arguments or permissions."""


class Process(Protocol):
    """A process of a trial, here or on another machine; see `Child` for each method."""

    def read(self, timeout_s: float = 0.0) -> bytes:
        """Return new output."""

    def is_readable(self) -> bool:
        """Whether there is output to read now."""

    def last_lines(self) -> list[str]:
        """Return the last lines of its output."""

    def returncode(self) -> int | None:
        """Return the exit status, or None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def close(self) -> None:
        """Kill it and everything it started."""


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
        os.set_blocking(self._process.output, False)

    def read(self, timeout_s: float = 0.0) -> bytes:
        """Return new output, at most 1 MiB, waiting up to ``timeout_s`` for it. Raises StorageError."""
        if self._is_at_end:
            if self.returncode() is None:
                time.sleep(timeout_s)  # it has closed its output and still runs
            return b""
        if not self.is_readable(timeout_s):
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
) -> StartedProcess:
    if server is not None:
        try:
            return server.start(command, folder, environment)
        except OSError:
            server.close()  # it was killed; the trial can start without it
    return SpawnedProcess(command, folder, environment, ignored)


class RankLauncher(Protocol):
    """Launches the processes of one trial, with rank 0 on this machine."""

    def environments(self, workers: int) -> list[dict[str, str]]:
        """Return the environment of each of ``workers`` processes, by rank; empty for a single process."""

    def start(
        self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path
    ) -> Process:
        """Start a process. Raises CannotStart."""

    def close(self) -> None:
        """Release resources."""


class LocalLauncher:
    """Runs all processes on this machine; with ``preload`` as forks of a process that has imported those modules."""

    def __init__(self, preload: str | Sequence[str] | None = None) -> None:
        self._preload = preload

    def environments(self, workers: int) -> list[dict[str, str]]:
        """Return the environment of each of ``workers`` processes, by rank; empty for a single process."""
        return torchrun_environments(["here"] * workers, "127.0.0.1", free_port()) if workers > 1 else [{}]

    def start(self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path) -> Child:
        """Start a process. Raises CannotStart."""
        server = None
        if self._preload is not None:
            shared = {name: text for name, text in environment.items() if name not in _OF_ONE_PROCESS}
            server = server_for(command, self._preload, folder, {**os.environ, **shared})
        return Child(command, folder, environment, log, server)

    def close(self) -> None:
        """Do nothing, since it holds no resources."""


class SharedLauncher:
    """A launcher for several runs of one trial in sequence, with the same environments for each run."""

    def __init__(self, launcher: RankLauncher) -> None:
        self._launcher = launcher
        self._environments: list[dict[str, str]] | None = None
        self.start, self.close = launcher.start, launcher.close

    def environments(self, workers: int) -> list[dict[str, str]]:
        """Return the environments of the first call."""
        if self._environments is None:
            self._environments = self._launcher.environments(workers)
        return self._environments


def torchrun_environments(nodes: Sequence[str], address: str, port: int) -> list[dict[str, str]]:
    """Return the variables that torchrun would set for processes on ``nodes``, one node name per rank."""
    distinct = list(dict.fromkeys(nodes))
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(nodes[:rank].count(node)),
            "GROUP_RANK": str(distinct.index(node)),
            "WORLD_SIZE": str(len(nodes)),
            "LOCAL_WORLD_SIZE": str(nodes.count(node)),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        for rank, node in enumerate(nodes)
    ]


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
