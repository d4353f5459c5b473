"""Adafactor: a second moment from row and column means instead of entries (Shazeer & Stern, arXiv 1804.04235)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from objectives.base import TrainingConfig
from objectives.optimizers.rules.rule import Numbers, States, UpdateRule
from objectives.stacking import BLOCK, Layout, alike

# Shapes: K members, n parameters per member, T weights, L matrices of I x J in one weight, w columns of a weight.

ROWS, COLUMNS, ENTRIES = "row_moment", "column_moment", "entry_moment"


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight's columns in the parameters, and in the states of its second moment.

    ``matrices`` are L, I and J of a weight of two or more dimensions, None for a vector or a number.
    """

    start: int
    end: int
    matrices: tuple[int, int, int] | None
    states: Mapping[str, slice]


class Adafactor(UpdateRule):
    """For a weight W of matrices, with R and C the averaged means of g^2 over rows and columns:

        beta2_t = 1 - t^-adafactor_decay
        V = R C / max(mean(R), eps), U = g / max(sqrt(V), eps), eps = adafactor_eps
        min(lr, 1 / sqrt(t)) * max(adafactor_smallest, RMS(W)) * U / max(1, RMS(U) / adafactor_clip)

    V is the averaged g^2 itself if W is a vector. Without momentum. Equal to ``torch.optim.Adafactor``, whose
    documentation uses eps and lr in this way; the paper adds 1e-30 to g^2 instead and uses lr 0.01. The default of
    ``adafactor_eps`` is the root of the paper's; torch's is the rounding unit of the type.
    """

    def __init__(self, structure: TrainingConfig, layout: Layout) -> None:
        super().__init__(structure, layout)
        sizes = dict.fromkeys((ROWS, COLUMNS, ENTRIES), 0)
        self._weights: list[_Weight] = []
        for piece in layout.pieces:
            matrices, needed = None, {ENTRIES: piece.size}
            if len(piece.shape) > 1:
                *leading, num_rows, num_columns = piece.shape
                matrices = (math.prod(leading), num_rows, num_columns)
                needed = {ROWS: matrices[0] * num_rows, COLUMNS: matrices[0] * num_columns}
            states = {name: slice(sizes[name], sizes[name] + size) for name, size in needed.items()}
            sizes.update({name: columns.stop for name, columns in states.items()})
            self._weights.append(_Weight(piece.start, piece.end, matrices, states))
        # Whole blocks, so that a number's rounding does not depend on its position.
        self._sizes = {name: size + -size % BLOCK for name, size in sizes.items()}

    def state_sizes(self) -> Mapping[str, int]:
        """Averaged means of rows and columns, averaged squares of vectors, and the last step of each weight."""
        return {**self._sizes, "step": len(self._weights)}

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """``lr_share`` is min(lr, 1 / sqrt(t)) / lr."""
        return {
            "weight": alike(torch.pow, age_K, -numbers["adafactor_decay"]),
            "clip": numbers["adafactor_clip"],
            "eps": numbers["adafactor_eps"],
            "smallest": numbers["adafactor_smallest"],
            "lr": lr_K,
            "lr_share": (1 / (lr_K * age_K.sqrt())).clamp(max=1.0),
        }

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return the update in the memory of the gradient, one weight at a time."""
        for t, weight in enumerate(self._weights):
            grad_Kw = grad_Kn[:, weight.start : weight.end]
            _average(states, weight, grad_Kw.square(), scalars_K1["weight"])
            root_Kw = _second_moment(states, weight, scalars_K1["eps"]).sqrt_()
            step_Kw = torch.div(grad_Kw, torch.maximum(root_Kw, _floor(scalars_K1["eps"]), out=root_Kw), out=root_Kw)
            size_K1 = _root_mean_square(params_Kn[:, weight.start : weight.end]).maximum(scalars_K1["smallest"])
            excess_K1 = (_root_mean_square(step_Kw) / scalars_K1["clip"]).clamp(min=1.0)
            share_K1 = scalars_K1["lr_share"] * size_K1 / excess_K1
            states["step"][:, t : t + 1] = share_K1
            grad_Kw.copy_(step_Kw.mul_(share_K1 * scalars_K1["lr"]))
        return grad_Kn

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return max(sqrt(V), eps) over the factor on each weight's U at the last step, in units of lr."""
        eps_K1 = numbers["adafactor_eps"].to(states["step"].dtype)[:, None]
        divisor_Kn = self.second_moment(states, numbers, age_K).sqrt_().maximum(_floor(eps_K1))
        for t, weight in enumerate(self._weights):
            divisor_Kn[:, weight.start : weight.end].div_(states["step"][:, t : t + 1])
        return divisor_Kn

    def second_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return V, which has no bias: it starts as the square of the first gradient."""
        eps_K1 = numbers["adafactor_eps"].to(states["step"].dtype)[:, None]
        second_Kn = states["step"].new_ones(len(eps_K1), self.layout.size)  # ones in the padding, which is divided too
        for weight in self._weights:
            second_Kn[:, weight.start : weight.end] = _second_moment(states, weight, eps_K1)
        return second_Kn


def _average(states: States, weight: _Weight, squared_Kw: torch.Tensor, weight_K1: torch.Tensor) -> None:
    """Add the squares of this step to the second moment."""
    if weight.matrices is None:
        means = {ENTRIES: squared_Kw}
    else:
        squared_KLIJ = squared_Kw.unflatten(1, weight.matrices)
        means = {ROWS: squared_KLIJ.mean(3).flatten(1), COLUMNS: squared_KLIJ.mean(2).flatten(1)}
    for name, mean in means.items():
        states[name][:, weight.states[name]].lerp_(mean, weight_K1)


def _second_moment(states: States, weight: _Weight, eps_K1: torch.Tensor) -> torch.Tensor:
    """Return V of one weight, (K, w)."""
    kept = {name: states[name][:, columns] for name, columns in weight.states.items()}
    if weight.matrices is None:
        return kept[ENTRIES].clone()
    num_matrices, num_rows, num_columns = weight.matrices
    rows_KLI1 = kept[ROWS].unflatten(1, (num_matrices, num_rows, 1))
    columns_KL1J = kept[COLUMNS].unflatten(1, (num_matrices, 1, num_columns))
    mean_KL11 = rows_KLI1.mean(2, keepdim=True).maximum(eps_K1[:, :, None, None])
    return (rows_KLI1 / mean_KL11 * columns_KL1J).flatten(1)


def _root_mean_square(value_Kw: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(value_Kw, dim=1, keepdim=True) / math.sqrt(value_Kw.shape[1])


def _floor(eps_K1: torch.Tensor) -> torch.Tensor:
    """Return eps, or the smallest positive number of the type if larger, which avoids 0 / 0."""
    return eps_K1.clamp(min=torch.finfo(eps_K1.dtype).tiny)
