"""How to run a pack on this machine: measured in a second or two and cached, never guessed.

This covers how many members train at a time, eager or compiled, and the library for matrix products. The fastest choice
depends on the model's size, the processor and the libraries, so each structure is tried on the machine that trains it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from objectives.base import Objective, Rounding, Way
from objectives.training_config import TrainingConfig
from orchestrator.base.environment import installed_version
from orchestrator.base.errors import StorageError
from orchestrator.base.files import atomic_write, waiting_lock
from orchestrator.base.space import canonical_json
from orchestrator.worker.measurement import Machine, Measurement, is_out_of_memory

_WIDTHS = {"cpu": (1, 4, 16, 32, 64, 128, 256, 512), "cuda": (1, 4, 16, 64, 256, 512)}
# Widths in a row that gain nothing before no wider one is tried: one of them may have been disturbed.
_PATIENCE = 2
# A wider pack must be this much faster, and so must any way other than eager: measurements are noisy.
_MARGIN = 1.05
# Cost and gain of compiling where not measured yet (2 cores, 17 to 25 s; 1.1 to 1.5 times).
_EXPECTED_COMPILE_S, _EXPECTED_GAIN = 25.0, 1.25
# A cached compilation takes this share of the first one.
_CACHED_SHARE = 0.25
_MEMORY_SHARE = 0.5
# A width is tried while it is less than this many times the number of members.
_FILLED = 1.5


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen way and the reason, in one line; its measured speed if there is one."""

    way: Way
    reason: str
    member_steps_per_second: float | None = None


def prepare_process() -> None:
    """Settings of a worker process: products round independently of memory alignment, and freed memory is reused.

    Without the first, a member's last bits would depend on the size of its pack where its matrices do not fill blocks
    of 16 bytes (MKL's conditional numerical reproducibility, read at the first product; on one thread). By default
    glibc returns large buffers to the kernel at once and requests them again, with up to 10,000 page faults for one
    step of a pack. Does nothing without glibc.
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
    """Return freed memory to the system: a process that has ended its pack may live on beside the next one's."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def choose_way(
    objective: Objective,
    config: TrainingConfig,
    device: str,
    cpus: int,
    num_members: int,
    steps_ahead: int,
    machine: Machine = Machine(),
) -> Choice:
    """The fastest way for packs of this structure, measured on ``machine`` unless cached.

    ``num_members`` are left to train, ``steps_ahead`` are the member-steps of this structure for this worker.
    """
    remembered = load_measurements(objective, config, device, cpus)
    known = measure_widths(objective, config, device, num_members, remembered, machine)
    if known != remembered:
        save_measurements(objective, config, device, cpus, known)
    best = best_eager(known, num_members)
    if objective.can_compile and _compiled(known, best) is None and _compiling_pays(best, None, steps_ahead):
        known = [*known, machine.measure(objective, config, device, replace(best.way, compiled=True))]
        save_measurements(objective, config, device, cpus, known)
    return _choice(objective, known, num_members, steps_ahead)


def choose_width(
    objective: Objective,
    config: TrainingConfig,
    device: str,
    cpus: int,
    num_members: int,
    rounding: Rounding,
    machine: Machine = Machine(),
) -> Choice:
    """The fastest width for packs that repeat results of that ``rounding`` to the bit, as measured of eager packs."""
    remembered = load_measurements(objective, config, device, cpus)
    known = measure_widths(objective, config, device, num_members, remembered, machine)
    if known != remembered:
        save_measurements(objective, config, device, cpus, known)
    way = rounding.way(best_eager(known, num_members, rounding).way.width)
    return Choice(way, f"{_name(way)}, with the kernels of the trial that is forked")


def known_choice(
    objective: Objective, config: TrainingConfig, device: str, cpus: int, num_members: int, steps_ahead: int
) -> Choice | None:
    """The choice of ``choose_way`` from the cache; None where it would have to measure first."""
    known = load_measurements(objective, config, device, cpus)
    return _choice(objective, known, num_members, steps_ahead) if known else None


def _choice(objective: Objective, known: Sequence[Measurement], num_members: int, steps_ahead: int) -> Choice:
    best = best_eager(known, num_members)
    compiled = _compiled(known, best)
    chosen = best
    if compiled is not None and not compiled.failure and _compiling_pays(best, compiled, steps_ahead):
        chosen = compiled
    reason = explain(chosen, known, objective, best, compiled)
    return Choice(chosen.way, reason, chosen.member_steps_per_second)


def _compiled(known: Sequence[Measurement], eager: Measurement) -> Measurement | None:
    """The measurement of the compiled counterpart of ``eager``, if there is one."""
    return next((m for m in known if m.way == replace(eager.way, compiled=True)), None)


def best_eager(known: Sequence[Measurement], num_members: int, rounding: Rounding | None = None) -> Measurement:
    """The fastest eager way that ``num_members`` can fill; the narrowest of those that are nearly as fast.

    With a ``rounding`` the kernels are given: widths are compared as they were measured, with those of the library.
    """
    eager = [m for m in known if not m.way.compiled and m.way.width < max(2, _FILLED * num_members)]
    if rounding is not None:
        eager = [m for m in eager if m.way.kernels == "default"]
    fastest = max(m.member_steps_per_second for m in eager)
    return next(m for m in sorted(eager, key=lambda m: m.way.width) if m.member_steps_per_second * _MARGIN >= fastest)


def explain(
    chosen: Measurement,
    known: Sequence[Measurement],
    objective: Objective,
    eager: Measurement,
    compiled: Measurement | None,
) -> str:
    """The choice, and after a colon the measured curve and the number of steps from which compiling would pay off."""
    curve = ", ".join(
        f"{_name(m.way)}: {m.member_steps_per_second:,.0f}" for m in sorted(known, key=lambda m: astuple(m.way))
    )
    text = f"{_name(chosen.way)}{_gain(chosen, known)}: member-steps/s a worker, measured: {curve}"
    if compiled is not None and compiled.failure:
        return f"{text}; {compiled.failure}"
    if objective.can_compile and not chosen.way.compiled:
        enough = break_even_steps(eager, compiled)
        text += f"; compiling would pay from {enough:,.0f} member-steps a worker on" if enough < float("inf") else ""
    return text


def _gain(chosen: Measurement, known: Sequence[Measurement]) -> str:
    """How much faster the choice is than one member at a time."""
    alone = next((m for m in known if m.way == Way(1)), chosen)
    if chosen.way == alone.way or not alone.member_steps_per_second:
        return ""
    return f", {chosen.member_steps_per_second / alone.member_steps_per_second:.1f} times as fast as 1"


def break_even_steps(eager: Measurement, compiled: Measurement | None) -> float:
    """Member-steps from which a compiled pack finishes sooner than an eager one."""
    if compiled is None:
        cost = _EXPECTED_COMPILE_S * (1 + _CACHED_SHARE)
        rate = eager.member_steps_per_second * _EXPECTED_GAIN
    else:
        cost = compiled.compile_s * _CACHED_SHARE
        rate = compiled.member_steps_per_second
    saved_per_step = 1 / eager.member_steps_per_second - 1 / rate
    return cost / saved_per_step if saved_per_step > 0 else float("inf")


def _compiling_pays(eager: Measurement, compiled: Measurement | None, steps_ahead: int) -> bool:
    return steps_ahead > break_even_steps(eager, compiled)


def measure_widths(
    objective: Objective,
    config: TrainingConfig,
    device: str,
    num_members: int,
    known: Sequence[Measurement] = (),
    machine: Machine = Machine(),
) -> list[Measurement]:
    """Time eager packs of growing width until they gain nothing or memory runs out, in addition to ``known``.

    Where members cannot be stacked there is only one width.
    """
    known = list(known)
    curve = [m for m in known if m.way == Way(m.way.width)]
    for width in _WIDTHS[device] if config.can_be_stacked else (1,):
        if curve:
            if width <= curve[-1].way.width:
                continue
            if _gains_nothing([m.member_steps_per_second for m in curve]):
                break
            needed_bytes = width * curve[-1].bytes_per_member
            if width >= _FILLED * num_members or needed_bytes > _MEMORY_SHARE * machine.free_memory(device):
                break
        try:
            curve.append(machine.measure(objective, config, device, Way(width)))
        except (MemoryError, RuntimeError) as error:
            if not curve or not is_out_of_memory(error):
                raise
            break  # narrower widths fit
        known.append(curve[-1])
    is_narrow = best_eager(known, num_members).way.width <= 4
    if objective.can_compile and device == "cpu" and is_narrow and all(m.way.kernels == "default" for m in known):
        known.append(machine.measure(objective, config, device, Way(1, kernels="onednn")))
    return known


def _gains_nothing(rates: Sequence[float]) -> bool:
    """Whether none of the last widths was faster than all before them."""
    before, last = rates[:-_PATIENCE], rates[-_PATIENCE:]
    return bool(before) and max(last) < max(before) * _MARGIN


def load_measurements(objective: Objective, config: TrainingConfig, device: str, cpus: int) -> list[Measurement]:
    """Cached measurements of this structure on this machine; empty if there are none."""
    entry = _read_cache().get(_key(objective, config, device, cpus), [])
    try:
        return [Measurement(**{**found, "way": Way(**found["way"])}) for found in entry]
    except (TypeError, KeyError):  # written by another version
        return []


def save_measurements(
    objective: Objective, config: TrainingConfig, device: str, cpus: int, known: Sequence[Measurement]
) -> None:
    """Cache ``known`` for later packs and sweeps; skipped if the cache cannot be written."""
    with contextlib.suppress(StorageError):
        with waiting_lock(cache_folder() / "ways.lock"):
            entries = {**_read_cache(), _key(objective, config, device, cpus): [asdict(m) for m in known]}
            atomic_write(cache_folder() / "ways.json", json.dumps(entries, indent=1).encode())


def cache_folder() -> Path:
    """The folder of measurements and compiled packs: ``SWEEP_CACHE``, or ``sweep`` in the user's cache."""
    if chosen := os.environ.get("SWEEP_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sweep"


def _read_cache() -> Mapping[str, Any]:
    try:
        entries = json.loads((cache_folder() / "ways.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _key(objective: Objective, config: TrainingConfig, device: str, cpus: int) -> str:
    """Everything that the speed depends on, hashed."""
    numbers = objective.per_member_fields | {"steps", "schedule", "final_lr_fraction", "text", "validation_batches"}
    structure = {name: value for name, value in config.model_dump().items() if name not in numbers}
    what = [objective.name, structure, device, cpus, os.cpu_count(), _processor(device), _torch_version()]
    return hashlib.sha256(canonical_json(what).encode()).hexdigest()[:16]


@cache  # asked once for each pack; finding it reads the metadata of every installed package
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


def _name(way: Way) -> str:
    parts = [f"{way.width} at a time"]
    parts += ["compiled"] if way.compiled else []
    parts += ["oneDNN"] if way.kernels == "onednn" else []
    return " ".join(parts)
