"""What this machine can do: the speed of one way to run a pack, and the memory that is free."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from objectives.base import Objective, Way
from objectives.protocol import Trainer
from objectives.training_config import TrainingConfig

_PARTS = 3  # of a measurement


@dataclass(frozen=True, slots=True)
class Measurement:
    """One way, timed: ``compile_s`` is the time of the first step, ``bytes_per_member`` the memory of one more member.

    ``failure`` says why a compiled way fell back to eager.
    """

    way: Way
    member_steps_per_second: float
    compile_s: float
    bytes_per_member: int
    failure: str = ""


def measure(objective: Objective, config: TrainingConfig, device: str, way: Way, seconds: float = 0.25) -> Measurement:
    """Train a throwaway pack for ``seconds`` and at least three steps.

    The speed is that of the fastest part: what else runs on the machine only slows it down. On one thread of a CPU it
    is that of the thread's own time, so that it stands for later runs, too, when less runs beside them.
    """
    memory_before = _memory_in_use(device)
    trainer = objective.start([config] * way.width, [k % 3 for k in range(way.width)], device, way)
    try:
        began = time.perf_counter()
        _ = float(trainer.step()["loss"][0])
        compile_s = time.perf_counter() - began
        clock = _clock(device)
        steps_per_second = max(_speed(trainer, seconds / _PARTS, clock) for _ in range(_PARTS))
        failure = trainer.describe().get("compilation", "")
    finally:
        trainer.close()
    added = max(0, _memory_in_use(device) - memory_before)
    return Measurement(way, way.width * steps_per_second, compile_s, added // way.width, failure)


def _clock(device: str) -> Callable[[], float]:
    import torch

    return time.thread_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def _speed(trainer: Trainer, seconds: float, clock: Callable[[], float]) -> float:
    """Steps per second of ``clock`` over ``seconds`` and at least one step."""
    num_steps, began = 0, clock()
    while num_steps < 1 or clock() - began < seconds:
        metrics = trainer.step()
        _ = float(metrics["loss"][0]) if num_steps % 10 == 0 else None
        num_steps += 1
    _ = float(metrics["loss"][0])  # a GPU has only queued the last steps
    return num_steps / (clock() - began)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means that memory has run out, of the machine or of a GPU."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # A CPU's allocator raises a plain RuntimeError, as do the libraries of a GPU.
    signs = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "bad_alloc")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def free_memory(device: str) -> int:
    """Bytes that a pack may use on ``device`` now; a CPU's memory is shared with packs on all other cores."""
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([free, *_left_in_groups()]) // (os.cpu_count() or 1)


def _left_in_groups() -> Iterator[int]:
    """Bytes left to this process by a container or a cluster job: Linux control groups, versions 1 and 2."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                folder, limit, used = Path(f"/sys/fs/cgroup{path}"), "memory.max", "memory.current"
            elif "memory" in controllers.split(","):
                folder, limit, used = (
                    Path(f"/sys/fs/cgroup/memory{path}"),
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                )
            else:
                continue
            with contextlib.suppress(OSError, ValueError):  # "max" means no limit
                yield max(0, int((folder / limit).read_text()) - int((folder / used).read_text()))


def _memory_in_use(device: str) -> int:
    """Peak memory of this process so far, in bytes."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that can be measured; tests stand in for one with known speeds."""

    measure: Callable[[Objective, TrainingConfig, str, Way], Measurement] = measure
    free_memory: Callable[[str], int] = free_memory
