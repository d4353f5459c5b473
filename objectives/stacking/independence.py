"""Rounding and random numbers of a member that are independent of the other members of its pack.

A CPU kernel processes a tensor in blocks by vector instructions and the remainder one number at a time, by other
instructions that may round differently. If sizes are multiples of ``BLOCK`` there is no remainder, and the rounding of
a number does not depend on its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

# Shapes: K members, n parameters per member, zero-padded to whole blocks.

BLOCK = 32  # numbers; no kernel processes more at a time
_BLOCK_16_BIT = 64  # 16-bit numbers: twice as many


def alike(function: Callable[..., torch.Tensor], *values_K: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise ``function`` to numbers of shape (K,); each result depends only on its own inputs."""
    return function(*(value_K[:, None].repeat(1, BLOCK) for value_K in values_K))[:, 0]


def in_blocks(function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise ``function`` to a tensor of any shape, padded to whole blocks of 16-bit or wider numbers."""
    missing = -value.numel() % _BLOCK_16_BIT
    if not missing:
        return function(value)
    return function(F.pad(value.reshape(-1), (0, missing)))[: value.numel()].view(value.shape)


def rows_of_blocks(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Concatenate the values of every weight, (K, ...) each, to (K, n), zero-padded to whole blocks."""
    pieces = [value.reshape(len(value), -1) for value in values]
    missing = -sum(piece.shape[1] for piece in pieces) % BLOCK
    return torch.cat([*pieces, pieces[0].new_zeros(len(pieces[0]), missing)], dim=1)


def autocast_product(a_KNI: torch.Tensor, b_KIO: torch.Tensor) -> torch.Tensor:
    """Return the matrix product of each member, (K, N, O), under autocast.

    On a CPU this is a float32 product of the rounded operands, rounded once. For 16-bit products torch chooses a
    library by the size of all members together, and libraries sum in different orders.
    """
    device = a_KNI.device.type
    if device != "cpu" or not torch.is_autocast_enabled(device):
        return torch.bmm(a_KNI, b_KIO)
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return torch.bmm(a_KNI.to(dtype).float(), b_KIO.to(dtype).float()).to(dtype)


def seeded_generator(*numbers: int) -> torch.Generator:
    """Return a CPU generator that is a pure function of ``numbers``, e.g. (seed, purpose, step).

    A stream that is a function of seed and step needs no state on resume, and depends neither on the device nor on the
    other members of the pack.
    """
    mixed = 0
    for number in numbers:
        # The finaliser of splitmix64 spreads neighbouring seeds over all bits.
        mixed = (mixed + number + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return torch.Generator().manual_seed(mixed % 2**63)
