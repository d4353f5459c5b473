"""Parts of the transformer that are functions without weights: rotations, softcaps, heads that are shared.

Each is written so that a member's bits do not depend on the other members of its pack.
"""

from __future__ import annotations

import torch

from objectives.base import GptConfig
from objectives.models.gpt_knobs import Knobs, block_positions
from objectives.stacking import in_blocks

# Shapes: K members, B sequences, T positions, H heads, G heads of keys and values, C channels per head, c = C / 2.

# The type that autocast rounds the operands of products to.
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
Rotation = tuple[torch.Tensor, torch.Tensor]  # cosine and sine of every position's angles


def rotation(
    structure: GptConfig, knobs: Knobs, num_positions: int, num_sequences: int, like: torch.Tensor
) -> Rotation | None:
    """Return the cosines and sines that turn queries and keys, in the type of ``like``; None for a model without.

    Position t turns the channels i and i + c of a head by t / theta^(2i / C) (RoPE: Su et al., arXiv 2104.09864, with
    pairs as in Llama). (1, 1, T, c), or (K * B, 1, T, c) where positions count from the start of a block of context.
    """
    if structure.position != "rope":
        return None
    cosine, sine = (turn.to(like) for turn in turns(structure, num_positions, like.device))
    if knobs.context_K is not None:
        place_KT = block_positions(knobs.context_K, num_positions)
        cosine, sine = (turn[place_KT].repeat_interleave(num_sequences, dim=0) for turn in (cosine, sine))
    return cosine.view(-1, 1, num_positions, cosine.shape[-1]), sine.view(-1, 1, num_positions, sine.shape[-1])


def turns(structure: GptConfig, num_positions: int, device: torch.device | None = None) -> Rotation:
    """Return the cosine and the sine of every position's angles, float64 (T, c)."""
    C = structure.width // structure.heads
    channel_c = torch.arange(0, C, 2, dtype=torch.float64, device=device)
    position_T = torch.arange(num_positions, dtype=torch.float64, device=device)
    angle_Tc = position_T[:, None] * structure.rope_theta ** -(channel_c / C)
    return angle_Tc.cos(), angle_Tc.sin()


def rotated(z: torch.Tensor, turn: Rotation) -> torch.Tensor:
    """Return z, (..., T, C), with each pair of channels turned. A turn by the negative sine is its backward pass."""
    cosine, sine = turn
    first, second = z.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(z.dtype)


def grouped_heads(z: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Repeat each head of keys or values for the queries that share it, (K * B, H, T, C)."""
    repeats = num_heads // z.shape[1]
    return z if repeats == 1 else z.repeat_interleave(repeats, dim=1)


def softcapped(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(x / cap) (Gemma 2: arXiv 2408.00118); its derivative is 1 - (result / cap)^2."""
    return in_blocks(torch.tanh, x / cap) * cap


def silu_backward(d_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Do the backward pass of SiLU, x * sigmoid(x)."""
    share = in_blocks(torch.sigmoid, x)
    return d_out * (share * (1 + x * (1 - share)))
