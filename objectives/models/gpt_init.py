"""Initial weights of the transformer: drawn once per seed, and scaled by the ``init`` of each member.

Every init is normal with mean 0 and uses the same draws, so members with equal seeds differ only in the scale of each
matrix. Fans are per product: qkv counts as three matrices.
"""

from __future__ import annotations

import math

import torch

from objectives.base import GptConfig
from objectives.models.gpt_model import NUM_BYTES, group_of
from objectives.stacking.independence import seeded_generator
from objectives.training.packed import WEIGHT_PURPOSE, Weights

# Shapes: D width.

_DEVIATION = 0.02  # as in GPT-2


def initial_weights(structure: GptConfig, seed: int) -> Weights:
    """Return one member's weights for any ``init``: deviation 0.02, residual outputs 0.02 / sqrt(2 depth), gains 1."""
    D, generator = structure.width, seeded_generator(seed, WEIGHT_PURPOSE)
    has_norms = structure.norm is not None

    def normal(name: str, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator) * _drawn_deviation(name, structure.depth)

    weights = {"embedding": normal("embedding", NUM_BYTES, D), "position": normal("position", structure.context, D)}
    for layer in range(structure.depth):
        if has_norms:
            weights[f"{layer}.attention_norm"] = torch.ones(D)
        weights[f"{layer}.qkv"] = normal("qkv", D, 3 * D)
        if structure.qk_norm:
            weights[f"{layer}.q_norm"] = torch.ones(D // structure.heads)
            weights[f"{layer}.k_norm"] = torch.ones(D // structure.heads)
        weights[f"{layer}.attention_out"] = normal("attention_out", D, D)
        if has_norms:
            weights[f"{layer}.mlp_norm"] = torch.ones(D)
        weights[f"{layer}.mlp_in"] = normal("mlp_in", D, 4 * D)
        weights[f"{layer}.mlp_out"] = normal("mlp_out", 4 * D, D)
    if structure.has_final_norm:
        weights["final_norm"] = torch.ones(D)
    weights["head"] = normal("head", D, NUM_BYTES)
    return weights


def with_init(drawn: Weights, config: GptConfig) -> Weights:
    """Scale the weights of ``initial_weights`` to a member's ``init``; by default the bits stay the same."""
    return {
        name: weight if group_of(name) == "norm" else weight * _factor(config, name, weight)
        for name, weight in drawn.items()
    }


def _factor(config: GptConfig, name: str, drawn: torch.Tensor) -> float:
    """Return the factor on a drawn matrix."""
    if config.init == "gpt2":
        return config.init_deviation / _DEVIATION
    return math.sqrt(_variance(config.init, name, *drawn.shape)) / _drawn_deviation(name, config.depth)


def _drawn_deviation(name: str, depth: int) -> float:
    """Return the deviation of a drawn matrix: GPT-2's (Radford et al. 2019), smaller for outputs of sublayers."""
    return _DEVIATION / math.sqrt(2 * depth) if name.endswith("_out") else _DEVIATION


def _variance(init: str, name: str, num_rows: int, num_columns: int) -> float:
    """Return the variance of a matrix for an ``init`` that keeps the scale of activations at any width.

    fan_in: 1 / fan_in (LeCun et al., Efficient BackProp, 1998). he: 2 / fan_in for ``mlp_in``, which a nonlinearity
    follows, 1 / fan_in for the others (He et al., arXiv 1502.01852; derived for ReLU, here GELU). xavier: 2 / (fan_in +
    fan_out) (Glorot & Bengio, AISTATS 2010, equation 12). Embeddings and positions are looked up and have no fan: 1.
    """
    if group_of(name) == "embedding":
        return 1.0
    if init == "xavier":
        return 2 / (num_rows + (num_columns // 3 if name.endswith("qkv") else num_columns))
    return (2 if init == "he" and name.endswith("mlp_in") else 1) / num_rows
