"""Muon (Jordan et al. 2024): momentum whose matrices are orthogonalised, and AdamW for everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch

from objectives.base import TrainingConfig
from objectives.optimizers.facts.packed import MuonFields
from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.rule import Numbers, States, UpdateRule
from objectives.stacking import Layout, Piece

# Shapes: K members, n parameters per member, R rows, C columns.

_COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the quintic; its steepest slope at zero that keeps 0.7 to 1.2
_SMALLEST_NORM = 1e-7
# Longer sides over shorter ones above which all steps together take fewer products on the shorter side alone, and the
# most steps for which G, from step to step with rounding errors a^2 as large, keeps them small in single precision.
_LONG, _MOST_STEPS_AT_ONCE = 1.5, 5
_ADAMW_STATES = {"first_moment": "first_moment", "second_moment": "vector_moment"}


class Muon(UpdateRule):
    """Momentum m with decay ``muon_momentum``, and for each matrix of the model the update

        lr * scale * NS(mu m + (1 - mu) g)

    where NS divides by the Frobenius norm and takes ``muon_steps`` Newton-Schulz steps, in the precision of the
    weights. ``muon_scale`` original: sqrt(max(1, out / in)). rms: 0.2 sqrt(max(in, out)), so that learning
    rates of AdamW carry over (Moonlight: Liu et al., arXiv 2502.16982). Weights are stored input by output; of more
    than two axes the last two make the matrices. Embeddings, head, norms and other vectors train by AdamW with
    ``beta1``, ``beta2`` and ``eps``. Equal to ``torch.optim.Muon`` on the matrices, but for its 16-bit products.
    """

    moments = ("first_moment", "vector_moment")  # the latter AdamW's v, zero for matrices

    def __init__(self, structure: TrainingConfig, layout: Layout) -> None:
        super().__init__(structure, layout)
        self._adamw = AdamW(structure, layout)
        fields = cast(MuonFields, structure)
        self._steps, self._looks_ahead = fields.muon_steps, fields.muon_nesterov
        self._matrices = [piece for piece in layout.pieces if piece.is_hidden_matrix]
        self._others = _between(self._matrices, layout.size)
        self._scale = {piece.name: _scale(piece, fields.muon_scale) for piece in self._matrices}

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Return AdamW's numbers, the momentum and the learning rate."""
        momentum_K = numbers["muon_momentum"]
        return {**self._adamw.scalars(numbers, lr_K, age_K), "momentum": momentum_K, "lr": lr_K}

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return both optimizers' updates in the memory of the gradient."""
        for piece in self._matrices:
            direction_Ks = self._direction(piece, states, grad_Kn, scalars_K1)
            step_K1 = scalars_K1["lr"] * self._scale[piece.name]
            torch.mul(direction_Ks, step_K1, out=_columns(grad_Kn, piece.start, piece.end))
        for start, end in self._others:
            moments = {name: _columns(states[kept], start, end) for name, kept in _ADAMW_STATES.items()}
            self._adamw.update(moments, _columns(grad_Kn, start, end), params_Kn, scalars_K1)
        return grad_Kn

    def _direction(self, piece: Piece, states: States, grad_Kn: torch.Tensor, scalars_K1: Numbers) -> torch.Tensor:
        """Add the gradient to the momentum of ``piece``; return its orthogonalised direction, (K, size)."""
        grad_Ks, momentum_Ks = (
            _columns(value_Kn, piece.start, piece.end) for value_Kn in (grad_Kn, states["first_moment"])
        )
        momentum_K1 = scalars_K1["momentum"]
        momentum_Ks.lerp_(grad_Ks, 1 - momentum_K1)
        ahead_Ks = grad_Ks.lerp_(momentum_Ks, momentum_K1) if self._looks_ahead else momentum_Ks
        matrices = ahead_Ks.reshape(-1, *piece.shape[-2:])
        return orthogonalised(matrices, self._steps).reshape(len(grad_Ks), -1)


def orthogonalised(x_KRC: torch.Tensor, num_steps: int) -> torch.Tensor:
    """Return an approximation of U V^T of each matrix U S V^T: singular values go to 0.7 to 1.2.

    A step is a product with a I + b G + c G^2 on the shorter side, whose length is S; G is X X^T or X^T X there.
    """
    (K, R, C), S = x_KRC.shape, min(x_KRC.shape[1:])
    norm_K = torch.linalg.vector_norm(x_KRC.flatten(1), dim=1).clamp(min=_SMALLEST_NORM)
    now_KRC, next_KRC = x_KRC.new_empty(2, K, R, C)
    gram_KSS, factor_KSS = x_KRC.new_empty(2, K, S, S)
    torch.div(x_KRC, norm_K[:, None, None], out=now_KRC)
    if max(R, C) > _LONG * S and num_steps <= _MOST_STEPS_AT_ONCE:
        factors_KSS = _product_of_factors(_gram(now_KRC, gram_KSS), num_steps)
        return _times(now_KRC, factors_KSS, next_KRC)
    for _ in range(num_steps):
        _times(now_KRC, _factor(_gram(now_KRC, gram_KSS), factor_KSS), next_KRC)
        now_KRC, next_KRC = next_KRC, now_KRC
    return now_KRC


def _product_of_factors(gram_KSS: torch.Tensor, num_steps: int) -> torch.Tensor:
    """Return the product of the factors of all steps from the first G alone: the next G is F G F of the factor F."""
    product_KSS = factor_KSS = _factor(gram_KSS, torch.empty_like(gram_KSS))
    for _ in range(num_steps - 1):
        gram_KSS = torch.bmm(torch.bmm(factor_KSS, gram_KSS), factor_KSS)
        factor_KSS = _factor(gram_KSS, torch.empty_like(gram_KSS))
        product_KSS = torch.bmm(factor_KSS, product_KSS)
    return product_KSS


def _gram(x_KRC: torch.Tensor, out_KSS: torch.Tensor) -> torch.Tensor:
    (_, R, C), x_KCR = x_KRC.shape, x_KRC.transpose(1, 2)
    return torch.bmm(*((x_KCR, x_KRC) if R > C else (x_KRC, x_KCR)), out=out_KSS)


def _factor(gram_KSS: torch.Tensor, out_KSS: torch.Tensor) -> torch.Tensor:
    a, b, c = _COEFFICIENTS
    torch.baddbmm(gram_KSS, gram_KSS, gram_KSS, beta=b, alpha=c, out=out_KSS)
    out_KSS.flatten(1)[:, :: gram_KSS.shape[1] + 1].add_(a)
    return out_KSS


def _times(x_KRC: torch.Tensor, factor_KSS: torch.Tensor, out_KRC: torch.Tensor) -> torch.Tensor:
    _, R, C = x_KRC.shape
    return torch.bmm(*((x_KRC, factor_KSS) if R > C else (factor_KSS, x_KRC)), out=out_KRC)


def _scale(piece: Piece, kind: str) -> float:
    num_inputs, num_outputs = piece.shape[-2:]
    if kind == "original":
        return math.sqrt(max(1, num_outputs / num_inputs))
    return 0.2 * math.sqrt(max(num_inputs, num_outputs))


def _columns(value_Kn: torch.Tensor, start: int, end: int) -> torch.Tensor:
    return value_Kn[:, start:end]


def _between(matrices: Sequence[Piece], size: int) -> list[tuple[int, int]]:
    """Return the columns that belong to no matrix, in runs as long as possible."""
    starts, ends = [0, *(piece.end for piece in matrices)], [*(piece.start for piece in matrices), size]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
