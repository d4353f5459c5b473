"""SGD with momentum, as an average of the gradients."""

from __future__ import annotations

from objectives.optimizers.facts.optimizer import Optimizer, never

SGD = Optimizer(
    "sgd",
    "objectives.optimizers.rules.sgd:Sgd",
    reads=("beta1",),
    second_moments=(),
    has_v=False,
    divides_by_root=never,
)
