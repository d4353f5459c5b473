"""The machine that trains a pack: settings of the process, free memory, and the speed of an execution plan."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from objectives.base import ExecutionPlan, Objective
from objectives.protocol import Trainer
from objectives.training_config import TrainingConfig

_NUM_PARTS = 3  # of a measurement


def cache_folder() -> Path:
    """The folder of measurements and compiled packs: ``SWEEP_CACHE``, or ``sweep`` in the user's cache."""
    if folder := os.environ.get("SWEEP_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sweep"


def prepare_process() -> None:
    """Make products round independently of memory alignment, and let this process reuse freed memory.

    Without the first, a member's last bits would depend on the size of its pack if its matrices do not fill blocks of
    16 bytes (MKL's conditional numerical reproducibility, read at the first product; on one thread). By default glibc
    returns large buffers to the kernel at once and requests them again, with up to 10,000 page faults for one step of
    a pack. Does nothing without glibc.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3
        mallopt(mmap_threshold, 32 * 2**20)  # the largest that glibc accepts
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 64 * 2**20)


def release_memory() -> None:
    """Return freed memory to the system, since this process may outlive its pack while another one trains."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means that the machine or a GPU ran out of memory."""
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
                folder, limit, used = f"/sys/fs/cgroup{path}", "memory.max", "memory.current"
            elif "memory" in controllers.split(","):
                folder, limit, used = f"/sys/fs/cgroup/memory{path}", "memory.limit_in_bytes", "memory.usage_in_bytes"
            else:
                continue
            with contextlib.suppress(OSError, ValueError):  # "max" means no limit
                yield max(0, int(Path(folder, limit).read_text()) - int(Path(folder, used).read_text()))


def _peak_memory(device: str) -> int:
    """Peak memory of this process so far, in bytes."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True, slots=True)
class Measurement:
    """Speed and memory of one plan.

    ``compile_s`` is the duration of the first step, ``bytes_per_member`` the memory of one more member. ``failure``
    says why a compiled plan fell back to eager.
    """

    plan: ExecutionPlan
    member_steps_per_second: float
    compile_s: float
    bytes_per_member: int
    failure: str = ""


def measure(
    objective: Objective, config: TrainingConfig, device: str, plan: ExecutionPlan, seconds: float = 0.25
) -> Measurement:
    """Train a throwaway pack for ``seconds`` and at least three steps.

    The speed is the speed of the fastest part, since anything else on the machine only slows a part down. On a single
    CPU thread it is measured in the thread's own time, so that it also holds for later runs on a quieter machine.
    """
    memory_before = _peak_memory(device)
    trainer = objective.start([config] * plan.width, [k % 3 for k in range(plan.width)], device, plan)
    try:
        began = time.perf_counter()
        _ = float(trainer.step()["loss"][0])
        compile_s = time.perf_counter() - began
        clock = _clock(device)
        steps_per_second = max(_speed(trainer, seconds / _NUM_PARTS, clock) for _ in range(_NUM_PARTS))
        failure = trainer.describe().get("compilation", "")
    finally:
        trainer.close()
    added = max(0, _peak_memory(device) - memory_before)
    return Measurement(plan, plan.width * steps_per_second, compile_s, added // plan.width, failure)


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


@dataclass(frozen=True, slots=True)
class Machine:
    """What autotuning asks of a machine; tests substitute one with known speeds."""

    measure: Callable[[Objective, TrainingConfig, str, ExecutionPlan], Measurement] = measure
    free_memory: Callable[[str], int] = free_memory
