"""Which columns of a (K, n) buffer belong to which weight, and which weights form a layer group."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch

from objectives.stacking.independence import BLOCK

# Shapes: K members, n parameters per member (zero-padded to whole blocks), T weights, G groups.

ALL = "all"


@dataclass(frozen=True, slots=True)
class Piece:
    """One weight: its columns ``[start, end)``, its shape in one member, and its layer group."""

    name: str
    group: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of parameters in one member."""
        return self.end - self.start


class Layout:
    """The weights of one member in column order; ``groups`` are their layer groups in order.

    ``shapes`` has one member's shapes. ``group_of`` names the group of each weight (``all`` if there is only one), and
    ``depth_of`` its part of the depth, if any.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        group_of: Mapping[str, str] | None = None,
        depth_of: Mapping[str, str] | None = None,
    ) -> None:
        self.pieces: list[Piece] = []
        start = 0
        for name, shape in shapes.items():
            end = start + math.prod(shape)
            self.pieces.append(Piece(name, (group_of or {}).get(name, ALL), tuple(shape), start, end))
            start = end
        self.size = start + -start % BLOCK
        self.groups = list(dict.fromkeys(piece.group for piece in self.pieces))
        self._depth_of = dict(depth_of or {})

    def sums_per_weight(self, value_Kn: torch.Tensor) -> torch.Tensor:
        """Return the sum over each weight's columns, (K, T)."""
        return torch.stack([value_Kn[:, piece.start : piece.end].sum(1) for piece in self.pieces], dim=1)

    def norms_per_weight(self, value_Kn: torch.Tensor) -> torch.Tensor:
        """Return the Euclidean norm of each weight's columns, (K, T)."""
        columns = (value_Kn[:, piece.start : piece.end] for piece in self.pieces)
        return torch.stack([torch.linalg.vector_norm(value_Ks, dim=1) for value_Ks in columns], dim=1)

    def scale(self, value_Kn: torch.Tensor, factor_KT: torch.Tensor) -> None:
        """Multiply each weight's columns by its factor, in place."""
        for t, piece in enumerate(self.pieces):
            value_Kn[:, piece.start : piece.end].mul_(factor_KT[:, t : t + 1])

    def weights_of_groups(self) -> dict[str, list[int]]:
        """Return the indices of the weights in each layer group; ``all`` comes last."""
        indices = {group: [t for t, piece in enumerate(self.pieces) if piece.group == group] for group in self.groups}
        return indices | {ALL: list(range(len(self.pieces)))}

    def weights_of_depths(self) -> dict[str, list[int]]:
        """Return the indices of the weights in each part of the depth, in order; empty for a model without parts."""
        indices: dict[str, list[int]] = {}
        for t, piece in enumerate(self.pieces):
            if piece.name in self._depth_of:
                indices.setdefault(self._depth_of[piece.name], []).append(t)
        return indices

    def spread(self, value_KT: torch.Tensor) -> torch.Tensor:
        """Repeat each weight's number over its columns, (K, n); the padding gets the last weight's number."""
        return value_KT[:, self._weight_of_column(value_KT.device)]

    def _weight_of_column(self, device: torch.device) -> torch.Tensor:
        sizes = [piece.size for piece in self.pieces]
        sizes[-1] += self.size - sum(sizes)
        sizes_T = torch.tensor(sizes, device=device)
        # Passing the total size avoids waiting for a GPU.
        return torch.arange(len(sizes), device=device).repeat_interleave(sizes_T, output_size=self.size)


def longest_prefix(name: str, prefixes: Iterable[str]) -> str | None:
    """Return the longest of ``prefixes`` that ``name`` starts with, or None: block10 is not in block1."""
    return max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)


def third_of_depth(block: int, depth: int) -> str:
    """Return the third of the depth with the middle of a block: ``shallow``, ``middle`` or ``deep``.

    Blocks count from 0.
    """
    middle = 3 * (2 * block + 1)  # of the block, in sixths of a block
    return "shallow" if middle < 2 * depth else "middle" if middle <= 4 * depth else "deep"


def check_prefixes(groups: Collection[str], blocks: Collection[str], names: Collection[str]) -> None:
    """Raise ValueError if no name starts with a prefix in ``groups`` or ``blocks``: it is misspelt."""
    for kind, prefixes in (("groups", groups), ("blocks", blocks)):
        for prefix in prefixes:
            if not any(name.startswith(prefix) for name in names):
                raise ValueError(f"{kind}: no weight starts with {prefix!r}; there are {', '.join(names)}")
