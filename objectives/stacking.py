"""K members in one set of tensors: the columns of weights, rounding that ignores the other members, compilation.

A CPU kernel processes a tensor in blocks by vector instructions and the remainder one number at a time, by other
instructions that may round differently. If sizes are multiples of ``BLOCK`` nothing remains, and the rounding of
a number does not depend on its position.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from objectives.draws import seed_of

# Shapes: K members, n parameters per member (zero-padded to whole blocks), T weights, G groups.

ALL = "all"
BLOCK = 32  # numbers; no kernel processes more at a time
_BLOCK_16_BIT = 64  # 16-bit numbers: twice as many
# Each pack size is a separate compilation; at the default limit of 8, torch would silently fall back to eager.
_LARGEST_NUMBER_OF_SHAPES = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """One weight: its columns ``[start, end)``, its shape in one member, and its layer group."""

    name: str
    group: str
    shape: tuple[int, ...]
    start: int
    end: int
    is_stack: bool = False  # of matrices; otherwise further axes are of a convolution

    @property
    def size(self) -> int:
        """Number of parameters in one member."""
        return self.end - self.start

    @property
    def is_hidden_matrix(self) -> bool:
        """Whether Muon and its relatives train it: tables that are looked up or face the loss are not theirs."""
        return len(self.shape) >= 2 and self.group not in ("embedding", "head")

    def matrices(self) -> list[Piece]:
        """Return a piece for each matrix of a stack, and any other weight as it is."""
        if not self.is_stack:
            return [self]
        shape = self.shape[1:]
        size = math.prod(shape)
        starts = range(self.start, self.end, size)
        return [
            Piece(f"{self.name}.{number}", self.group, shape, start, start + size)
            for number, start in enumerate(starts)
        ]


class Layout:
    """The weights of one member in column order; ``groups`` are their layer groups in order.

    ``shapes`` has one member's shapes. ``group_of`` names the group of each weight (``all`` if there is only one), and
    ``depth_of`` its part of the depth, if any. ``stacks`` are endings of the names of stacks of matrices.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        group_of: Mapping[str, str] | None = None,
        depth_of: Mapping[str, str] | None = None,
        stacks: Sequence[str] = (),
    ) -> None:
        self.pieces: list[Piece] = []
        start = 0
        for name, shape in shapes.items():
            end, is_stack = start + math.prod(shape), len(shape) > 2 and name.endswith(tuple(stacks))
            self.pieces.append(Piece(name, (group_of or {}).get(name, ALL), tuple(shape), start, end, is_stack))
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
        sizes = [piece.size for piece in self.pieces]
        sizes[-1] += self.size - sum(sizes)
        columns = zip(value_KT.split(1, dim=1), sizes, strict=True)
        return torch.cat([value_K1.expand(-1, size) for value_K1, size in columns], dim=1)


@functools.lru_cache(maxsize=1024)
def index_on(device: torch.device, numbers: tuple[int, ...]) -> torch.Tensor:
    """Return an index on the device. It is kept, since the host waits whenever a list is sent; do not change it."""
    return torch.tensor(numbers, dtype=torch.int64).to(device)


def sent(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the host on the device, without waiting for it: from pinned memory."""
    return value if device.type == "cpu" else value.pin_memory().to(device, non_blocking=True)


def longest_prefix(name: str, prefixes: Iterable[str]) -> str | None:
    """Return the longest of ``prefixes`` that ``name`` starts with, or None: block10 is not in block1."""
    return max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)


def check_prefixes(groups: Collection[str], blocks: Collection[str], names: Collection[str]) -> None:
    """Raise ValueError if no name starts with a prefix in ``groups`` or ``blocks``: it is misspelt."""
    for kind, prefixes in (("groups", groups), ("blocks", blocks)):
        for prefix in prefixes:
            if not any(name.startswith(prefix) for name in names):
                raise ValueError(f"{kind}: no weight starts with {prefix!r}; there are {', '.join(names)}")


def alike(function: Callable[..., torch.Tensor], *values_K: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise ``function`` to numbers of shape (K,); each result depends only on its own inputs."""
    missing = -len(values_K[0]) % BLOCK
    return function(*(F.pad(value_K, (0, missing)) for value_K in values_K))[: len(values_K[0])]


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


def continued(value_K: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the values of members that continue ``rows`` of an earlier pack, (K, ...); zeros for a new one, -1."""
    is_new_K = (rows < 0).view(-1, *[1] * (value_K.dim() - 1))
    return value_K[rows.clamp(min=0)].masked_fill(is_new_K, 0)


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
    """Return a CPU generator that is a pure function of ``numbers``, e.g. (seed, purpose, step); see `draws`."""
    return torch.Generator().manual_seed(seed_of(*numbers))


class Compiled:
    """Compile ``function`` at its first call. Raises RuntimeError if that fails: eager code rounds differently."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._function, self._options = function, options
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Return the function's value."""
        if self._compiled is not None:
            return self._compiled(*arguments)
        try:
            torch._dynamo.config.recompile_limit = _LARGEST_NUMBER_OF_SHAPES
            compiled = torch.compile(self._function, dynamic=False, **self._options)
            result = compiled(*arguments)
        except (RuntimeError, OSError, ImportError) as error:  # no compiler, or one that fails
            cause = (str(error).strip() or repr(error)).splitlines()[0][:200]
            raise RuntimeError(f"compilation failed: {cause} (resources.compile: false trains without)") from error
        self._compiled = compiled
        return result
