"""Choose an execution plan for a pack: measured on this machine in a second or two, and cached.

A plan sets how many members train at a time, eager or compiled execution, and the library for matrix products. The
fastest plan depends on the model's size, the processor and the libraries, so each structure is tried on the machine
that trains it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from objectives.base import ExecutionPlan, Objective, Rounding
from objectives.training_config import TrainingConfig
from orchestrator.base.environment import installed_version
from orchestrator.base.errors import StorageError
from orchestrator.base.files import atomic_write, waiting_lock
from orchestrator.base.space import canonical_text
from orchestrator.worker.machine import Machine, Measurement, cache_folder, is_out_of_memory

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
    if objective.can_compile and _compiled(known, best) is None and _compiling_pays(best, None, steps_ahead):
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
    best = best_eager(known, num_members)
    compiled = _compiled(known, best)
    chosen = best
    if compiled is not None and not compiled.failure and _compiling_pays(best, compiled, steps_ahead):
        chosen = compiled
    reason = explain(chosen, known, objective, best, compiled)
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


def explain(
    chosen: Measurement,
    known: Sequence[Measurement],
    objective: Objective,
    eager: Measurement,
    compiled: Measurement | None,
) -> str:
    """Describe the choice, and after a colon the measured speeds and how many steps would make compiling pay."""
    curve = ", ".join(
        f"{_name(m.plan)}: {m.member_steps_per_second:,.0f}" for m in sorted(known, key=lambda m: astuple(m.plan))
    )
    text = f"{_name(chosen.plan)}{_gain(chosen, known)}: member-steps/s a worker, measured: {curve}"
    if compiled is not None and compiled.failure:
        return f"{text}; {compiled.failure}"
    if objective.can_compile and not chosen.plan.compiled:
        enough = break_even_steps(eager, compiled)
        text += f"; compiling would pay from {enough:,.0f} member-steps a worker on" if enough < float("inf") else ""
    return text


def _gain(chosen: Measurement, known: Sequence[Measurement]) -> str:
    """How much faster the choice is than one member at a time."""
    alone = next((m for m in known if m.plan == ExecutionPlan(1)), chosen)
    if chosen.plan == alone.plan or not alone.member_steps_per_second:
        return ""
    return f", {chosen.member_steps_per_second / alone.member_steps_per_second:.1f} times as fast as 1"


def break_even_steps(eager: Measurement, compiled: Measurement | None) -> float:
    """Member-steps above which a compiled pack finishes sooner than an eager one; infinite if it never does."""
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
