"""Sections of a sweep file on a run: checkpoints, states that are kept, limits, validation, telemetry."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Keys of a sweep file, with their types, domains and defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


class CheckpointConfig(Section):
    """How often running packs write checkpoints: by seconds or steps, whichever comes first."""

    every_s: float | None = Field(
        30.0,
        gt=0,
        description="seconds; fewer at first, more if a checkpoint takes over 1 % of the time; null for never",
    )
    every_steps: int | None = Field(None, ge=1, description="steps; null for never")


class KeepConfig(Section):
    """Which states of the weights are kept on disk, for `sweep export weights` and `sweep merge`."""

    every: int = Field(ge=1, description="steps between two states that are kept; the last state of a trial always is")
    last: int = Field(1, ge=1, description="states of a trial at most, the newest ones")
    disk_mib: float = Field(1024.0, gt=0, description="MiB for all of them; a sweep that needs more is refused")


def _is_time(text: str) -> str:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("time", "Input should be a time such as 2026-12-24T08:00, in quotes") from None
    return text


class BudgetConfig(Section):
    """Limits on all runs of the sweep together. The sweep ends cleanly when it reaches one."""

    trials: int | None = Field(None, ge=1, description="trials that are started; null for no limit, as below")
    member_steps: int | None = Field(None, ge=1, description="steps of all trials together")
    minutes: float | None = Field(None, gt=0, description="minutes while any worker trained")
    gpu_hours: float | None = Field(None, gt=0, description="hours of packs times resources.gpus")
    until: Annotated[str, AfterValidator(_is_time)] | None = Field(
        None, description='a time, e.g. "2026-12-24T08:00", of this machine unless it names a zone'
    )


class ValidateConfig(Section):
    """How often the held-out loss is measured, which does not affect training."""

    every: int | None = Field(
        None, ge=1, description="steps between two validations during training; null for one after the last step"
    )


class TelemetryConfig(Section):
    """Measurements during training besides losses and norms. They do not affect results."""

    every: int | None = Field(
        10,
        ge=1,
        description="steps between two readings of norms, update sizes and moments by layer group, at most 5 in the "
        "first 50 steps and for 50 after a loss has left its trend; null: none",
    )
    curvature: int | None = Field(None, ge=1, description="steps between measurements of the curvature; null: none")
    products: int = Field(
        4, ge=1, le=200, description="Hessian-vector products of a curvature measurement; each costs two gradients"
    )
    by: Literal["products", "forwards"] = Field("products", description="what measures it: products or forward passes")
    curves: int = Field(1, ge=1, description="keep every n-th step of losses and norms in the ledger, and the last")

    def time_factor(self, *, native: bool) -> float:
        """The factor by which telemetry lengthens a step, as measured for `gpt` (docs/diagnosis.md)."""
        reading, start, product, forwards = (0.3, 1.4, 1.6, 5.6) if native else (0.4, 3.0, 2.0, 2.1)
        measured = forwards if self.by == "forwards" else start + product * self.products
        return (
            1 + (reading / self.every if self.every else 0.0) + (measured / self.curvature if self.curvature else 0.0)
        )
