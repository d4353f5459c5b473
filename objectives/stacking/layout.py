"""Which columns of a (K, n) buffer belong to which weight, and which weights form a layer group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from objectives.stacking.rounding import BLOCK

# Shapes: K members, n parameters of one member (zero-padded to whole blocks), T weights, G groups.

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

    ``shapes`` are those of one member; ``group_of`` names the group of each weight (``all`` if there is only one), and
    ``depth_of`` the part of the depth that it is in, where it is in one.
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
        """Sum over the columns of each weight, (K, T)."""
        return torch.stack([value_Kn[:, piece.start : piece.end].sum(1) for piece in self.pieces], dim=1)

    def norms_per_weight(self, value_Kn: torch.Tensor) -> torch.Tensor:
        """Euclidean norm of each weight's columns, (K, T)."""
        columns = (value_Kn[:, piece.start : piece.end] for piece in self.pieces)
        return torch.stack([torch.linalg.vector_norm(value_Ks, dim=1) for value_Ks in columns], dim=1)

    def scale(self, value_Kn: torch.Tensor, factor_KT: torch.Tensor) -> None:
        """Multiply the columns of each weight by that weight's number, in place."""
        for t, piece in enumerate(self.pieces):
            value_Kn[:, piece.start : piece.end].mul_(factor_KT[:, t : t + 1])

    def weights_of_groups(self) -> dict[str, list[int]]:
        """The indices of the weights in each layer group; ``all`` comes last."""
        found = {group: [t for t, piece in enumerate(self.pieces) if piece.group == group] for group in self.groups}
        return found | {ALL: list(range(len(self.pieces)))}

    def weights_of_depths(self) -> dict[str, list[int]]:
        """The indices of the weights in each part of the depth, in order; empty for a model without parts."""
        found: dict[str, list[int]] = {}
        for t, piece in enumerate(self.pieces):
            if piece.name in self._depth_of:
                found.setdefault(self._depth_of[piece.name], []).append(t)
        return found

    def spread(self, value_KT: torch.Tensor) -> torch.Tensor:
        """Each weight's number repeated over its columns, (K, n); the padding gets that of the last weight."""
        return value_KT[:, self._weight_of_column(value_KT.device)]

    def _weight_of_column(self, device: torch.device) -> torch.Tensor:
        sizes = [piece.size for piece in self.pieces]
        sizes[-1] += self.size - sum(sizes)
        sizes_T = torch.tensor(sizes, device=device)
        # Passing the total size avoids waiting for a GPU.
        return torch.arange(len(sizes), device=device).repeat_interleave(sizes_T, output_size=self.size)
