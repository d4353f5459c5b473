"""The fields that every objective's configuration has, free of torch: length, optimizer, schedule, clipping."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# Optimizers that train many members as one; any other of a library is named as it is imported.
PACKED_OPTIMIZERS = (
    "adamw", "sgd", "radam", "adabelief", "adafactor", "lion", "stableadamw", "spam", "sophia", "adam8bit",
)  # fmt: skip
# Those of them that keep the second moment of every parameter as it is, so that it can start elsewhere than at zero.
OPTIMIZERS_WITH_SECOND_MOMENT = ("adamw", "radam", "adabelief", "stableadamw", "spam")
_OF_A_LIBRARY = re.compile(r"(torch\.optim|pytorch_optimizer)\.[A-Za-z]\w*")


def per_member(default: Any, unit: str, description: str, **domain: Any) -> Any:
    """A field that may differ between the members of one pack."""
    return Field(default, description=description, json_schema_extra={"unit": unit, "per_member": True}, **domain)


def structural(default: Any, unit: str, description: str, **domain: Any) -> Any:
    """A field that all members of a pack share."""
    return Field(default, description=description, json_schema_extra={"unit": unit, "per_member": False}, **domain)


class TrainingConfig(BaseModel):
    """The fields that every objective has: length, optimizer, schedule, clipping, batch size."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    steps: int = structural(..., "steps", "length of one training run", ge=1, le=10_000_000)
    lr: float = per_member(1e-3, "1", "peak learning rate", gt=0)
    warmup: int = per_member(0, "steps", "warmup of the learning rate; at most steps", ge=0)
    beta1: float = per_member(0.9, "1", "decay of the first moment (momentum)", ge=0, lt=1)
    beta2: float = per_member(0.999, "1", "decay of the second moment", ge=0, lt=1)
    beta2_half_life: float | None = per_member(
        None, "tokens", "in which the second moment forgets half, in place of beta2; null for beta2", gt=0
    )
    eps: float = per_member(1e-8, "gradient", "added to the root of the second moment", gt=0)
    second_moment_start: Literal["zero", "random", "data", "first_gradient"] = structural(
        "zero", "kind", "of the second moment before the first step"
    )
    second_moment_scale: float = per_member(1.0, "1", "factor on a second moment that does not start at zero", ge=0)
    weight_decay: float = per_member(0.0, "1", "weight decay; by its kind multiplied by the lr", ge=0)
    weight_decay_kind: Literal["decoupled", "coupled", "independent"] = structural(
        "decoupled", "kind", "decoupled (times lr), coupled (joins the gradient) or independent of the lr"
    )
    clip: float | None = per_member(None, "gradient norm", "largest global gradient norm; null for no clipping", gt=0)
    adagc: float | None = per_member(
        None, "of its average", "AdaGC: largest norm of a weight's gradient; null for no such clipping", gt=0
    )
    adagc_warmup: int = per_member(100, "steps", "in which AdaGC learns the averages", ge=1)
    zclip: float | None = per_member(
        None, "deviations", "ZClip: how far above its average a gradient norm may be; null for no such clipping", gt=0
    )
    zclip_warmup: int = per_member(25, "steps", "in which ZClip learns average and deviation", ge=2)
    batch_size: int = structural(8, "sequences", "examples per step", ge=1, le=65_536)
    optimizer: str = structural(
        "adamw", "kind", f"{', '.join(PACKED_OPTIMIZERS)}, or torch.optim.NAME or pytorch_optimizer.NAME"
    )
    radam_threshold: float = per_member(
        5.0, "steps", "RAdam: length of the second moment's average from which its root divides; the paper has 4", ge=4
    )
    adabelief_eps: float = per_member(1e-16, "1", "AdaBelief: added to the second moment, and to its root", gt=0)
    adafactor_decay: float = per_member(0.8, "1", "Adafactor: second moment's decay is 1 - t^-this", ge=0)
    adafactor_clip: float | None = per_member(
        1.0, "1", "Adafactor: largest root mean square of a weight's update; null for no clipping", gt=0
    )
    adafactor_eps: float = per_member(1e-15, "gradient", "Adafactor: smallest root of the second moment", gt=0)
    adafactor_smallest: float = per_member(
        1e-3, "1", "Adafactor: a weight's step is lr times its root mean square, or times this if that is smaller", ge=0
    )
    stableadamw_clip: float | None = per_member(
        1.0, "1", "StableAdamW: largest root mean square of a weight's g / sqrt(v); null for no clipping", gt=0
    )
    spam_threshold: float | None = per_member(
        5000.0, "1", "SPAM: largest g^2 / v of an entry; null for no clipping", gt=0
    )
    spam_interval: int | None = per_member(500, "steps", "SPAM: between two resets of the moments; null for none", ge=1)
    spam_warmup: int = per_member(150, "steps", "SPAM: warmup after a reset", ge=0)
    spam_grace: int = per_member(20, "steps", "SPAM: without clipping of entries, at the start and from a reset", ge=2)
    sophia_clip: float = per_member(0.01, "1", "Sophia: largest m / h of an entry", gt=0)
    sophia_eps: float = per_member(1e-12, "1", "Sophia: smallest h", gt=0)
    sophia_interval: int = structural(10, "steps", "Sophia: between two estimates of the Hessian's diagonal h", ge=1)
    adam8bit_block: int = structural(256, "entries", "adam8bit: that share one scale", ge=32, multiple_of=32)
    adam8bit_smallest: int = structural(
        4096, "entries", "adam8bit: of the smallest weight whose moments have 8 bits", ge=0
    )
    schedule: Literal["constant", "linear", "cosine", "polynomial", "wsd"] = structural(
        "constant", "kind", "decay of the learning rate after warmup; wsd is stable, then a linear decay"
    )
    schedule_power: float = structural(2.0, "1", "exponent of the polynomial schedule", gt=0)
    decay_share: float = structural(0.2, "of steps", "at the end in which the wsd schedule decays", ge=0, le=1)
    final_lr_fraction: float = structural(0.0, "of lr", "where a schedule that decays ends", ge=0, le=1)
    warmup_shape: Literal["linear", "cosine"] = structural("linear", "kind", "of the warmup")
    rollback: int | None = per_member(
        None, "batches", "that are skipped after going back to a snapshot on a spike; null for never", ge=0
    )
    rollback_every: int = structural(50, "steps", "between two snapshots to go back to", ge=1)

    @field_validator("optimizer")
    @classmethod
    def _optimizer_is_known(cls, name: str) -> str:
        if name not in PACKED_OPTIMIZERS and not _OF_A_LIBRARY.fullmatch(name):
            known = ", ".join(PACKED_OPTIMIZERS)
            raise ValueError(f"{name!r} is no optimizer: {known}, torch.optim.NAME or pytorch_optimizer.NAME")
        return name

    @model_validator(mode="after")
    def _warmup_fits(self) -> TrainingConfig:
        if self.warmup > self.steps:
            raise ValueError(f"warmup = {self.warmup} is longer than steps = {self.steps}")
        return self

    @property
    def can_be_stacked(self) -> bool:
        """Whether members can train together: the optimizer of a library knows one model at a time."""
        return self.optimizer in PACKED_OPTIMIZERS

    @model_validator(mode="after")
    def _rollback_can_be_done(self) -> TrainingConfig:
        if self.rollback is not None and not self.can_be_stacked:
            known = ", ".join(PACKED_OPTIMIZERS)
            raise ValueError(f"rollback = {self.rollback} needs one of the optimizers {known}, not {self.optimizer}")
        return self

    @model_validator(mode="after")
    def _second_moment_can_start(self) -> TrainingConfig:
        if self.second_moment_start != "zero" and self.optimizer not in OPTIMIZERS_WITH_SECOND_MOMENT:
            known = ", ".join(OPTIMIZERS_WITH_SECOND_MOMENT)
            start = f"second_moment_start = {self.second_moment_start}"
            raise ValueError(f"{start} needs one of the optimizers {known}, not {self.optimizer}")
        return self

    @model_validator(mode="after")
    def _half_life_is_no_eternity(self) -> TrainingConfig:
        if self.second_moment_decay == 1:
            tokens = f"the {self.tokens_per_step} tokens of a step"
            raise ValueError(f"beta2_half_life = {self.beta2_half_life} is too long for {tokens}: beta2 would be 1")
        return self

    @property
    def second_moment_decay(self) -> float:
        """``beta2``, or (1/2)^(tokens of a step / half-life) (Marek et al., arXiv 2507.07101)."""
        if self.beta2_half_life is None:
            return self.beta2
        return 0.5 ** (self.tokens_per_step / self.beta2_half_life)

    @property
    def tokens_per_step(self) -> int:
        """Examples that one step trains on; tokens where the examples are text."""
        return self.batch_size
