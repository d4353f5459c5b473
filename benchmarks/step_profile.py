"""Where the time of a training step goes, by size and width of a pack: `python benchmarks/step_profile.py`."""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# From a checkout, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_facts
from benchmarks.sizes import SIZES, Size, flops_per_member_step
from objectives.base import ExecutionPlan, GptConfig
from objectives.models.gpt import GptTrainer
from objectives.native import library
from objectives.native.cache import kernel_folder
from objectives.optimizers.native_optimizer import NativeOptimizer
from orchestrator.base.files import atomic_write

# In the order of the enumeration in objectives/native/clock.hpp.
_IN_KERNEL = ("products", "attention", "cross-entropy", "norms", "activation")
_AHEAD = 9  # steps at once, as between two readings of telemetry
_WIDTHS = {"d16": (1, 16, 64, 512), "d32": (1, 16, 64), "d64": (1, 4, 16), "d128": (1, 2)}


@dataclass(frozen=True, slots=True)
class Profile:
    """One pack on one core: CPU seconds of a member's step, and its parts as shares.

    ``peak`` is the share of the fastest matrix product here, ``bandwidth`` the share of the rate of a copy that the
    optimizer reaches when no cache holds a member.
    """

    size: str
    width: int
    seconds: float
    shares: dict[str, float]
    peak: float
    bandwidth: float


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement; default 2")
    parser.add_argument("--only", nargs="+", choices=_WIDTHS, default=list(_WIDTHS), metavar="NAME")
    chosen = parser.parse_args(words)
    torch.set_num_threads(1)
    peak, copied = _peak(chosen.seconds), _copied(chosen.seconds)
    found = [
        profile(size, width, chosen.seconds, peak, copied)
        for size in SIZES
        if size.name in chosen.only
        for width in _WIDTHS[size.name]
    ]
    _show(found)
    if chosen.json:
        content = {"machine": machine_facts(), "peak_flops_per_second": peak, "copied_bytes_per_second": copied}
        atomic_write(chosen.json, json.dumps(content | {"profiles": [asdict(one) for one in found]}, indent=1) + "\n")
    return 0


def profile(size: Size, width: int, seconds: float, peak: float, copied: float) -> Profile:
    """Measure one pack that trains by the native kernels."""
    config = GptConfig.model_validate({"steps": 10**6, "lr": 1e-4} | size.fields, strict=False)
    trainer = GptTrainer([config] * width, [k % 3 for k in range(width)], "cpu", ExecutionPlan(width, False, "native"))
    step_s = _seconds(lambda: trainer.steps_ahead(_AHEAD), seconds) / _AHEAD
    batch_s = _seconds(lambda: trainer._tokens(_AHEAD), seconds) / _AHEAD
    loss_K, grad_Kn = trainer.losses_and_gradient()
    in_memory_s = _seconds(lambda: trainer.optimizer.step(loss_K, grad_Kn), seconds)
    gradient_s, parts = _in_kernel(trainer, seconds)
    optimizer_s = max(0.0, _train_seconds(trainer, seconds) - gradient_s)
    shares = {name: part / step_s for name, part in parts.items()}
    shares["embeddings, sums"] = (gradient_s - sum(parts.values())) / step_s
    shares |= {"optimizer": optimizer_s / step_s, "batches": batch_s / step_s}
    shares["dispatch"] = 1 - sum(shares.values())
    # Gradient and moments are read and written, the parameters too; the norms read gradient and update once each.
    moved = 10 * grad_Kn.numel() * grad_Kn.element_size()
    return Profile(
        size.name,
        width,
        step_s / width,
        shares,
        flops_per_member_step(size) * width / step_s / peak,
        moved / in_memory_s / copied,
    )


def _train_seconds(trainer: GptTrainer, seconds: float) -> float:
    """Return the seconds of a step with its optimizer in the kernel alone, without numbers and batches."""
    native, optimizer = trainer._native, trainer.optimizer
    assert native is not None
    assert isinstance(optimizer, NativeOptimizer)
    steps, knobs = optimizer.begin_steps(_AHEAD), [trainer._knobs()] * _AHEAD
    tokens_TKBS = trainer._tokens(_AHEAD)
    return _seconds(lambda: native.train(trainer._params_Kn, tokens_TKBS, knobs, steps), seconds) / _AHEAD


def _in_kernel(trainer: GptTrainer, seconds: float) -> tuple[float, dict[str, float]]:
    """Return the seconds of a gradient, and of its parts by clocks inside a kernel that is compiled with them."""
    native, (tokens_KBS, knobs) = trainer._native, trainer._batch()
    assert native is not None
    gradient_s = _seconds(lambda: native.losses_and_gradient(trainer._params_Kn, tokens_KBS, knobs), seconds)
    clocked = library.load("gpt", kernel_folder(), "float", "-DPROFILE")
    watched = type(native)(trainer.structure, trainer.layout, kernel_folder(), options=("-DPROFILE",))
    spent = (ctypes.c_double * (len(_IN_KERNEL) + 1))()
    watched.losses_and_gradient(trainer._params_Kn, tokens_KBS, knobs)
    clocked.gpt_seconds(spent)
    _seconds(lambda: watched.losses_and_gradient(trainer._params_Kn, tokens_KBS, knobs), seconds)
    clocked.gpt_seconds(spent)
    # Shares of the kernel's own clock, since the clocks themselves take time and count other processes' time.
    return gradient_s, {name: part / spent[-1] * gradient_s for name, part in zip(_IN_KERNEL, spent, strict=False)}


def _seconds(call: Callable[[], Any], seconds: float) -> float:
    """The CPU seconds of a call in the fastest of four parts, since anything else on the machine only slows it down."""
    call()
    found = []
    for _ in range(4):
        began, calls = time.thread_time(), 0
        while not calls or time.thread_time() - began < seconds / 4:
            call()
            calls += 1
        found.append((time.thread_time() - began) / calls)
    return min(found)


def _peak(seconds: float) -> float:
    """Single-precision operations per second of a large matrix product on one core."""
    factor = torch.randn(1024, 1024)
    return 2 * 1024**3 / _seconds(lambda: factor @ factor, seconds)


def _copied(seconds: float) -> float:
    """Bytes per second read and written by copies that no cache holds."""
    source = torch.zeros(2**26)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / _seconds(lambda: target.copy_(source), seconds)


def _show(found: Sequence[Profile]) -> None:
    parts = list(found[0].shares)
    table = Table(
        "", "members", "us a member-step", *parts, "of peak", "of a copy", title="Shares of a step on one core"
    )
    for one in found:
        shares = (f"{100 * one.shares[part]:.0f} %" for part in parts)
        rates = (f"{100 * rate:.0f} %" for rate in (one.peak, one.bandwidth))
        table.add_row(one.size, str(one.width), f"{1e6 * one.seconds:,.0f}", *shares, *rates)
    Console(width=None if sys.stdout.isatty() else 170).print(table)


if __name__ == "__main__":
    sys.exit(main())
