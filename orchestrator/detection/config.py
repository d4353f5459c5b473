"""The settings of the detector: the `stopping:` section of a sweep file."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

# Values of null for a log of unknown origin; in a sweep, the objective's values apply.
LOG_SPIKE_RISE = 0.1
LOG_GRADIENT_PATIENCE = 20


_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


class SlowConfig(BaseModel):
    """The `stopping.slow` section of a sweep file: which trials are slow compared with others, and are pruned."""

    model_config = _STRICT

    method: Literal["median", "halving"] = Field(
        description="median: worse than half of the trials that ran to their end; halving: asynchronous successive "
        "halving, which continues one in `reduction` at each rung"
    )
    startup_trials: int = Field(5, ge=0, description="earlier trials needed before any trial is pruned")
    warmup_steps: int | None = Field(
        None, ge=1, description="steps before the first comparison; null for half of the steps"
    )
    interval_steps: int | None = Field(
        None, ge=1, description="median: steps between comparisons; null for a tenth of the steps"
    )
    reduction: int | None = Field(
        None, ge=2, description="halving: one of this many trials goes on, this many times as far; null for 4"
    )

    @model_validator(mode="after")
    def _has_its_own_settings(self) -> Self:
        name = "reduction" if self.method == "median" else "interval_steps"
        if getattr(self, name) is not None:
            raise PydanticCustomError(
                "inert", "{name} has no meaning for {method}: remove it", {"name": name, "method": self.method}
            )
        return self


class StoppingConfig(BaseModel):
    """The `stopping:` section of a sweep file: how spikes and lost runs are detected, and slow runs stopped."""

    model_config = _STRICT

    early_stop: bool = Field(True, description="end a trial once it is lost; false only records the verdict")
    audit: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the trials that train on after a verdict, after they were found slow, or beyond "
        "validation_patience, to measure how often that is wrong",
    )
    slow: SlowConfig | None = Field(None, description="prune trials that are slow compared with others; null for none")
    window: int = Field(50, ge=10, le=10_000, description="accepted losses in the baseline")
    min_history: int = Field(20, ge=3, le=10_000, description="losses before the baseline judges")
    spike_sigma: float = Field(6.0, gt=0, description="deviations above the median that leave the trend")
    spike_rise: float | None = Field(
        None,
        gt=0,
        description="smallest rise that leaves the trend, as a fraction of the median; null for the objective's",
    )
    spike_steps: int = Field(2, ge=1, description="steps off the trend that make a spike; one may be an odd batch")
    spike_mass: float = Field(
        4.0, ge=0, description="summed height of a spike's steps, in rises that leave the trend, that make a spike"
    )
    recovery_steps: int = Field(5, ge=1, description="steps back at the baseline that end a spike")
    lost_fraction: float = Field(0.5, gt=0, le=1, description="share of what was learned that a lost run has given up")
    lost_rise: float = Field(
        10.0, gt=0, description="or the rise above the best level, in spike_rise, that a lost run sits at"
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="steps a run may stay that high; null for the larger of 50 and a quarter of the steps before",
    )
    gradient_patience: int | None = Field(
        None,
        ge=1,
        description="consecutive steps with a non-finite gradient that lose a run with a finite loss; "
        "null for 1 with a built-in objective, and 20 if a loss scaler may skip some",
    )
    validation_patience: int | None = Field(
        None,
        ge=1,
        description="end a trial after this many validations in a row without a new best; needs `validate.every`; "
        "null for never",
    )
    stall_drop: float = Field(
        0.05, ge=0, lt=1, description="a run that lowers its loss by a smaller fraction is stalled"
    )
    stall_steps: int = Field(1000, ge=10, description="first steps, which must contain a loss below the first one")

    def resolved(self, spike_rise: float, gradient_patience: int) -> StoppingConfig:
        """Return the settings for a sweep: its objective's values replace the two that may be null."""
        own = {"spike_rise": self.spike_rise or spike_rise}
        return self.model_copy(update={**own, "gradient_patience": self.gradient_patience or gradient_patience})

    def rules(self) -> dict[str, Any]:
        """Return what is part of a trial's identity: neither auditing nor a disabled rule changes a trial."""
        are_off = {name for name in ("slow", "validation_patience") if getattr(self, name) is None}
        return self.model_dump(exclude={"audit", *are_off})


def rise_of(config: StoppingConfig) -> float:
    """Return the smallest rise that leaves the trend, as a fraction of the level; for null, the value of a log."""
    return LOG_SPIKE_RISE if config.spike_rise is None else config.spike_rise


def falls_over_decades(config: StoppingConfig) -> bool:
    """Return whether the loss falls over decades, as squared errors do: its smallest rise is at least the level."""
    return rise_of(config) >= 1
