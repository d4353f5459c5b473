"""Fields and facts of the mean-field router, free of torch."""

from __future__ import annotations

from objectives.fields import per_member, structural
from objectives.optimizers.facts import read_by_the_optimizer
from objectives.protocol import Objective
from objectives.training_config import TrainingConfig


class RouterConfig(TrainingConfig):
    """A router of experts on its own; without noise, the threshold of a is known in closed form."""

    optimizer: str = structural("sgd", "kind", "with sgd and beta1 0, lr is the step of the scores, their eps")
    beta1: float = per_member(
        0.0, "1", "decay of the first moment (momentum)", acts=read_by_the_optimizer("beta1"), ge=0, lt=1
    )
    lr: float = per_member(0.1, "1", "peak learning rate; with sgd, the share eps of a step", gt=0)
    batch_size: int | None = structural(  # type: ignore[assignment] # null means the mean field
        None, "tokens", "tokens sampled per step; null for their expectation", ge=1, le=65_536
    )
    experts: int = structural(2, "experts", "number of experts, each with one score", ge=2, le=1024)
    a: float = per_member(1.0, "1", "what a chosen expert's score gains", changes=True, ge=0)
    b: float = per_member(1.0, "1", "decay of the scores", changes=True, gt=0)
    beta: float = per_member(1.0, "1", "sharpness: an expert's share is softmax(beta s)", changes=True, gt=0)
    spread: float = per_member(1e-3, "1", "standard deviation of the initial scores", ge=0)

    @property
    def weight_groups(self) -> tuple[str, ...]:
        """No groups but all."""
        return ()

    @property
    def takes_float64(self) -> bool:
        """Its numbers are float64 already."""
        return False

    @property
    def signals(self) -> tuple[str, ...]:
        """Also the Gini coefficient of the router's loads."""
        return (*super().signals, "router_gini")

    @property
    def tokens_per_step(self) -> int:
        """Tokens per step; 1 for the mean field."""
        return self.batch_size or 1


# Sampling is noise of the gradient only; the loss is the same function at every step.
ROUTER = Objective(
    "router",
    RouterConfig,
    "objectives.models.router",
    spike_rise=2.0,
    can_compile=False,
    has_held_out=False,
    is_full_batch=lambda settings: settings.get("batch_size") is None,
)
