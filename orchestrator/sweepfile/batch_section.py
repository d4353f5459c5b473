"""The keys of the section ``batch`` of a sweep file, with their domains."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class BatchSection(BaseModel):
    """The global batch of a custom trainer: micro batch x accumulation x workers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    global_: int | None = Field(None, ge=1, alias="global", description="examples of one step of all workers")
    micro: int | None = Field(None, ge=1, description="examples that a worker passes through the model at a time")
    accumulation: int | None = Field(None, ge=1, description="micro batches of a worker in one step")
    workers: int | None = Field(None, ge=1, description="that share the global batch; null: those of resources")
