"""Fields and facts of the small regression, free of torch."""

from __future__ import annotations

from objectives.fields import per_member, structural
from objectives.protocol import Objective
from objectives.training_config import TrainingConfig


class FunctionFitConfig(TrainingConfig):
    """A small tanh network fitted to sin x + sin 4x, in double precision."""

    lr: float = per_member(1e-2, "1", "peak learning rate", gt=0)
    batch_size: int | None = structural(  # type: ignore[assignment] # null means all points
        None, "points", "points per step; null for the full batch", ge=1, le=65_536
    )
    width: int = structural(64, "units", "hidden units", ge=1, le=65_536)
    num_points: int = structural(200, "points", "training points, evenly spaced on [-pi, pi]", ge=2, le=65_536)

    @property
    def weight_groups(self) -> tuple[str, ...]:
        """Its two layers."""
        return ("input", "output")

    @property
    def takes_float64(self) -> bool:
        """Its numbers are float64 already."""
        return False

    @property
    def tokens_per_step(self) -> int:
        """Points per step."""
        return self.batch_size or self.num_points


FUNCTION_FIT = Objective(
    "function_fit",
    FunctionFitConfig,
    "objectives.models.function_fit",
    spike_rise=2.0,
    can_compile=False,
    layer_groups=("input", "output"),
    data_fields=("batch_size", "num_points"),
    is_full_batch=lambda settings: settings.get("batch_size") is None,
    starter_steps=1000,
)
