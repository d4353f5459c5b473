"""Fields of a mixture of experts in place of the transformer's MLP, free of torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from objectives.fields import Condition, per_member, structural, when
from objectives.training_config import TrainingConfig

_HAS_EXPERTS = Condition("experts is above 0", lambda settings: bool(settings["experts"]))
_SWITCH_WEIGHT = 0.01  # of Fedus et al., arXiv 2101.03961


class ExpertFields(TrainingConfig):
    """The fields of a mixture of experts: a router chooses ``top_k`` experts for each token."""

    experts: int = structural(
        0,
        "experts",
        "MLPs from which a token uses top_k (Shazeer et al. 2017); 0 for one MLP",
        off=True,
        ge=0,
        le=256,
    )
    top_k: int = structural(1, "experts", "experts that a token uses", acts=_HAS_EXPERTS, ge=1, le=256)
    gate: Literal["softmax", "sigmoid"] = structural(
        "softmax", "kind", "probability of an expert: softmax or sigmoid of the router's logits", acts=_HAS_EXPERTS
    )
    shared_experts: int = structural(
        0, "experts", "further experts that every token uses", acts=_HAS_EXPERTS, off=True, ge=0, le=256
    )
    balance: Literal["aux", "loss_free"] | None = per_member(
        None,
        "kind",
        "what evens out the load: Switch's loss, a bias on the choice (Wang et al. 2024), or null for nothing",
        acts=_HAS_EXPERTS,
        off=True,
    )
    balance_weight: float | None = per_member(
        None,
        "1",
        "weight of Switch's loss, with any balance; null for 0.01 with aux and 0 with the others",
        acts=_HAS_EXPERTS,
        off=True,
        changes=True,
        ge=0,
    )
    balance_step: float = per_member(
        1e-3,
        "probability",
        "change of an expert's bias in a step",
        acts=_HAS_EXPERTS & when("balance", "loss_free"),
        changes=True,
        ge=0,
    )
    router_z_loss: float = per_member(
        0.0,
        "1",
        "weight of the mean squared logsumexp of the router's logits (Zoph et al. 2022: 1e-3)",
        acts=_HAS_EXPERTS,
        off=True,
        changes=True,
        ge=0,
    )
    router_noise: float = per_member(
        0.0,
        "logits",
        "standard deviation of noise on the router's logits in training",
        acts=_HAS_EXPERTS,
        off=True,
        changes=True,
        ge=0,
    )
    router_lr: float = per_member(1.0, "of lr", "learning rate of the router", acts=_HAS_EXPERTS, off=True, ge=0)
    router_init: float = per_member(
        1.0, "1", "factor on the router's initial weights", acts=_HAS_EXPERTS, off=True, ge=0
    )
    capacity: float | None = per_member(
        None,
        "of the mean",
        "largest load of an expert in training, beyond which it drops tokens; null for any",
        acts=_HAS_EXPERTS,
        off=True,
        changes=True,
        gt=0,
    )

    @field_validator("experts", "shared_experts", mode="before")
    @classmethod
    def _null_is_zero(cls, value: Any) -> Any:
        return 0 if value is None else value

    @model_validator(mode="after")
    def _experts_fit_together(self) -> ExpertFields:
        if self.experts == 1:
            raise ValueError("experts = 1 leaves a token no choice: set 0 for one MLP, or at least 2")
        if self.experts and self.top_k > self.experts:
            raise ValueError(f"top_k = {self.top_k} is more than experts = {self.experts}")
        return self

    @property
    def signals(self) -> tuple[str, ...]:
        """Also what the loads of experts are."""
        return (*super().signals, *(("router_gini", "router_dead") if self.experts else ()))

    @property
    def aux_weight(self) -> float:
        """Weight of Switch's loss in the loss."""
        if self.balance_weight is None:
            return _SWITCH_WEIGHT if self.balance == "aux" else 0.0
        return self.balance_weight

    @property
    def bias_step(self) -> float:
        """Change of an expert's bias in a step, 0 without ``balance: loss_free``."""
        return self.balance_step if self.balance == "loss_free" else 0.0
