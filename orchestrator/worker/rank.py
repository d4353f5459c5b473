"""One of the other processes of a trial of several: it computes gradients of parts of the batches of rank 0.

`python -m orchestrator.worker.rank SETTINGS` runs with torchrun's environment variables; the settings are JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import psutil

from objectives.base import ExecutionPlan, RankLost, load_objective
from orchestrator.base.packs import StackedPack
from orchestrator.worker.machine import prepare_process

_INTERFACE = "GLOO_SOCKET_IFNAME"
READY = "ready"  # and the rank: the key in the store once a process can compute


@contextlib.contextmanager
def interface_to(address: str) -> Iterator[None]:
    """Let gloo listen on the interface that leads to ``address``, unless the user has named one.

    By default it listens where the name of the host leads, which other nodes may be unable to reach.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
    names = (name for name, known in psutil.net_if_addrs().items() if own in {entry.address for entry in known})
    name = next(names, None)
    if name is None or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = name
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


def command_settings(pack: StackedPack, plan: ExecutionPlan) -> str:
    """Return what such a process needs to know of a pack; all members have its structure."""
    member = pack.members[0]
    settings = {
        "objective": pack.objective,
        "folder": pack.folder,
        "config": dict(member.config),
        "seed": member.seed,
        "cpus": pack.cpus,
        "kernels": plan.kernels,
    }
    return json.dumps(settings)


def serve(settings: dict[str, Any]) -> None:
    """Compute gradients until rank 0 ends the trial."""
    import torch
    import torch.distributed as dist

    from objectives.training.ranks import Ranks

    prepare_process()
    torch.set_num_threads(settings["cpus"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    objective = load_objective(settings["objective"], settings["folder"])
    config, plan = objective.config_of(settings["config"]), ExecutionPlan(1, kernels=settings["kernels"])
    trainer: Any = objective.start([config], [settings["seed"]], "cpu", plan)
    store.set(f"{READY}{rank}", "")
    with contextlib.suppress(RankLost):
        with interface_to(os.environ["MASTER_ADDR"]):
            ranks = Ranks(store, rank, size)
        trainer.serve(ranks)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
