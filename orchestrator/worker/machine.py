"""The machine that trains packs: settings of a process, free memory, and the fastest width of a pack.

How many members train fastest at a time depends on the model's size, the processor and the libraries, so the widths of
each structure are measured on the machine that trains it, in a second or two, and the measurements are cached. What
rounds differently, compiled code and the library for matrix products, is never chosen by a measurement.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from objectives.base import ExecutionPlan, Kernels, Objective, Rounding
from objectives.models.facts.text import RECIPE_FIELDS
from objectives.native.cache import cache_folder
from objectives.protocol import Trainer
from objectives.training_config import TrainingConfig
from orchestrator.base.environment import installed_version
from orchestrator.base.errors import StorageError
from orchestrator.base.files import atomic_write, waiting_lock
from orchestrator.base.space import canonical_text

# Native kernels compute one member after the other: more at a time save only Python's share of a step.
_WIDTHS = {"cpu": (1, 4, 16, 32, 64, 128, 256, 512), "cuda": (1, 4, 16, 64, 256, 512), "native": (1, 16, 64)}
# Stop after this many widths in a row without a gain; a single one may have been disturbed.
_PATIENCE = 2
# A wider plan must be this much faster, since measurements are noisy.
_MARGIN = 1.05
_MEMORY_SHARE = 0.5
# A width is tried while it is less than this many times the number of members.
_FILLED = 1.5
# Of a measurement, in parts. Native kernels need no warm-up, and both workers measure at the start of a sweep.
_SECONDS, _SECONDS_OF_NATIVE, _NUM_PARTS = 0.25, 0.1, 3


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
    """Speed and memory of eager packs of one width; ``bytes_per_member`` is the memory of one more member."""

    width: int
    member_steps_per_second: float
    bytes_per_member: int


def measure(
    objective: Objective,
    config: TrainingConfig,
    device: str,
    width: int,
    kernels: Kernels = "default",
    seconds: float | None = None,
) -> Measurement:
    """Train a throwaway pack for ``seconds`` (by default as long as ``kernels`` need), and at least three steps.

    The speed is the speed of the fastest part, since anything else on the machine only slows a part down. On a single
    CPU thread it is measured in the thread's own time, so that it also holds for later runs on a quieter machine.
    """
    import torch

    if seconds is None:
        seconds = _SECONDS_OF_NATIVE if kernels == "native" else _SECONDS
    memory_before = _peak_memory(device)
    plan = ExecutionPlan(width, kernels=kernels)
    trainer = objective.start([config] * width, [k % 3 for k in range(width)], device, plan)
    try:
        _ = float(trainer.step()["loss"][0])
        is_one_thread = device == "cpu" and torch.get_num_threads() == 1
        clock = time.thread_time if is_one_thread else time.perf_counter
        steps_per_second = max(_speed(trainer, seconds / _NUM_PARTS, clock) for _ in range(_NUM_PARTS))
    finally:
        trainer.close()
    added = max(0, _peak_memory(device) - memory_before)
    return Measurement(width, width * steps_per_second, added // width)


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

    measure: Callable[[Objective, TrainingConfig, str, int, Kernels], Measurement] = measure
    free_memory: Callable[[str], int] = free_memory


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """The plan of a pack, the reason for it in one line, and its speed if it was measured."""

    plan: ExecutionPlan
    reason: str
    member_steps_per_second: float | None = None


def choose_plan(
    objective: Objective,
    config: TrainingConfig,
    device: str,
    cpus: int,
    num_members: int,
    rounding: Rounding = Rounding(),
    machine: Machine = Machine(),
) -> PlanChoice:
    """Return the plan with the fastest width for packs of this structure and the bits of ``rounding``.

    Widths are measured on ``machine`` unless they are cached, in packs that are not compiled, for the ``num_members``
    that are left to train.
    """
    cached = load_measurements(objective, config, device, cpus, rounding.measured)
    known = measure_widths(objective, config, device, num_members, cached, machine, rounding.measured)
    if known != cached:
        save_measurements(objective, config, device, cpus, known, rounding.measured)
    return _choice(known, num_members, rounding)


def cached_choice(
    objective: Objective, config: TrainingConfig, device: str, cpus: int, num_members: int, rounding: Rounding
) -> PlanChoice | None:
    """Return what ``choose_plan`` would return from the cache alone, or None if nothing is cached."""
    known = load_measurements(objective, config, device, cpus, rounding.measured)
    return _choice(known, num_members, rounding) if known else None


def _choice(known: Sequence[Measurement], num_members: int, rounding: Rounding) -> PlanChoice:
    """Choose among ``known``; the reason has the measured speeds."""
    best = fastest_width(known, num_members)
    plan = rounding.plan(best.width)
    reason = plan_name(plan)
    alone = known[0]
    if best.width > 1 and alone.member_steps_per_second:
        reason += f", {best.member_steps_per_second / alone.member_steps_per_second:.1f} times as fast as 1"
    speeds = (f"{m.width} at a time: {m.member_steps_per_second:,.0f}" for m in known)
    reason += f": member-steps/s a worker, measured: {', '.join(speeds)}"
    return PlanChoice(plan, reason, best.member_steps_per_second if rounding.is_measured else None)


def fastest_width(known: Sequence[Measurement], num_members: int) -> Measurement:
    """Return the fastest width that ``num_members`` can fill, or the narrowest that is nearly as fast."""
    fitting = [m for m in known if m.width < max(2, _FILLED * num_members)]
    fastest = max(m.member_steps_per_second for m in fitting)
    return next(m for m in fitting if m.member_steps_per_second * _MARGIN >= fastest)


def measure_widths(
    objective: Objective,
    config: TrainingConfig,
    device: str,
    num_members: int,
    known: Sequence[Measurement] = (),
    machine: Machine = Machine(),
    kernels: Kernels = "default",
) -> list[Measurement]:
    """Extend ``known`` with packs of growing width until they gain nothing or memory runs out.

    Only width 1 is measured if members cannot be stacked.
    """
    known = list(known)
    for width in _WIDTHS["native" if kernels == "native" else device] if config.can_be_stacked else (1,):
        if known:
            if width <= known[-1].width:
                continue
            if _gains_nothing([m.member_steps_per_second for m in known]):
                break
            needed_bytes = width * known[-1].bytes_per_member
            if width >= _FILLED * num_members or needed_bytes > _MEMORY_SHARE * machine.free_memory(device):
                break
        try:
            known.append(machine.measure(objective, config, device, width, kernels))
        except (MemoryError, RuntimeError) as error:
            if not known or not is_out_of_memory(error):
                raise
            break  # narrower widths fit
    return known


def _gains_nothing(rates: Sequence[float]) -> bool:
    """Whether none of the last widths was faster than all before them."""
    before, last = rates[:-_PATIENCE], rates[-_PATIENCE:]
    return bool(before) and max(last) < max(before) * _MARGIN


def load_measurements(
    objective: Objective, config: TrainingConfig, device: str, cpus: int, kernels: Kernels = "default"
) -> list[Measurement]:
    """Return the cached measurements of this structure on this machine, possibly none."""
    entry = _read_cache().get(_key(objective, config, device, cpus, kernels), [])
    try:
        return [Measurement(**row) for row in entry]
    except TypeError:  # written by another version
        return []


def save_measurements(
    objective: Objective,
    config: TrainingConfig,
    device: str,
    cpus: int,
    known: Sequence[Measurement],
    kernels: Kernels = "default",
) -> None:
    """Cache ``known`` for later packs and sweeps; does nothing if the cache cannot be written."""
    with contextlib.suppress(StorageError):
        with waiting_lock(cache_folder() / "plans.lock"):
            entries = {**_read_cache(), _key(objective, config, device, cpus, kernels): [asdict(m) for m in known]}
            atomic_write(cache_folder() / "plans.json", json.dumps(entries, indent=1).encode())


def _read_cache() -> Mapping[str, Any]:
    try:
        return _entries((cache_folder() / "plans.json").read_bytes())
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=1)  # a plan asks for each structure several times
def _entries(content: bytes) -> Mapping[str, Any]:
    entries = json.loads(content)
    return entries if isinstance(entries, dict) else {}


def _key(objective: Objective, config: TrainingConfig, device: str, cpus: int, kernels: Kernels) -> str:
    """Hash everything that the speed depends on."""
    numbers = objective.per_member_fields | {"steps", "schedule", "final_lr_fraction", "text", "validation_batches"}
    numbers |= {*RECIPE_FIELDS}
    structure = {name: value for name, value in config.model_dump().items() if name not in numbers}
    way = "" if kernels == "default" else f" {kernels}"
    machine = [os.cpu_count(), _processor(device), installed_version("torch")]
    content = [objective.name, structure, device + way, cpus, *machine]
    return hashlib.sha256(canonical_text(content).encode()).hexdigest()[:16]


@cache
def _processor(device: str) -> str:
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip() + platform.machine()
    return platform.processor() or platform.machine()


def set_plan(plan: ExecutionPlan, sizes: Sequence[int] = (1,)) -> PlanChoice:
    """Return a plan that a sweep file sets: by the width of its packs, or by several workers for each trial.

    ``sizes`` are the numbers of workers that an elastic trial may have.
    """
    *fewer, most = map(str, sizes)
    numbers = f"{', '.join(fewer)} or {most}" if fewer else most
    why = "as resources.pack says" if numbers == "1" else f"{numbers} processes share its batches"
    return PlanChoice(plan, f"{plan_name(plan)}, {why}")


def plan_name(plan: ExecutionPlan) -> str:
    """Say how a pack runs in a few words."""
    parts = [f"{plan.width} at a time"]
    parts += ["compiled"] if plan.compiled else []
    parts += {"default": [], "onednn": ["oneDNN"], "native": ["by the native kernel"]}[plan.kernels]
    return " ".join(parts)
