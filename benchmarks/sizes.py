"""The four model sizes that are compared, and the nominal cost of a training step."""

from __future__ import annotations

from dataclasses import dataclass

NUM_BYTES = 256  # the vocabulary of a byte-level model


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of one transformer and of its batches."""

    name: str
    width: int
    depth: int
    context: int
    batch_size: int
    heads: int = 2

    @property
    def tokens(self) -> int:
        """Bytes that one member trains on in one step."""
        return self.batch_size * self.context

    @property
    def fields(self) -> dict[str, int]:
        """The structural fields of the objective's configuration."""
        names = ("width", "depth", "context", "batch_size", "heads")
        return {name: getattr(self, name) for name in names}


SIZES = (
    Size("d16", width=16, depth=2, context=32, batch_size=4),
    Size("d32", width=32, depth=2, context=32, batch_size=8),
    Size("d64", width=64, depth=2, context=64, batch_size=16),
    Size("d128", width=128, depth=4, context=128, batch_size=16),
)


def flops_per_member_step(size: Size) -> int:
    """Floating point operations of the matrix products in one training step of one member.

    Two per weight and token forward, four backward; attention multiplies whole (T, T) squares, including the half above
    the diagonal. Elementwise work and the optimizer are not counted, as usual.
    """
    weights = size.depth * 12 * size.width**2 + size.width * NUM_BYTES
    attention = size.depth * 4 * size.batch_size * size.context**2 * size.width
    return 6 * weights * size.tokens + 3 * attention
