"""The machine that trains packs: settings of a process, free memory, and the fastest execution plan for a pack.

A plan sets how many members train at a time, eager or compiled execution, and the library for matrix products. The
fastest plan depends on the model's size, the processor and the libraries, so each structure is measured on the machine
that trains it, in a second or two, and the measurements are cached.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import math
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from objectives.base import ExecutionPlan, Objective, Rounding
from objectives.protocol import Trainer
from objectives.training_config import TrainingConfig
from orchestrator.base.environment import installed_version
from orchestrator.base.errors import StorageError
from orchestrator.base.files import atomic_write, waiting_lock
from orchestrator.base.space import canonical_text

_WIDTHS = {"cpu": (1, 4, 16, 32, 64, 128, 256, 512), "cuda": (1, 4, 16, 64, 256, 512)}
# Stop after this many widths in a row without a gain; a single one may have been disturbed.
_PATIENCE = 2
# A wider or compiled plan must be this much faster, since measurements are noisy.
_MARGIN = 1.05
# Cost and gain of compiling before either is measured (2 cores: 17 to 25 s, 1.1 to 1.5 times as fast).
_EXPECTED_COMPILE_S, _EXPECTED_GAIN = 25.0, 1.25
# A cached compilation takes this share of the first one.
_CACHED_SHARE = 0.25
_MEMORY_SHARE = 0.5
# A width is tried while it is less than this many times the number of members.
_FILLED = 1.5
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
    import torch

    memory_before = _peak_memory(device)
    trainer = objective.start([config] * plan.width, [k % 3 for k in range(plan.width)], device, plan)
    try:
        began = time.perf_counter()
        _ = float(trainer.step()["loss"][0])
        compile_s = time.perf_counter() - began
        is_one_thread = device == "cpu" and torch.get_num_threads() == 1
        clock = time.thread_time if is_one_thread else time.perf_counter
        steps_per_second = max(_speed(trainer, seconds / _NUM_PARTS, clock) for _ in range(_NUM_PARTS))
        failure = trainer.describe().get("compilation", "")
    finally:
        trainer.close()
    added = max(0, _peak_memory(device) - memory_before)
    return Measurement(plan, plan.width * steps_per_second, compile_s, added // plan.width, failure)


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
    steps_ahead: int,
    rounding: Rounding | None = None,
    machine: Machine = Machine(),
) -> PlanChoice:
    """Return the fastest plan for packs of this structure, measured on ``machine`` unless it is cached.

    ``num_members`` are left to train; ``steps_ahead`` counts the member-steps of this structure that this worker can
    expect. With a ``rounding``, which results must repeat bit for bit, only the width is chosen.
    """
    cached = load_measurements(objective, config, device, cpus)
    known = measure_widths(objective, config, device, num_members, cached, machine)
    if known != cached:
        save_measurements(objective, config, device, cpus, known)
    if rounding is not None:
        plan = rounding.plan(best_eager(known, num_members, rounding).plan.width)
        return PlanChoice(plan, f"{_name(plan)}, with the kernels of the trial that is forked")
    best = best_eager(known, num_members)
    if objective.can_compile and _compiled(known, best) is None and steps_ahead > break_even_steps(best, None):
        known = [*known, machine.measure(objective, config, device, replace(best.plan, compiled=True))]
        save_measurements(objective, config, device, cpus, known)
    return _choice(objective, known, num_members, steps_ahead)


def cached_choice(
    objective: Objective, config: TrainingConfig, device: str, cpus: int, num_members: int, steps_ahead: int
) -> PlanChoice | None:
    """Return what ``choose_plan`` would return from the cache alone, or None if nothing is cached."""
    known = load_measurements(objective, config, device, cpus)
    return _choice(objective, known, num_members, steps_ahead) if known else None


def _choice(objective: Objective, known: Sequence[Measurement], num_members: int, steps_ahead: int) -> PlanChoice:
    """Choose among ``known``. The reason has the measured speeds, and how many steps would make compiling pay."""
    best = best_eager(known, num_members)
    compiled = _compiled(known, best)
    failure = compiled.failure if compiled is not None else ""
    enough = break_even_steps(best, compiled)
    chosen = compiled if compiled is not None and not failure and steps_ahead > enough else best
    reason = _name(chosen.plan)
    alone = next((m for m in known if m.plan == ExecutionPlan(1)), chosen)
    if chosen.plan != alone.plan and alone.member_steps_per_second:
        reason += f", {chosen.member_steps_per_second / alone.member_steps_per_second:.1f} times as fast as 1"
    curve = (f"{_name(m.plan)}: {m.member_steps_per_second:,.0f}" for m in sorted(known, key=lambda m: astuple(m.plan)))
    reason += f": member-steps/s a worker, measured: {', '.join(curve)}"
    if failure:
        reason += f"; {failure}"
    elif objective.can_compile and not chosen.plan.compiled and enough < math.inf:
        reason += f"; compiling would pay from {enough:,.0f} member-steps a worker on"
    return PlanChoice(chosen.plan, reason, chosen.member_steps_per_second)


def _compiled(known: Sequence[Measurement], eager: Measurement) -> Measurement | None:
    """The measurement of the compiled counterpart of ``eager``, if there is one."""
    return next((m for m in known if m.plan == replace(eager.plan, compiled=True)), None)


def best_eager(known: Sequence[Measurement], num_members: int, rounding: Rounding | None = None) -> Measurement:
    """Return the fastest eager plan that ``num_members`` can fill, or the narrowest that is nearly as fast.

    A ``rounding`` fixes the kernels, so widths are then compared as measured with the library's default kernels.
    """
    eager = [m for m in known if not m.plan.compiled and m.plan.width < max(2, _FILLED * num_members)]
    if rounding is not None:
        eager = [m for m in eager if m.plan.kernels == "default"]
    fastest = max(m.member_steps_per_second for m in eager)
    return next(m for m in sorted(eager, key=lambda m: m.plan.width) if m.member_steps_per_second * _MARGIN >= fastest)


def break_even_steps(eager: Measurement, compiled: Measurement | None) -> float:
    """Member-steps above which a compiled pack finishes sooner than an eager one; infinite if it never does."""
    if compiled is None:
        cost = _EXPECTED_COMPILE_S * (1 + _CACHED_SHARE)
        rate = eager.member_steps_per_second * _EXPECTED_GAIN
    else:
        cost = compiled.compile_s * _CACHED_SHARE
        rate = compiled.member_steps_per_second
    saved_per_step = 1 / eager.member_steps_per_second - 1 / rate
    return cost / saved_per_step if saved_per_step > 0 else math.inf


def measure_widths(
    objective: Objective,
    config: TrainingConfig,
    device: str,
    num_members: int,
    known: Sequence[Measurement] = (),
    machine: Machine = Machine(),
) -> list[Measurement]:
    """Extend ``known`` with eager packs of growing width until they gain nothing or memory runs out.

    Only width 1 is measured if members cannot be stacked.
    """
    known = list(known)
    curve = [m for m in known if m.plan == ExecutionPlan(m.plan.width)]
    for width in _WIDTHS[device] if config.can_be_stacked else (1,):
        if curve:
            if width <= curve[-1].plan.width:
                continue
            if _gains_nothing([m.member_steps_per_second for m in curve]):
                break
            needed_bytes = width * curve[-1].bytes_per_member
            if width >= _FILLED * num_members or needed_bytes > _MEMORY_SHARE * machine.free_memory(device):
                break
        try:
            curve.append(machine.measure(objective, config, device, ExecutionPlan(width)))
        except (MemoryError, RuntimeError) as error:
            if not curve or not is_out_of_memory(error):
                raise
            break  # narrower widths fit
        known.append(curve[-1])
    is_narrow = best_eager(known, num_members).plan.width <= 4
    if objective.can_compile and device == "cpu" and is_narrow and all(m.plan.kernels == "default" for m in known):
        known.append(machine.measure(objective, config, device, ExecutionPlan(1, kernels="onednn")))
    return known


def _gains_nothing(rates: Sequence[float]) -> bool:
    """Whether none of the last widths was faster than all before them."""
    before, last = rates[:-_PATIENCE], rates[-_PATIENCE:]
    return bool(before) and max(last) < max(before) * _MARGIN


def load_measurements(objective: Objective, config: TrainingConfig, device: str, cpus: int) -> list[Measurement]:
    """Return the cached measurements of this structure on this machine, possibly none."""
    entry = _read_cache().get(_key(objective, config, device, cpus), [])
    try:
        return [Measurement(**{**row, "plan": ExecutionPlan(**row["plan"])}) for row in entry]
    except (TypeError, KeyError):  # written by another version
        return []


def save_measurements(
    objective: Objective, config: TrainingConfig, device: str, cpus: int, known: Sequence[Measurement]
) -> None:
    """Cache ``known`` for later packs and sweeps; does nothing if the cache cannot be written."""
    with contextlib.suppress(StorageError):
        with waiting_lock(cache_folder() / "plans.lock"):
            entries = {**_read_cache(), _key(objective, config, device, cpus): [asdict(m) for m in known]}
            atomic_write(cache_folder() / "plans.json", json.dumps(entries, indent=1).encode())


def _read_cache() -> Mapping[str, Any]:
    try:
        entries = json.loads((cache_folder() / "plans.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _key(objective: Objective, config: TrainingConfig, device: str, cpus: int) -> str:
    """Hash everything that the speed depends on."""
    numbers = objective.per_member_fields | {"steps", "schedule", "final_lr_fraction", "text", "validation_batches"}
    structure = {name: value for name, value in config.model_dump().items() if name not in numbers}
    content = [objective.name, structure, device, cpus, os.cpu_count(), _processor(device), _torch_version()]
    return hashlib.sha256(canonical_text(content).encode()).hexdigest()[:16]


@cache  # asked once for each pack, and it reads the metadata of every installed package
def _torch_version() -> str | None:
    return installed_version("torch")


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


def _name(plan: ExecutionPlan) -> str:
    parts = [f"{plan.width} at a time"]
    parts += ["compiled"] if plan.compiled else []
    parts += ["oneDNN"] if plan.kernels == "onednn" else []
    return " ".join(parts)
