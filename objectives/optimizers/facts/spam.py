"""SPAM (Huang et al., arXiv 2501.06842)."""

from __future__ import annotations

from pydantic import BaseModel

from objectives.fields import per_member, unless, when
from objectives.optimizers.facts.optimizer import Optimizer, always

_CHOSEN = when("optimizer", "spam")


class SpamFields(BaseModel):
    """Clipping of entries, and resets of the moments."""

    spam_threshold: float | None = per_member(
        5000.0, "1", "SPAM: largest g^2 / v per entry; null for no clipping", acts=_CHOSEN, gt=0
    )
    spam_interval: int | None = per_member(
        500, "steps", "SPAM: steps between two resets of the moments; null for none", acts=_CHOSEN, ge=1
    )
    spam_warmup: int = per_member(
        150, "steps", "SPAM: warmup after a reset", acts=_CHOSEN & unless("spam_interval", None), ge=0
    )
    spam_grace: int = per_member(
        20,
        "steps",
        "SPAM: steps without clipping of entries, at the start and after a reset",
        acts=_CHOSEN & unless("spam_threshold", None),
        ge=2,
    )


SPAM = Optimizer(
    "spam",
    "objectives.optimizers.rules.spam:Spam",
    SpamFields,
    can_start_second_moment=True,
    divides_by_root=always,
    averages_squares=always,
    examples={
        "spam_threshold": (None, 1.0, 1e-2),
        "spam_interval": (None, 5, 3),
        "spam_warmup": (0, 2, 20),
        "spam_grace": (2, 4, 20),
    },
    needs={
        "spam_threshold": {"spam_grace": 2},
        "spam_warmup": {"spam_interval": 4},
        "spam_grace": {"spam_threshold": 1e-2},
    },
)
