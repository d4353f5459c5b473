"""The executors that `sweep run --executor` can choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.base.environment import check_installed
from orchestrator.base.errors import InputError, Problem
from orchestrator.executors import INLINE, Executor
from orchestrator.sweepfile.sections import ResourcesConfig

Start = Callable[[], Executor]
_GPU_FILES = ("dev/nvidia[0-9]*", "dev/kfd", "dev/dxg")  # of NVIDIA, AMD and Windows' subsystem for Linux


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """The folder of a sweep, its resources, and command-line options of executors.

    ``address`` is a running Ray cluster; ``slurm`` are options for Slurm jobs, KEY=VALUE each.
    """

    folder: Path
    resources: ResourcesConfig
    address: str | None = None
    slurm: tuple[str, ...] = ()

    def resource_arguments(self) -> dict[str, Any]:
        """Return the resources of a pack as arguments of an executor."""
        resources = self.resources
        return {
            "cpus": resources.cpus,
            "gpus": resources.gpus_per_worker or resources.gpus,
            "parallel": None if resources.parallel == "auto" else resources.parallel,
            "workers": resources.most_workers,
            "fewest": resources.fewest_workers if resources.is_elastic else None,
        }


def _ray(options: ExecutorOptions) -> Start:
    from orchestrator.executors.subprocess_executor import SubprocessExecutor

    arguments = {**options.resource_arguments(), "address": options.address}
    if options.address is None:
        _check_gpus(options.resources)
    # Without other nodes, as on macOS and Windows, Ray listens on loopback only.
    environment = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if options.address is None else {}
    module, factory, is_private = "orchestrator.executors.ray_tune", "RayTuneExecutor", options.address is None
    return lambda: SubprocessExecutor("ray", module, factory, arguments, environment, may_be_killed=is_private)


def _slurm(options: ExecutorOptions) -> Start:
    from orchestrator.executors.slurm import SlurmExecutor
    from orchestrator.executors.slurm_cluster import read_options

    slurm = read_options(options.slurm)
    return lambda: SlurmExecutor(options.folder, **options.resource_arguments(), options=slurm)


def _inline(options: ExecutorOptions) -> Start:
    from orchestrator.executors.inline import InlineExecutor

    _check_gpus(options.resources)
    return InlineExecutor


def _check_gpus(resources: ResourcesConfig) -> None:
    """Raise InputError if packs need a GPU and this machine has none."""
    if not resources.gpus and not resources.gpus_per_worker:
        return
    devices = (path for pattern in _GPU_FILES for path in Path("/").glob(pattern))
    if next(devices, None) is None:
        key, wanted = ("gpus", resources.gpus) if resources.gpus else ("gpus_per_worker", resources.gpus_per_worker)
        remedy = "leave it out to train on the CPU, or train on a cluster with --address or --executor slurm"
        raise InputError(
            Problem("resources", key, f"{wanted:g} of a GPU is asked for, and this machine has none", remedy)
        )


# Each entry loads its executor, which may take seconds, and returns a function that starts it.
LOADERS: dict[str, Callable[[ExecutorOptions], Start]] = {"ray": _ray, "slurm": _slurm, INLINE: _inline}


def executor_loader(name: str, options: ExecutorOptions, *more: str) -> Callable[[], Start]:
    """Return the loader of the executor ``name``.

    Raises InputError for an unknown name; its remedy also has ``more``, which the command replaces by a real one.
    """
    if name not in LOADERS:
        *others, last = (*LOADERS, *more)
        raise InputError(Problem("--executor", "", f"{name!r} is unknown", f"choose {', '.join(others)} or {last}"))
    if name == "ray":
        check_installed("--executor ray", "ray")
    return partial(LOADERS[name], options)
