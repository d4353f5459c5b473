"""Fields and facts of the quadratic, free of torch."""

from __future__ import annotations

from objectives.fields import per_member, structural
from objectives.protocol import Objective
from objectives.training_config import TrainingConfig


class QuadraticConfig(TrainingConfig):
    """The loss curvature * |x|^power / power; with power 2 its stability edge is known in closed form."""

    lr: float = per_member(1e-1, "1", "peak learning rate", gt=0)
    batch_size: int = structural(1, "samples", "samples that average the gradient noise", ge=1, le=65_536)
    dimension: int = structural(4, "coordinates", "number of coordinates", ge=1, le=1_000_000)
    curvature: float = per_member(1.0, "1", "factor of the loss; with power 2 its second derivative", gt=0)
    noise: float = per_member(0.0, "gradient", "standard deviation of one sample's gradient noise", ge=0)
    power: float = structural(
        2.0, "1", "exponent of the loss; above 2 the curvature vanishes at the minimum", off=True, ge=2, le=100
    )

    @property
    def weight_groups(self) -> tuple[str, ...]:
        """No groups but all."""
        return ()

    @property
    def takes_float64(self) -> bool:
        """Its numbers are float64 already."""
        return False


# Noise is added to the gradient only; the loss is the same function at every step.
QUADRATIC = Objective(
    "quadratic",
    QuadraticConfig,
    "objectives.models.quadratic",
    spike_rise=2.0,
    can_compile=False,
    has_held_out=False,
    is_full_batch=lambda settings: True,
)
