"""Fields in every objective's configuration: length, optimizer, schedule, clipping, interventions; free of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, create_model, field_validator, model_validator

from objectives.control import Rule, check_rules, may_set
from objectives.entries import Intervention, Number
from objectives.fields import Condition, acting, per_member, structural, unless, when
from objectives.held import check_entries, ever_holds
from objectives.optimizers.facts import (
    OPTIMIZERS,
    facts_of,
    read_by_the_optimizer,
    that_can_start_the_second_moment,
)
from objectives.optimizers.facts.optimizer import Optimizer

_OF_A_LIBRARY = re.compile(r"(torch\.optim|pytorch_optimizer)\.[A-Za-z]\w*")
_WARMS_UP = Condition("warmup is above 0", lambda settings: settings["warmup"] > 0)
_DECAYS_WEIGHTS = Condition("weight_decay is above 0", lambda settings: settings["weight_decay"] > 0)


class SharedFields(BaseModel):
    """The fields that do not belong to a single optimizer."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    steps: int = structural(..., "steps", "length of one training run", ge=1, le=10_000_000)
    lr: float = per_member(1e-3, "1", "peak learning rate", gt=0)
    warmup: int = per_member(0, "steps", "warmup of the learning rate; at most steps", ge=0)
    beta1: float = per_member(
        0.9, "1", "decay of the first moment (momentum)", acts=read_by_the_optimizer("beta1"), ge=0, lt=1
    )
    beta2: float = per_member(
        0.999,
        "1",
        "decay of the second moment",
        acts=read_by_the_optimizer("beta2") & when("beta2_half_life", None),
        ge=0,
        lt=1,
    )
    beta2_half_life: float | None = per_member(
        None,
        "tokens",
        "half-life of the second moment, which replaces beta2; null for beta2",
        acts=read_by_the_optimizer("beta2"),
        off=True,
        gt=0,
    )
    eps: float = per_member(
        1e-8, "gradient", "added to the root of the second moment", acts=read_by_the_optimizer("eps"), gt=0
    )
    second_moment_start: Literal["zero", "random", "data", "first_gradient"] = structural(
        "zero", "kind", "initial value of the second moment", acts=that_can_start_the_second_moment(), off=True
    )
    second_moment_scale: float = per_member(
        1.0,
        "1",
        "factor on the initial second moment, unless it is zero",
        acts=unless("second_moment_start", "zero"),
        ge=0,
    )
    weight_decay: float = per_member(0.0, "1", "weight decay; weight_decay_kind decides whether lr multiplies it", ge=0)
    weight_decay_kind: Literal["decoupled", "coupled", "independent"] = structural(
        "decoupled",
        "kind",
        "decoupled (times lr), coupled (added to the gradient) or independent (of lr)",
        acts=_DECAYS_WEIGHTS,
    )
    clip: float | None = per_member(
        None, "gradient norm", "largest global gradient norm; null for no clipping", off=True, gt=0
    )
    adagc: float | None = per_member(
        None, "of its average", "AdaGC: largest norm of a weight's gradient; null for off", off=True, gt=0
    )
    adagc_warmup: int = per_member(100, "steps", "warmup of AdaGC's averages", acts=unless("adagc", None), ge=1)
    zclip: float | None = per_member(
        None,
        "deviations",
        "ZClip: how far a gradient norm may exceed its average; null for off",
        off=True,
        gt=0,
    )
    zclip_warmup: int = per_member(
        25, "steps", "warmup of ZClip's average and deviation", acts=unless("zclip", None), ge=2
    )
    batch_size: int = structural(8, "sequences", "examples per step", ge=1, le=65_536)
    optimizer: str = structural(
        "adamw", "kind", f"{', '.join(OPTIMIZERS)}, or torch.optim.NAME, and likewise of pytorch_optimizer"
    )
    schedule: Literal["constant", "linear", "cosine", "polynomial", "wsd"] = structural(
        "constant", "kind", "decay of the learning rate after warmup; wsd is constant, then linear"
    )
    schedule_power: float = structural(
        2.0, "1", "exponent of the polynomial schedule", acts=when("schedule", "polynomial"), gt=0
    )
    decay_share: float = structural(
        0.2,
        "of steps",
        "final share of the steps, during which the wsd schedule decays",
        acts=when("schedule", "wsd"),
        ge=0,
        le=1,
    )
    final_lr_fraction: float = structural(
        0.0, "of lr", "learning rate at the end of a decaying schedule", acts=unless("schedule", "constant"), ge=0, le=1
    )
    warmup_shape: Literal["linear", "cosine"] = structural("linear", "kind", "shape of the warmup", acts=_WARMS_UP)
    rollback: int | None = per_member(
        None,
        "batches",
        "batches to skip after a spike's rollback to a snapshot; null for no rollback",
        off=True,
        ge=0,
    )
    rollback_every: int = structural(50, "steps", "steps between two snapshots", acts=unless("rollback", None), ge=1)
    ema: float | None = per_member(
        None, "1", "decay of an exponential average of the weights, for ema_loss; null for none", off=True, gt=0, lt=1
    )
    merge_last: int | None = structural(
        None, "states", "states whose mean is validated at the end, for merged_loss; null for none", off=True, ge=2
    )
    merge_every: int = structural(
        10, "steps", "steps between two of these states", acts=unless("merge_last", None), ge=1
    )
    interventions: tuple[Intervention, ...] = per_member(
        (), "list", "changes during training: at, set, over, lasts, reset, rescale, skip, mean, freeze ...", off=True
    )
    control: tuple[Rule, ...] = per_member(
        (),
        "list",
        "rules that act during training: on, above, readings, do, every, after, at_most, cool_down, over, lasts",
        off=True,
    )


if TYPE_CHECKING:
    _Fields = SharedFields
else:
    # pydantic orders fields by base, starting with the last.
    _own_fields = [optimizer.fields for optimizer in OPTIMIZERS.values()]
    _Fields = create_model("_Fields", __base__=(*dict.fromkeys(reversed(_own_fields)), SharedFields))


class TrainingConfig(_Fields):
    """The fields of every objective and of all optimizers."""

    # Other names that a subclass takes for an optimizer with fields of its own.
    optimizer_aliases: ClassVar[tuple[str, ...]] = ()

    @field_validator("optimizer")
    @classmethod
    def _optimizer_is_known(cls, name: str) -> str:
        if name not in OPTIMIZERS and not _OF_A_LIBRARY.fullmatch(name):
            known = ", ".join((*OPTIMIZERS, *cls.optimizer_aliases))
            if name == "muonclip":
                raise ValueError("muonclip is muon with qk_clip, a field of gpt: here write muon")
            raise ValueError(f"{name!r} is unknown: choose from {known}, torch.optim.NAME or pytorch_optimizer.NAME")
        return name

    @field_validator("interventions")
    @classmethod
    def _interventions_in_order(cls, entries: tuple[Intervention, ...]) -> tuple[Intervention, ...]:
        """Order entries by ``at``; entries of one step keep their order."""
        return tuple(sorted(entries, key=lambda entry: entry.at))

    @model_validator(mode="after")
    def _fields_fit_together(self) -> TrainingConfig:
        if self.warmup > self.steps:
            raise ValueError(f"warmup = {self.warmup} is longer than steps = {self.steps}")
        if self.rollback is not None and not self.can_be_stacked:
            known = ", ".join(OPTIMIZERS)
            raise ValueError(f"rollback = {self.rollback} needs one of the optimizers {known}, not {self.optimizer}")
        if self.second_moment_start != "zero" and not self.optimizer_facts.can_start_second_moment:
            known = ", ".join(facts.name for facts in OPTIMIZERS.values() if facts.can_start_second_moment)
            start = f"second_moment_start = {self.second_moment_start}"
            raise ValueError(f"{start} needs one of the optimizers {known}, not {self.optimizer}")
        if self.second_moment_decay == 1:
            tokens = f"the {self.tokens_per_step} tokens of a step"
            raise ValueError(f"beta2_half_life = {self.beta2_half_life} is too long for {tokens}: beta2 would be 1")
        check_entries(self)
        check_rules(self)
        if self.rollback is not None and ever_holds(self, "optimizer"):
            problem = "the snapshot has an earlier second moment than the one to keep; leave one of them out"
            raise ValueError(f"rollback = {self.rollback} and sgd_like exclude each other: {problem}")
        return self

    @property
    def optimizer_facts(self) -> Optimizer:
        """Facts about the optimizer that are known without loading it."""
        return facts_of(self.optimizer)

    @property
    def can_be_stacked(self) -> bool:
        """Whether members can train together. A library's optimizer handles one model at a time."""
        return self.optimizer_facts.can_be_stacked

    @property
    def has_native_kernels(self) -> bool:
        """Whether the objective has C++ code for this structure on a CPU."""
        return False

    def weight_factor(self, purpose: str, name: str, group: str) -> float:
        """Return the factor on ``lr``, ``grad``, ``eps`` or ``decay`` of the weight ``name`` of a layer group."""
        return getattr(self, f"{group}_{purpose}", 1.0) if purpose in ("lr", "grad") else 1.0

    def acting(self) -> dict[str, Any]:
        """Return the fields that affect training, as plain data, without other optimizers and features that are off."""
        return acting(self)

    @property
    def later_values(self) -> Sequence[Mapping[str, Number]]:
        """Fields that interventions set and rules may set, with their values or factors."""
        return [*(entry.set for entry in self.interventions), *may_set(self.control)]

    @property
    def weight_groups(self) -> tuple[str, ...] | None:
        """Layer groups and parts of the depth that interventions may name; None if only the trainer knows them."""
        return None

    @property
    def takes_float64(self) -> bool | None:
        """Whether a member may change to double precision; None if only the trainer knows."""
        return None

    def in_float64(self) -> Self:
        """Return the configuration of a member that has changed to double precision."""
        return self

    @property
    def can_cap_attention(self) -> bool:
        """Whether there are queries and keys to shrink."""
        return False

    @property
    def signals(self) -> tuple[str, ...]:
        """Signals that a control rule can read with these settings."""
        facts = self.optimizer_facts
        curvature = ("curvature", "curvature_along_gradient") if facts.has_divisor else ()
        return ("step", "loss", "grad_norm", *curvature, *(("v_lag",) if facts.has_v else ()))

    @property
    def is_own_loop(self) -> bool:
        """Whether it is a training loop of the user's own."""
        return False

    @property
    def second_moment_decay(self) -> float:
        """``beta2``, or 0.5^(tokens per step / half-life) (Marek et al., arXiv 2507.07101)."""
        if self.beta2_half_life is None:
            return self.beta2
        return 0.5 ** (self.tokens_per_step / self.beta2_half_life)

    @property
    def tokens_per_step(self) -> int:
        """Training examples per step; tokens if the examples are text."""
        return self.batch_size
