"""Adafactor (Shazeer & Stern, arXiv 1804.04235)."""

from __future__ import annotations

from pydantic import BaseModel

from objectives.fields import per_member, when
from objectives.optimizers.facts.optimizer import Optimizer

_CHOSEN = when("optimizer", "adafactor")


class AdafactorFields(BaseModel):
    """Decay, clipping and lower bounds of Adafactor's step."""

    adafactor_decay: float = per_member(
        0.8, "1", "Adafactor: exponent c of the second moment's decay 1 - t^-c", acts=_CHOSEN, ge=0
    )
    adafactor_clip: float | None = per_member(
        1.0,
        "1",
        "Adafactor: largest root mean square of a weight's update; null for no clipping",
        acts=_CHOSEN,
        gt=0,
    )
    adafactor_eps: float = per_member(
        1e-15, "gradient", "Adafactor: smallest root of the second moment", acts=_CHOSEN, gt=0
    )
    adafactor_smallest: float = per_member(
        1e-3,
        "1",
        "Adafactor: lower bound of the root mean square of a weight, which multiplies lr",
        acts=_CHOSEN,
        ge=0,
    )


ADAFACTOR = Optimizer(
    "adafactor",
    "objectives.optimizers.rules.adafactor:Adafactor",
    AdafactorFields,
    reads=(),
    first_moments=(),
    second_moments=("row_moment", "column_moment", "entry_moment"),
    examples={
        "adafactor_decay": (0.0, 0.8, 1.5),
        "adafactor_clip": (None, 1.0, 1e-2),
        "adafactor_eps": (1e-15, 1e-1, 1e1),
        "adafactor_smallest": (1e-3, 1e0, 1e1),
    },
)
