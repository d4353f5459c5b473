"""The initial value of a rule's second moment: zero, or one of three published choices.

Adam's divisor has almost no history at first, so its first step is lr in every coordinate. A nonzero v0 makes the first
steps smaller. The bias correction stays the usual one, 1 / (1 - beta2^t). With s = ``second_moment_scale``:

``random``          v0 = s / (fan in + fan out) times a chi-square with one degree of freedom for every entry of a
                    matrix, 0 for vectors (Abduweili & Liu, arXiv 2412.02153; their code has twice that)
``data``            v0 = s E[g^2], E over some gradients of the training data (the same paper)
``first_gradient``  v0 = s g^2 of the first gradient (GI-Adam, Kalra & Barkeshli, arXiv 2406.09405, has s = 1)

For ``data`` the paper measures gradients at the initial parameters before training. Here they are the first 8 training
gradients, so that no other data are used. v0 is the mean square of the gradients so far, and the first step is the same
as with ``first_gradient``. In v, v0 has decayed by beta2^t after t steps; when another gradient changes v0, v changes
by the part of it that remains.

Gradients are as the rule sees them, after clipping. Rules without a full second moment for each parameter (SGD, Lion,
Adafactor, Sophia, 8-bit Adam) have nothing to initialise, and the configuration rejects the setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from objectives.stacking import Layout, Piece, alike, seeded_generator

# Shapes: K members, n parameters per member.

_NUM_GRADIENTS = 8
_PURPOSE = 10  # of the random stream, among a seed's streams

Numbers = Mapping[str, torch.Tensor]


class SecondMomentStart:
    """Initialise the state ``second_moment`` of a rule, n numbers per member, according to ``kind``.

    ``kind`` is a value of the field ``second_moment_start``.
    """

    fields: Sequence[str] = ("second_moment_scale",)

    def __init__(self, kind: str, layout: Layout) -> None:
        self.kind, self.layout = kind, layout

    @property
    def learns(self) -> bool:
        """Whether gradients change the start."""
        return self.kind in ("data", "first_gradient")

    def states(self, params_Kn: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return states of zeros: for ``data``, the mean square of the gradients so far."""
        return {"mean_square": torch.zeros_like(params_Kn)} if self.kind == "data" else {}

    def begin(
        self, states: Mapping[str, torch.Tensor], rows: Sequence[int], numbers_K: Numbers, seeds: Sequence[int] | None
    ) -> None:
        """Initialise the new members in ``rows`` as far as it needs no gradient; ``seeds`` has all members' seeds.

        Raises ValueError for a random start without seeds.
        """
        if self.kind != "random":
            return
        if seeds is None:
            raise ValueError("second_moment_start = random needs the seeds of the members")
        second_Kn, scale_K = states["second_moment"], numbers_K["second_moment_scale"]
        for row in rows:
            start_n = random_start(self.layout, seeds[row]).to(second_Kn.device) * scale_K[row]
            second_Kn[row] = start_n.to(second_Kn.dtype)

    def scalars(self, numbers_K: Numbers, age_K: torch.Tensor) -> Numbers:
        """Return the weights of this step's gradient in v0, (K,) in double precision; ``age_K`` includes this step."""
        if not self.learns:
            return {}
        num_gradients = _NUM_GRADIENTS if self.kind == "data" else 1
        is_new_K = age_K <= num_gradients
        left_K = alike(torch.pow, numbers_K["beta2"], age_K - 1)
        share_K = torch.where(is_new_K, 1 / age_K, 0.0)
        return {"share": share_K, "weight": share_K * left_K * numbers_K["second_moment_scale"]}

    def learn(
        self, states: Mapping[str, torch.Tensor], grad_Kn: torch.Tensor, scalars_K1: Numbers, may_look: bool
    ) -> None:
        """Change v by the contribution of ``grad_Kn`` to v0, in place; called before an update."""
        if not scalars_K1 or (may_look and not bool(scalars_K1["share"].any())):
            return
        square_Kn = grad_Kn.square()
        if self.kind == "data":
            square_Kn.sub_(states["mean_square"])
            states["mean_square"].add_(_times(square_Kn, scalars_K1["share"]))
        # Clamped at zero: SPAM may have reset the part that a smaller mean square subtracts.
        states["second_moment"].add_(_times(square_Kn, scalars_K1["weight"])).clamp_(min=0.0)


def random_start(layout: Layout, seed: int) -> torch.Tensor:
    """Return chi-square numbers over fan in + fan out for matrices, zeros for vectors, (n,) in double precision."""
    start_n = torch.randn(layout.size, generator=seeded_generator(seed, _PURPOSE), dtype=torch.float64).square_()
    for piece in layout.pieces:
        start_n[piece.start : piece.end] *= _per_fan(piece)
    start_n[layout.pieces[-1].end :] = 0.0
    return start_n


def _per_fan(piece: Piece) -> float:
    """Return 1 / (fan in + fan out) of a weight, with torch's definition; 0 for anything but a matrix."""
    shape = piece.shape[-2:] if piece.is_stack else piece.shape
    if len(shape) < 2:
        return 0.0
    return 1 / ((shape[0] + shape[1]) * math.prod(shape[2:]))


def _times(value_Kn: torch.Tensor, weight_K1: torch.Tensor) -> torch.Tensor:
    """Return the product; zero if the weight is zero, even if the value is not finite."""
    return (value_Kn * weight_K1).masked_fill_(weight_K1 == 0, 0.0)
