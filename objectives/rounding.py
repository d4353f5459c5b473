"""Numbers that are rounded alike wherever they stand in a tensor, so that nobody's depend on his neighbours.

A CPU kernel treats a tensor in blocks by vector instructions and what is left over one number at a time, by
other instructions that may round differently. Where sizes are multiples of ``BLOCK`` nothing is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

# Shapes: K members, n parameters of one member and zeros that fill its last block.

BLOCK = 32  # numbers; no kernel takes more at a time


def alike(function: Callable[..., torch.Tensor], *values_K: torch.Tensor) -> torch.Tensor:
    """``function`` of numbers of shape (K,), elementwise; each result depends on its own numbers alone."""
    return function(*(value_K[:, None].repeat(1, BLOCK) for value_K in values_K))[:, 0]


def rows_of_blocks(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Values of every weight, (K, ...) each, side by side: (K, n), with zeros up to a whole number of blocks."""
    pieces = [value.reshape(len(value), -1) for value in values]
    missing = -sum(piece.shape[1] for piece in pieces) % BLOCK
    return torch.cat([*pieces, pieces[0].new_zeros(len(pieces[0]), missing)], dim=1)


def product_per_member(a_KNI: torch.Tensor, b_KIO: torch.Tensor) -> torch.Tensor:
    """Matrix product of each member, (K, N, O): a member alone, for which there is another kernel, gets a double."""
    if len(a_KNI) > 1:
        return torch.bmm(a_KNI, b_KIO)
    return torch.bmm(a_KNI.expand(2, -1, -1), b_KIO.expand(2, -1, -1))[:1]
