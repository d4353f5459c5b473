"""Run the processes of one trial of a custom trainer in the bundles of a Ray placement group, on any nodes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from objectives.base import RankLost
from orchestrator.base.errors import StorageError
from orchestrator.base.files import make_folder
from orchestrator.base.words import count
from orchestrator.worker.launcher import CannotStart, Child, Launcher
from orchestrator.worker.points import Process
from orchestrator.worker.torchrun import free_port, torchrun_environments

TIMEOUT_S = 60.0  # for an actor's result
# For the places of an elastic trial: Ray counts those of a lost node for a while, but cannot reserve them.
_ROOM_S, _LAST_ROOM_S = 3.0, 300.0  # of a size, and of the smallest one
_MORE_ROOM_S = 1  # of a larger size, while the trial waits; Ray takes whole seconds


class RayRank:
    """An actor that runs one process of a trial on the node of its bundle."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def node_and_gpus(self) -> tuple[str, str]:
        """Return the node, and the GPUs assigned to this process, as in CUDA_VISIBLE_DEVICES."""
        return ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def start(self, command: list[str], folder: str, environment: dict[str, str], log: Path) -> str | None:
        """Start the process; returns the problem, or None if it started."""
        try:
            make_folder(log.parent)
            self._child = Child(command, folder, environment, log)
        except (CannotStart, StorageError) as error:
            return str(error)
        return None

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of `launcher.Process` and return its result."""
        return getattr(self._child, name)(*arguments)


class RemoteProcess:
    """A process run by a `RayRank`; if its node is lost, it counts as killed."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def read(self, timeout_s: float = 0.0) -> bytes:
        """Let the actor write the output to its log on its node; returns nothing."""
        self._call("read", 0.0)
        return b""

    def is_readable(self) -> bool:
        """Return False: output is not read here."""
        return False

    def last_lines(self) -> list[str]:
        """Return the last lines of its output."""
        return self._call("last_lines") or []

    def returncode(self) -> int | None:
        """Return the exit status, or None while it runs."""
        try:
            return ray.get(self._actor.call.remote("returncode"), timeout=TIMEOUT_S)
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
            return ray.get(self._actor.call.remote(name, *arguments), timeout=TIMEOUT_S)


def _room_of(pack_id: str) -> str:
    """Return the name of the places of an elastic trial."""
    return f"sweep-{pack_id}"


def release_room(pack_id: str) -> None:
    """Give back the places of a lost elastic trial: Ray keeps them if the trial was lost with its node."""
    with contextlib.suppress(ValueError, ray.exceptions.RayError):  # it had none, or Ray is gone
        ray.util.remove_placement_group(ray.util.get_placement_group(_room_of(pack_id)))


class RayLauncher(Launcher):
    """Runs rank 0 with the trainable in the first bundle of the placement group, and each other rank in its own."""

    def __init__(self, cpus: int, gpus: float, pack_id: str) -> None:
        super().__init__()
        self._name = _room_of(pack_id)
        self._cpus, self._gpus = cpus, gpus
        self._place = {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}  # of one process
        self._actors: list[Any] = []
        self._room: Any = None  # the places of an elastic trial besides this process, which has its own

    def fit(self, sizes: Sequence[int], cpus: int) -> int:
        """Reserve places for the largest of ascending ``sizes`` that the cluster has now. Raises RankLost for none."""
        for size in reversed(sizes):
            if size == 1:
                return 1
            room = ray.util.placement_group([self._place] * (size - 1), name=self._name)
            if room.wait(_LAST_ROOM_S if size == sizes[0] else _ROOM_S):
                self._room = room
                return size
            ray.util.remove_placement_group(room)
        raise RankLost(f"there are no places for {count(sizes[0], 'process', 'processes')}")

    def has_room(self, size: int, cpus: int) -> bool:
        """Return whether the cluster has places for ``size`` processes now, with the ones that it has reserved."""
        num = size - 1 - len(self._actors)
        free = ray.available_resources()
        if any(free.get(kind, 0.0) < num * amount for kind, amount in self._place.items()):
            return False  # without a wait
        more = ray.util.placement_group([self._place] * num)
        is_ready = more.wait(_MORE_ROOM_S)
        ray.util.remove_placement_group(more)  # the next attempt reserves all at once
        return is_ready

    def rank_environments(self, workers: int) -> list[dict[str, str]]:
        """Return torchrun's variables, and the GPUs of this trial on the node of each process."""
        group = self._room or ray.util.get_current_placement_group()
        assert group is not None  # set for a trial of several processes
        for bundle in range(workers - 1) if self._room is not None else range(1, workers):
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            needs = {"num_cpus": self._cpus, "num_gpus": self._gpus, "scheduling_strategy": where}
            self._actors.append(ray.remote(RayRank).options(**needs).remote())
        context = ray.get_runtime_context()
        here = (context.get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        nodes_and_gpus = [here, *ray.get([actor.node_and_gpus.remote() for actor in self._actors], timeout=TIMEOUT_S)]
        nodes = [node for node, _ in nodes_and_gpus]
        address = ray.util.get_node_ip_address() if len(set(nodes)) > 1 else "127.0.0.1"
        environments = torchrun_environments(nodes, address, free_port())
        if self._gpus:
            for node, environment in zip(nodes, environments, strict=True):
                # As in torchrun, each process sees all GPUs of its node and uses the one of its LOCAL_RANK.
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(
                    dict.fromkeys(gpus for other, gpus in nodes_and_gpus if other == node)
                )
        return environments

    def start(
        self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path
    ) -> Process:
        """Start a process. Raises CannotStart."""
        if rank == 0:
            return super().start(rank, command, folder, environment, log)
        actor = self._actors[rank - 1]
        problem = ray.get(actor.start.remote(list(command), folder, dict(environment), log), timeout=TIMEOUT_S)
        if problem is not None:
            raise CannotStart(problem)
        return RemoteProcess(actor)

    def close(self) -> None:
        """Release the actors."""
        for actor in self._actors:
            ray.kill(actor)
        if self._room is not None:
            ray.util.remove_placement_group(self._room)
