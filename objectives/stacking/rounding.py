"""Rounding that does not depend on a number's place in a tensor, so members are independent of their neighbours.

A CPU kernel processes a tensor in blocks by vector instructions and the remainder one number at a time, by other
instructions that may round differently. Where sizes are multiples of ``BLOCK`` there is no remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

# Shapes: K members, n parameters of one member, zero-padded to whole blocks.

BLOCK = 32  # numbers; no kernel processes more at a time
_HALF_BLOCK = 64  # 16-bit numbers, of which twice as many fit


def alike(function: Callable[..., torch.Tensor], *values_K: torch.Tensor) -> torch.Tensor:
    """Elementwise ``function`` of numbers of shape (K,); each result depends only on its own inputs."""
    return function(*(value_K[:, None].repeat(1, BLOCK) for value_K in values_K))[:, 0]


def in_blocks(function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Elementwise ``function`` of numbers of 16 bits or more, in a tensor of any shape, padded to whole blocks."""
    missing = -value.numel() % _HALF_BLOCK
    if not missing:
        return function(value)
    return function(F.pad(value.reshape(-1), (0, missing)))[: value.numel()].view(value.shape)


def rows_of_blocks(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Values of every weight, (K, ...) each, concatenated to (K, n), zero-padded to whole blocks."""
    pieces = [value.reshape(len(value), -1) for value in values]
    missing = -sum(piece.shape[1] for piece in pieces) % BLOCK
    return torch.cat([*pieces, pieces[0].new_zeros(len(pieces[0]), missing)], dim=1)


def autocast_product(a_KNI: torch.Tensor, b_KIO: torch.Tensor) -> torch.Tensor:
    """Matrix product of each member, (K, N, O), under autocast.

    On a CPU this is a float32 product of the rounded operands, rounded once: for 16-bit products torch chooses a
    library by the size of all members together, and libraries add up in different orders.
    """
    device = a_KNI.device.type
    if device != "cpu" or not torch.is_autocast_enabled(device):
        return torch.bmm(a_KNI, b_KIO)
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return torch.bmm(a_KNI.to(dtype).float(), b_KIO.to(dtype).float()).to(dtype)
