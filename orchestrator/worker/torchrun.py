"""The processes of one trial: torchrun's environment variables for each, and how many of them find a place."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence


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


def largest_that_fits(sizes: Sequence[int], places: int) -> int:
    """Return the largest of ascending ``sizes`` with a place for each process; the smallest if there are too few."""
    return next((size for size in reversed(sizes) if size <= places), sizes[0])


def places_here(cpus: int) -> int:
    """Return how many processes of ``cpus`` cores this one's cores hold."""
    return len(os.sched_getaffinity(0)) // cpus
