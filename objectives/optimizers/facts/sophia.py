"""Sophia (Liu et al., arXiv 2305.14342)."""

from __future__ import annotations

from pydantic import BaseModel

from objectives.fields import per_member, structural, when
from objectives.optimizers.facts.optimizer import Optimizer

_CHOSEN = when("optimizer", "sophia")


class SophiaFields(BaseModel):
    """Clipping, the lower bound of the Hessian's diagonal, and the interval between its estimates."""

    sophia_clip: float = per_member(0.01, "1", "Sophia: largest m / h per entry", acts=_CHOSEN, gt=0)
    sophia_eps: float = per_member(1e-12, "1", "Sophia: smallest h", acts=_CHOSEN, gt=0)
    sophia_interval: int = structural(
        10, "steps", "Sophia: steps between two estimates of the Hessian's diagonal h", acts=_CHOSEN, ge=1
    )


SOPHIA = Optimizer(
    "sophia",
    "objectives.optimizers.rules.sophia:Sophia",
    SophiaFields,
    reads=("beta1", "beta2", "beta2_half_life"),
    second_moments=("hessian",),
    has_v=False,
    examples={
        "sophia_clip": (1e-3, 1e-2, 1e0),
        "sophia_eps": (1e-12, 1e-1, 1e1),
        "sophia_interval": (1, 2, 10),
    },
)
