"""RAdam (Liu et al., arXiv 1908.03265)."""

from __future__ import annotations

from pydantic import BaseModel

from objectives.fields import Settings, per_member, when
from objectives.optimizers.facts.optimizer import Optimizer, always


class RAdamFields(BaseModel):
    """The length of the average beyond which RAdam divides by its root."""

    radam_threshold: float = per_member(
        5.0,
        "steps",
        "RAdam: length of the second moment's average beyond which its root divides the step; 4 in the paper",
        acts=when("optimizer", "radam"),
        ge=4,
    )


def _divides_in_the_end(settings: Settings) -> bool | None:
    """Return False if the average always stays too short for the division."""
    beta2, threshold = settings.get("beta2"), settings.get("radam_threshold")
    return None if beta2 is None or threshold is None else 2 / (1 - beta2) - 1 > threshold


RADAM = Optimizer(
    "radam",
    "objectives.optimizers.rules.radam:RAdam",
    RAdamFields,
    can_start_second_moment=True,
    divides_by_root=always,
    averages_squares=_divides_in_the_end,
    examples={"radam_threshold": (4.0, 5.0, 50.0)},
)
