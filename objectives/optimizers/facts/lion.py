"""Lion (Chen et al., arXiv 2302.06675)."""

from __future__ import annotations

from objectives.optimizers.facts.optimizer import Optimizer, never

# beta2 is the decay of the momentum; Lion has no second moment.
LION = Optimizer(
    "lion",
    "objectives.optimizers.rules.lion:Lion",
    reads=("beta1", "beta2"),
    second_moments=(),
    has_divisor=False,
    has_v=False,
    divides_by_root=never,
)
