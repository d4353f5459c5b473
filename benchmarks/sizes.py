"""The models that are compared, and the nominal cost of a training step."""

from __future__ import annotations

from dataclasses import dataclass

NUM_BYTES = 256  # the vocabulary of a byte-level model


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of one transformer and of its batches; ``preset`` is small or llama."""

    name: str
    width: int
    depth: int
    context: int
    batch_size: int
    heads: int = 2
    preset: str = "small"

    @property
    def tokens(self) -> int:
        """Bytes that one member trains on in one step."""
        return self.batch_size * self.context

    @property
    def fields(self) -> dict[str, int | str]:
        """The structural fields of the objective's configuration."""
        names = ("width", "depth", "context", "batch_size", "heads", *(() if self.preset == "small" else ("preset",)))
        return {name: getattr(self, name) for name in names}

    @property
    def mlp_weights(self) -> int:
        """Weights of the matrices of one MLP: two of GELU's 4 widths, or three of SwiGLU's, which are near 8/3."""
        return 8 * self.width**2 if self.preset == "small" else 3 * self.width * 4 * round(2 * self.width / 3)


SIZES = (
    Size("d16", width=16, depth=2, context=32, batch_size=4),
    Size("d32", width=32, depth=2, context=32, batch_size=8),
    Size("d64", width=64, depth=2, context=64, batch_size=16),
    Size("d128", width=128, depth=4, context=128, batch_size=16),
)
LLAMA = (
    Size("llama_d32", width=32, depth=2, context=32, batch_size=8, preset="llama"),
    Size("llama_d64", width=64, depth=2, context=64, batch_size=16, preset="llama"),
)
COMPARED = (*SIZES, *LLAMA)


def flops_per_member_step(size: Size) -> int:
    """Floating point operations of the matrix products in one training step of one member.

    Two per weight and token forward, four backward; attention multiplies whole (T, T) squares, including the half above
    the diagonal. Elementwise work and the optimizer are not counted, as usual.
    """
    weights = size.depth * (4 * size.width**2 + size.mlp_weights) + size.width * NUM_BYTES
    attention = size.depth * 4 * size.batch_size * size.context**2 * size.width
    return 6 * weights * size.tokens + 3 * attention
