"""What a step with Muon costs over one with AdamW, in packs of `gpt` on one core: `python benchmarks/muon.py`."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

# From a checkout, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.machine import machine_facts
from benchmarks.sizes import SIZES, Size, flops_per_member_step
from objectives.base import ExecutionPlan, GptConfig
from objectives.models.gpt import GptTrainer
from objectives.optimizers.facts.packed import MuonFields
from orchestrator.base.files import atomic_write

_D64 = next(size for size in SIZES if size.name == "d64")
_SIZES = (_D64, replace(_D64, name="d64, context 32, batch 8", context=32, batch_size=8))
_WIDTH = 16  # members of a pack
_STEPS = 9  # at once, as between two readings of telemetry
_OPTIMIZERS = ("adamw", "muon")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over both optimizers; default 5")
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of each measurement; default 2")
    chosen = parser.parse_args(words)
    torch.set_num_threads(1)
    machine = machine_facts()
    found = {size.name: compare(size, chosen.rounds, chosen.seconds) for size in _SIZES}
    for name, one in found.items():
        seconds = ", ".join(f"{optimizer} {min(one[optimizer]) * 1e3:.2f} ms" for optimizer in _OPTIMIZERS)
        print(f"{name}: {seconds}, ratio {one['ratio']:.2f}, of the operations {one['ratio_of_operations']:.2f}")
    if chosen.json:
        atomic_write(chosen.json, json.dumps({"machine": machine, "width": _WIDTH, "sizes": found}, indent=1) + "\n")
    return 0


def compare(size: Size, num_rounds: int, seconds: float) -> dict:
    """CPU seconds of a member's step by optimizer, in interleaved rounds, and the median ratio of the rounds."""
    packs = {name: _pack(size, name) for name in _OPTIMIZERS}
    found: dict[str, list[float]] = {name: [] for name in _OPTIMIZERS}
    for _ in range(num_rounds):
        for name, pack in packs.items():
            found[name].append(_member_seconds(pack, seconds))
    ratios = [muon / adamw for adamw, muon in zip(*found.values(), strict=True)]
    model = flops_per_member_step(size)
    return {
        **found,
        "ratio": statistics.median(ratios),
        "ratio_of_operations": 1 + newton_schulz_flops(size, MuonFields().muon_steps) / model,
        "flops_per_member_step": model,
    }


def newton_schulz_flops(size: Size, num_steps: int) -> int:
    """Floating point operations of Muon's matrix products in one step of one member, for at most five steps.

    Long matrices have one product at the start and one at the end; all others are square.
    """
    width = size.width
    attention_out = num_steps * 6 * width**3
    long = (3 * width, 4 * width, 4 * width)  # sides of qkv, mlp_in and mlp_out
    others = sum(4 * width**2 * side + (8 * num_steps - 6) * width**3 for side in long)
    return size.depth * (attention_out + others)


def _pack(size: Size, optimizer: str) -> GptTrainer:
    fields = {"steps": 10**6, "lr": 1e-4, "optimizer": optimizer} | size.fields
    config = GptConfig.model_validate(fields, strict=False)
    plan = ExecutionPlan(_WIDTH, False, "native")
    return GptTrainer([config] * _WIDTH, [k % 3 for k in range(_WIDTH)], "cpu", plan)


def _member_seconds(pack: GptTrainer, seconds: float) -> float:
    pack.steps_ahead(_STEPS)
    began, num_steps = time.thread_time(), 0
    while not num_steps or time.thread_time() - began < seconds:
        pack.steps_ahead(_STEPS)
        num_steps += _STEPS
    return (time.thread_time() - began) / num_steps / _WIDTH


if __name__ == "__main__":
    sys.exit(main())
