"""Where the processes of one trial run, and the environment through which they find each other, as in torchrun."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from orchestrator.detection.watch import TRIAL_VARIABLE
from orchestrator.worker.child import Child
from orchestrator.worker.forked import server_for

_RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_OF_ONE_PROCESS = (TRIAL_VARIABLE, *_RANK_VARIABLES)


class Process(Protocol):
    """A process of a trial, here or on another machine; see `Child` for each method."""

    def read(self, timeout_s: float = 0.0) -> bytes:
        """New output."""

    def is_readable(self) -> bool:
        """Whether there is something to read now."""

    def last_lines(self) -> list[str]:
        """The last lines of its output."""

    def returncode(self) -> int | None:
        """Its exit status; None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def close(self) -> None:
        """Kill it and everything it started."""


class RankLauncher(Protocol):
    """Places for the processes of one trial, with rank 0 on this machine."""

    def environments(self, workers: int) -> list[dict[str, str]]:
        """The environment of each of ``workers`` processes, by rank; empty if there is only one."""

    def start(
        self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path
    ) -> Process:
        """Start a process. Raises CannotStart."""

    def close(self) -> None:
        """Release the places."""


class LocalLauncher:
    """All processes on this machine; with ``preload`` as forks of a process that has imported those modules."""

    def __init__(self, preload: str | Sequence[str] | None = None) -> None:
        self._preload = preload

    def environments(self, workers: int) -> list[dict[str, str]]:
        """The environment of each of ``workers`` processes, by rank; empty if there is only one."""
        return torchrun_environments(["here"] * workers, "127.0.0.1", free_port()) if workers > 1 else [{}]

    def start(self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path) -> Child:
        """Start a process. Raises CannotStart."""
        server = None
        if self._preload is not None:
            shared = {name: text for name, text in environment.items() if name not in _OF_ONE_PROCESS}
            server = server_for(command, self._preload, folder, {**os.environ, **shared})
        return Child(command, folder, environment, log, server)

    def close(self) -> None:
        """Nothing to release."""


def torchrun_environments(nodes: Sequence[str], address: str, port: int) -> list[dict[str, str]]:
    """The variables that torchrun would set for the processes on ``nodes`` (a name for each rank), by rank."""
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
    """A port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
