"""The processes of one trial of a custom trainer, in bundles of a Ray placement group, on any nodes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.base.errors import StorageError
from orchestrator.base.files import make_folder
from orchestrator.worker.launcher import CannotStart, Child, Process, free_port, torchrun_environments

ANSWER_S = 60.0  # time for an actor to answer


class RayRank:
    """An actor in its own bundle that runs one of a trial's processes on that bundle's node."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def place(self) -> tuple[str, str]:
        """The node, and the GPUs assigned to this process, as in CUDA_VISIBLE_DEVICES."""
        return ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def start(self, command: list[str], folder: str, environment: dict[str, str], log: Path) -> str | None:
        """Start the process; returns the problem if it cannot start."""
        try:
            make_folder(log.parent)
            self._child = Child(command, folder, environment, log)
        except (CannotStart, StorageError) as error:
            return str(error)
        return None

    def call(self, name: str, *arguments: Any) -> Any:
        """Forward a call of `ranks.Process` and return the answer."""
        return getattr(self._child, name)(*arguments)


class RemoteProcess:
    """A process run by a `RayRank`. If its node is lost, it counts as killed from outside."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def read(self, timeout_s: float = 0.0) -> bytes:
        """Empty: its output goes to its log, on its node."""
        self._call("read", 0.0)
        return b""

    def is_readable(self) -> bool:
        """False: there is nothing to read here."""
        return False

    def last_lines(self) -> list[str]:
        """The last lines of its output."""
        return self._call("last_lines") or []

    def returncode(self) -> int | None:
        """Its exit status; None while it runs."""
        try:
            return ray.get(self._actor.call.remote("returncode"), timeout=ANSWER_S)
        except ray.exceptions.RayError:
            return -signal.SIGKILL

    def terminate(self) -> None:
        """Ask it to end."""
        self._call("terminate")

    def close(self) -> None:
        """Kill it and everything it started."""
        self._call("close")

    def _call(self, name: str, *arguments: Any) -> Any:
        with contextlib.suppress(ray.exceptions.RayError):
            return ray.get(self._actor.call.remote(name, *arguments), timeout=ANSWER_S)


class RayLauncher:
    """Rank 0 runs in the first bundle of the placement group, with the trainable, and each other rank in its own."""

    def __init__(self, cpus: int, gpus: float) -> None:
        self._cpus, self._gpus = cpus, gpus
        self._actors: list[Any] = []

    def environments(self, workers: int) -> list[dict[str, str]]:
        """torchrun's variables, and the GPUs of each process's node that belong to this trial."""
        if workers == 1:
            return [{}]
        group = ray.util.get_current_placement_group()
        assert group is not None  # set for a trial of several processes
        for bundle in range(1, workers):
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            needs = {"num_cpus": self._cpus, "num_gpus": self._gpus, "scheduling_strategy": where}
            self._actors.append(ray.remote(RayRank).options(**needs).remote())
        context = ray.get_runtime_context()
        here = (context.get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        places = [here, *ray.get([actor.place.remote() for actor in self._actors], timeout=ANSWER_S)]
        nodes = [node for node, _ in places]
        address = ray.util.get_node_ip_address() if len(set(nodes)) > 1 else "127.0.0.1"
        found = torchrun_environments(nodes, address, free_port())
        if self._gpus:
            for node, environment in zip(nodes, found, strict=True):
                # As in torchrun: processes on one node see all its GPUs, and each uses that of its LOCAL_RANK.
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(g for n, g in places if n == node))
        return found

    def start(
        self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path
    ) -> Process:
        """Start a process. Raises CannotStart."""
        if rank == 0:
            return Child(command, folder, environment, log)
        actor = self._actors[rank - 1]
        problem = ray.get(actor.start.remote(list(command), folder, dict(environment), log), timeout=ANSWER_S)
        if problem is not None:
            raise CannotStart(problem)
        return RemoteProcess(actor)

    def close(self) -> None:
        """Release the actors."""
        for actor in self._actors:
            ray.kill(actor)
