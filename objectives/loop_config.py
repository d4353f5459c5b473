"""A training loop of the user's own as rules see it; free of torch and numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from objectives.control import OF_ENTRIES, Rule, check_rules
from objectives.entries import Intervention, Number, factor_of
from objectives.fields import per_member
from objectives.optimizers.facts import facts_of
from objectives.optimizers.facts.optimizer import Optimizer

SIGNALS = ("step", "loss", "grad_norm", "curvature", "curvature_along_gradient", "v_lag", "not_finite")
# The signals that ``Watch.telemetry`` reads, and the columns of a reading whose quotient each is.
OF_TELEMETRY: Mapping[str, tuple[str, str | None]] = {
    "curvature": ("lambda_max", "curvature_threshold"),
    "curvature_along_gradient": ("lambda_grad", "curvature_threshold"),
    "v_lag": ("v_lag/all", None),
}
_OF_MOMENTS, _OF_LOOPS = ("reset", "rescale"), "skip"  # the latter leaves out updates of a loop
_UNKNOWN_LENGTH = 2**40  # steps of a loop whose length is not known


class LoopConfig(BaseModel):
    """A training loop as rules see it: what they may set, and what they can read."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    steps: int = _UNKNOWN_LENGTH
    lr: float = per_member(1.0, "of its own", "factor on the learning rate", gt=0)
    clip: float | None = per_member(None, "gradient norm", "largest global gradient norm", off=True, gt=0)
    interventions: tuple[Intervention, ...] = ()
    control: tuple[Rule, ...] = ()

    @property
    def optimizer(self) -> str:
        """A name for messages."""
        return "your own"

    @property
    def optimizer_facts(self) -> Optimizer:
        """Facts about an optimizer that is not known."""
        return facts_of(self.optimizer)

    @property
    def later_values(self) -> Sequence[Mapping[str, Number]]:
        """Fields that are set during training."""
        return [entry.set for entry in self.interventions]

    @property
    def weight_groups(self) -> tuple[str, ...] | None:
        """Layer groups, which only the loop knows."""
        return None

    @property
    def takes_float64(self) -> bool | None:
        """Whether the precision may change, which only the loop decides."""
        return False

    @property
    def can_cap_attention(self) -> bool:
        """Whether there are queries and keys to shrink."""
        return False

    @property
    def signals(self) -> tuple[str, ...]:
        """Signals that a loop can report."""
        return SIGNALS

    @property
    def is_own_loop(self) -> bool:
        """Whether it is a training loop of the user's own."""
        return True


def checked(rules: Sequence[Rule], steps: int | None = None) -> LoopConfig:
    """Return the configuration of a loop with ``rules``. Raises ValueError for a rule that cannot act in it."""
    config = LoopConfig(steps=_UNKNOWN_LENGTH if steps is None else steps, control=tuple(rules))
    for number, rule in enumerate(rules, 1):
        for change_number, change in enumerate(rule.do, 1):
            here = f"control rule {number}, change {change_number}"
            if "lr" in change and factor_of(change["lr"]) is None:
                raise ValueError(f"{here}: lr must be a factor such as x0.5 on the rate that the loop itself sets")
            if unknown := [key for key in OF_ENTRIES if key in change and key != _OF_LOOPS]:
                what = "the optimizers of built-in objectives" if unknown[0] in _OF_MOMENTS else "packed objectives"
                raise ValueError(f"{here}: {unknown[0]} acts on {what} only")
    check_rules(config)
    return config
