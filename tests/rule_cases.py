"""Members of every packed optimizer, and training them on random gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from objectives.base import TrainingConfig
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout

STEPS = 25
# Weights of odd sizes, and of no, one, two and three dimensions.
LAYOUT = Layout({"matrix": (6, 9), "vector": (13,), "stack": (2, 3, 5), "number": ()})
# Small and large weights, whose last blocks are not full.
CODED_LAYOUT = Layout({"matrix": (20, 31), "small": (7, 3), "vector": (300,), "number": ()})
COMMON = [
    {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    {"lr": 1e-1, "beta1": 0.0, "beta2": 0.5, "eps": 1e-12, "clip": 0.5},
    {"lr": 3e-2, "beta1": 0.95, "beta2": 0.9999, "eps": 1e-2, "weight_decay": 0.3},
    {"lr": 1e-2, "beta1": 0.5, "beta2": 0.95, "eps": 1e-6, "clip": 1e-3, "weight_decay": 0.01},
    {"lr": 2e-2, "beta1": 0.3, "beta2": 0.9, "warmup": 10, "clip": 100.0},
]
# What each member has of its own, in the fields of a rule.
OWN: Mapping[str, Mapping[str, Sequence]] = {
    "radam": {},
    "adabelief": {"adabelief_eps": [1e-16, 1e-2, 1e-4, 1e-30, 1e-8]},
    "adafactor": {
        "adafactor_decay": [0.8, 0.5, 0.0, 1.0, 0.9],
        "adafactor_clip": [1.0, 2.0, None, 3.0, 1.5],
        "adafactor_eps": [1e-15, 1e-3, 1e-6, 1e-2, 1e-8],
        "adafactor_smallest": [1e-3, 1.0, 0.0, 10.0, 1e-1],
    },
    "lion": {},
    "stableadamw": {},
    "spam": {
        "spam_threshold": [5000.0, 2.0, None, 1.0, 5.0],
        "spam_interval": [500, 7, 5, 9, None],
        "spam_warmup": [150, 3, 0, 40, 5],
        "spam_grace": [20, 2, 5, 4, 3],
    },
    "sophia": {"sophia_clip": [0.3, 1.0, 0.1, 3.0, 10.0], "sophia_eps": [1e-12, 1e-8, 1e-3, 1e-2, 1.0]},
    "adam8bit": {},
}
SHARED = {"sophia": {"sophia_interval": 4}, "adam8bit": {"adam8bit_smallest": 100}}


def members(optimizer: str, **common) -> list[TrainingConfig]:
    # What is asked for all goes before what a member has of its own.
    own = [{field: values[k] for field, values in OWN.get(optimizer, {}).items()} for k in range(len(COMMON))]
    shared = {"steps": 2 * STEPS, "optimizer": optimizer, **SHARED.get(optimizer, {}), **common}
    return [TrainingConfig(**{**COMMON[k], **own[k], **shared}) for k in range(len(COMMON))]


def layout_of(optimizer: str) -> Layout:
    return CODED_LAYOUT if optimizer == "adam8bit" else LAYOUT


def random(layout: Layout, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of every step and member, of very different sizes, (T, K, n), with zeros in the filling."""
    generator = torch.Generator().manual_seed(seed)
    shape = (STEPS, len(COMMON), layout.size)
    sizes = 10.0 ** torch.randint(-3, 3, (*shape[:2], 1), generator=generator)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * sizes
    numbers[..., layout.pieces[-1].end :] = 0.0
    return numbers.to(dtype)


def start_of(layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    start_Kn = torch.randn(len(COMMON), layout.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start_Kn[:, layout.pieces[-1].end :] = 0.0
    return start_Kn.to(dtype)


def take_due_hessians(packed: PackedOptimizer, hessian_Kn: torch.Tensor) -> None:
    """What a trainer does before each step."""
    if packed.rule.needs_hessian:
        due = [k for k, age in enumerate(packed.age_K.tolist()) if packed.rule.hessian_is_due(int(age))]
        rows = torch.tensor(due, dtype=torch.long)
        packed.take_hessian(rows, hessian_Kn[rows])


def train(
    optimizer: str,
    configs: Sequence[TrainingConfig],
    start_Kn: torch.Tensor,
    grads: torch.Tensor,
    hessians: torch.Tensor,
    *,
    compiled: bool = False,
) -> PackedOptimizer:
    packed = PackedOptimizer(start_Kn.clone(), configs, layout_of(optimizer), compiled=compiled)
    for grad_Kn, hessian_Kn in zip(grads, hessians, strict=True):
        take_due_hessians(packed, hessian_Kn)
        packed.step(torch.ones(len(configs), dtype=grads.dtype), grad_Kn.clone())
    return packed
