"""StableAdamW (Wortsman et al., arXiv 2304.13013)."""

from __future__ import annotations

from pydantic import BaseModel

from objectives.fields import per_member, when
from objectives.optimizers.facts.optimizer import Optimizer, always


class StableAdamWFields(BaseModel):
    """Clipping of StableAdamW's update."""

    stableadamw_clip: float | None = per_member(
        1.0,
        "1",
        "StableAdamW: largest root mean square of a weight's g / sqrt(v); null for no clipping",
        acts=when("optimizer", "stableadamw"),
        gt=0,
    )


STABLEADAMW = Optimizer(
    "stableadamw",
    "objectives.optimizers.rules.stableadamw:StableAdamW",
    StableAdamWFields,
    can_start_second_moment=True,
    divides_by_root=always,
    averages_squares=always,
    examples={"stableadamw_clip": (None, 0.5, 1e-2)},
)
