"""AdaBelief (Zhuang et al., arXiv 2010.07468)."""

from __future__ import annotations

from pydantic import BaseModel

from objectives.fields import per_member, when
from objectives.optimizers.facts.optimizer import Optimizer


class AdaBeliefFields(BaseModel):
    """Its own epsilon, which is added twice."""

    adabelief_eps: float = per_member(
        1e-16,
        "1",
        "AdaBelief: added to the second moment and to its root",
        acts=when("optimizer", "adabelief"),
        gt=0,
    )


ADABELIEF = Optimizer(
    "adabelief",
    "objectives.optimizers.rules.adabelief:AdaBelief",
    AdaBeliefFields,
    reads=("beta1", "beta2"),
    can_start_second_moment=True,
    examples={"adabelief_eps": (1e-16, 1e-8, 1e-3)},
)
