"""Members of every kind of optimizer, and training them on random gradients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from objectives.base import TrainingConfig
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.foreign import make_optimizer
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout, Piece, seeded_generator

STEPS = 25
# Weights of odd sizes, and of no, one, two and three dimensions.
LAYOUT = Layout({"matrix": (6, 9), "vector": (13,), "stack": (2, 3, 5), "number": ()})
LAYOUTS = {
    # Small and large weights, whose last blocks are not full.
    "adam8bit": Layout({"matrix": (20, 31), "small": (7, 3), "vector": (300,), "number": ()}),
    # Of other than square matrices its first basis is in part any one, which rounding decides.
    "pytorch_optimizer.SOAP": Layout({"matrix": (6, 6), "vector": (13,), "stack": (2, 3, 5), "number": ()}),
}
COMMON = [
    {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    {"lr": 1e-1, "beta1": 0.0, "beta2": 0.5, "eps": 1e-12, "clip": 0.5},
    {"lr": 3e-2, "beta1": 0.95, "beta2": 0.9999, "eps": 1e-2, "weight_decay": 0.3},
    {"lr": 1e-2, "beta1": 0.5, "beta2": 0.95, "eps": 1e-6, "clip": 1e-3, "weight_decay": 0.01},
    {"lr": 2e-2, "beta1": 0.3, "beta2": 0.9, "warmup": 10, "clip": 100.0},
]
EVERYONE = range(len(COMMON))
# What each member has of its own, in the fields of a kind.
OWN: Mapping[str, Mapping[str, Sequence]] = {
    "adabelief": {"adabelief_eps": [1e-16, 1e-2, 1e-4, 1e-30, 1e-8]},
    "adafactor": {
        "adafactor_decay": [0.8, 0.5, 0.0, 1.0, 0.9],
        "adafactor_clip": [1.0, 2.0, None, 3.0, 1.5],
        "adafactor_eps": [1e-15, 1e-3, 1e-6, 1e-2, 1e-8],
        "adafactor_smallest": [1e-3, 1.0, 0.0, 10.0, 1e-1],
    },
    "spam": {
        "spam_threshold": [5000.0, 2.0, None, 1.0, 5.0],
        "spam_interval": [500, 7, 5, 9, None],
        "spam_warmup": [150, 3, 0, 40, 5],
        "spam_grace": [20, 2, 5, 4, 3],
    },
    "sophia": {"sophia_clip": [0.3, 1.0, 0.1, 3.0, 10.0], "sophia_eps": [1e-12, 1e-8, 1e-3, 1e-2, 1.0]},
    "muon": {"muon_momentum": [0.95, 0.0, 0.8, 0.5, 0.9]},
    "lcm_adam": {
        "lcm_adam_period": [110.0, 5.0, 7.5, 3.0, 1.5],
        "lcm_adam_least": [0.2, 0.2, 0.5, 0.1, 1.0],
        "lcm_adam_change": [0.2, 0.2, 0.05, 1.0, 0.3],
    },
    "zclip": {"zclip": [None, 2.5, 0.5, 1.0, None], "zclip_warmup": [25, 15, 2, 6, 25]},
    "adagc": {"adagc": [None, 1.05, 0.5, 2.0, None], "adagc_warmup": [100, 10, 1, 20, 100]},
}
CLIPPINGS = ("zclip", "adagc")
STARTS = ("random", "data", "first_gradient")
SHARED: Mapping[str, Mapping[str, Any]] = {
    "sophia": {"sophia_interval": 4},
    "adam8bit": {"adam8bit_smallest": 100},
    **{clipping: {"optimizer": "sgd"} for clipping in CLIPPINGS},
    **{start: {"optimizer": "adamw", "second_moment_start": start} for start in STARTS},
}
# Each kind of optimizer that there is: packed, of a library, with clipping that learns, with other second moments.
KINDS = [
    *OPTIMIZERS, *("torch.optim.NAdam", "torch.optim.SGD", "pytorch_optimizer.ADOPT", "pytorch_optimizer.SOAP"),
    *CLIPPINGS, *STARTS,
]  # fmt: skip


def random(layout: Layout, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Normal numbers of every member, (*shape, K, n), with zeros in the filling."""
    shape = (*shape, len(COMMON), layout.size)
    numbers = torch.randn(shape, generator=seeded_generator(seed), dtype=torch.float64)
    numbers[..., layout.pieces[-1].end :] = 0.0
    return numbers.to(dtype)


def take_due_hessians(packed: PackedOptimizer, hessian_Kn: torch.Tensor) -> None:
    """What a trainer does before each step."""
    if packed.rule.needs_hessian:
        due = [k for k, age in enumerate(packed.age_K.tolist()) if packed.rule.hessian_is_due(int(age))]
        rows = torch.tensor(due, dtype=torch.long)
        packed.take_hessian(rows, hessian_Kn[rows])


class Members:
    """The members of a kind, with their weights at the start and their gradients of every step."""

    def __init__(self, kind: str, dtype: torch.dtype = torch.float64, **common: Any) -> None:
        """What is ``common`` to all goes before what a member has of its own."""
        self.layout = LAYOUTS.get(kind, LAYOUT)
        own = [{field: values[k] for field, values in OWN.get(kind, {}).items()} for k in EVERYONE]
        shared = {"steps": 2 * STEPS, "optimizer": kind, **SHARED.get(kind, {}), **common}
        self.configs = [TrainingConfig(**{**COMMON[k], **own[k], **shared}) for k in EVERYONE]
        self.start_Kn = random(self.layout, (), dtype, 1)
        sizes = 10.0 ** torch.randint(-3, 3, (STEPS, len(COMMON), 1), generator=seeded_generator(0))
        self.grads, self.hessians = (random(self.layout, (STEPS,), dtype, seed) * sizes.to(dtype) for seed in (0, 2))

    def packed(self, rows: Iterable[int] = EVERYONE, *, compiled: bool = False) -> PackedOptimizer:
        """A pack of some of them that begins."""
        rows = [*rows]
        configs = [self.configs[k] for k in rows]
        return make_optimizer(self.start_Kn[rows].clone(), configs, self.layout, compiled=compiled, seeds=rows)

    def step(self, packed: PackedOptimizer, ages: Sequence[int], rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """One step of a pack of some of them, each at its own age: its metrics."""
        take_due_hessians(packed, self.hessians[ages, rows])
        return packed.step(torch.ones(len(rows), dtype=self.grads.dtype), self.grads[ages, rows])

    def train(self, packed: PackedOptimizer, ages: Iterable[int], rows: Sequence[int] = EVERYONE) -> PackedOptimizer:
        for age in ages:
            self.step(packed, [age] * len(rows), [*rows])
        return packed

    def trained(self, rows: Sequence[int] = EVERYONE, num_steps: int = STEPS) -> PackedOptimizer:
        """A pack of some of them after so many steps."""
        return self.train(self.packed(rows), range(num_steps), rows)


class Reference:
    """One member by an optimizer of a library, with torch's own clipping and with decoupled weight decay."""

    def __init__(
        self, own: Members, k: int, make: Callable[[list, TrainingConfig], torch.optim.Optimizer], decays_itself: bool
    ) -> None:
        self.config, self.pieces, self.age, self.decays_itself = own.configs[k], own.layout.pieces, 0, decays_itself
        self.params = [torch.nn.Parameter(self.of(own.start_Kn[k], piece)) for piece in self.pieces]
        self.optimizer = make(self.params, self.config)

    @staticmethod
    def of(row: torch.Tensor, piece: Piece) -> torch.Tensor:
        return row[piece.start : piece.end].clone().view(piece.shape)

    def step(self, grad_n: torch.Tensor, hessian_n: torch.Tensor) -> None:
        config = self.config
        for parameter, piece in zip(self.params, self.pieces, strict=True):
            parameter.grad = self.of(grad_n, piece)
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.params, config.clip)
        lr = self.optimizer.param_groups[0]["lr"] = config.lr * min(1.0, (self.age + 1) / max(1, config.warmup))
        before = [parameter.detach().clone() for parameter in self.params]
        if config.optimizer == "sophia" and self.age % config.sophia_interval == 0:
            self.optimizer.step(hessian=[self.of(hessian_n, piece) for piece in self.pieces])
        else:
            self.optimizer.step()
        if not self.decays_itself:
            with torch.no_grad():
                for parameter, weight in zip(self.params, before, strict=True):
                    parameter.sub_(lr * config.weight_decay * weight)
        self.age += 1

    @property
    def row(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.params])
