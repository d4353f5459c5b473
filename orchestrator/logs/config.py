"""Where a training script reports its losses, and under which names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class MetricsConfig(BaseModel):
    """Where a custom trainer reports its losses, and under which names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    file: str | None = Field(
        None,
        min_length=1,
        description="a file that the trainer appends to (CSV, JSON lines, text, TensorBoard events; may be a glob); "
        "null for its standard output",
    )
    format: Literal["auto", "text", "json", "csv", "tensorboard"] = Field(
        "auto", description="format of the lines: `step 10 loss 3.2`, JSON objects, comma separated values, events"
    )
    pattern: str | None = Field(
        None, min_length=1, description="a regular expression with named groups, in place of a format"
    )
    step: str | None = Field(None, description="name of the step; null for the usual ones")
    loss: str | None = Field(None, description="name of the training loss; null for the usual ones")
    grad_norm: str | None = Field(None, description="name of the gradient norm; null for the usual ones")
    validation_loss: str | None = Field(None, description="name of the validation loss; null for the usual ones")
    every: int | None = Field(
        None, gt=0, description="steps between two losses, where the trainer prints none; null counts losses"
    )
    also: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        max_length=100,
        description="other metrics to keep, with their own steps; the last values are columns and metrics of maps",
    )
