"""Packed optimizers: one fused pass over flat (K, n) buffers, with every hyperparameter a (K,) tensor.

All parameters of member k are row k of one (K, n) tensor. Clipping, masking and the update are therefore a few
elementwise operations for any number of layers and members, without host synchronisation.

A step: multiply the gradient by ``embedding_grad`` and the like, clip it, add coupled weight decay; apply the rule;
multiply its update by ``embedding_lr`` and the like; apply any other weight decay; subtract the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from objectives.base import TrainingConfig
from objectives.held import Held
from objectives.optimizers.advance import Stages, StepNumbers, advance
from objectives.optimizers.clipping import Clipping
from objectives.optimizers.holder import HELD_STATES, Holder
from objectives.optimizers.rules import rule_of
from objectives.optimizers.rules.rule import Numbers, States, UpdateRule
from objectives.optimizers.schedules import schedule_factor
from objectives.optimizers.second_moment import SecondMomentStart
from objectives.stacking import Compiled, Layout, continued

# Shapes: K members, R observed ones, n parameters per member, T weights.

_COMMON_FIELDS = ("lr", "warmup", "weight_decay", *Clipping.fields, *SecondMomentStart.fields)
_PURPOSES = ("lr", "grad", "eps", "decay")  # of the factors that may differ by weight
Rows = torch.Tensor | slice  # an index of members, or a slice for all


@dataclass(frozen=True, slots=True)
class Observed:
    """What one step did to some members, (R, n) each, for telemetry. Read it before the next step.

    The gradient is before clipping. The update includes the learning rate and coupled weight decay, but no other weight
    decay. ``clip_factor_R`` is the share of the gradient's norm that clipping left.
    """

    params_Rn: torch.Tensor
    grad_Rn: torch.Tensor
    update_Rn: torch.Tensor
    clip_factor_R: torch.Tensor


class PackedOptimizer:
    """An update rule for K members, each with its own warmup, schedule, clipping and weight decay.

    ``weight_decay`` w is decoupled, theta <- (1 - lr w) theta (Loshchilov & Hutter, arXiv 1711.05101); coupled, adding
    w theta to the clipped gradient; or independent of the peak learning rate, theta <- (1 - s w) theta with the
    schedule's factor s (Wortsman et al., arXiv 2309.14322).

    A field ``<group>_lr`` of the configuration multiplies the learning rate of that layer group, in its update and its
    decoupled decay, as in a parameter group of ``torch.optim``. A field ``<group>_grad`` multiplies the group's
    gradient before clipping, and so enters ``grad_norm`` (GLM-130B does so in its backward pass: Zeng et al., arXiv
    2210.02414). ``TrainingConfig.weight_factor`` may also give a weight its own eps and decoupled decay.
    """

    def __init__(
        self,
        params_Kn: torch.Tensor,
        configs: Sequence[TrainingConfig],
        layout: Layout,
        *,
        compiled: bool,
        native: bool = False,
        seeds: Sequence[int] | None = None,
    ) -> None:
        """``seeds`` are for a random start of the second moment, which raises ValueError without them."""
        self._is_native = native
        self.structure, self.layout = configs[0], layout
        self.rule = self._make_rule()
        self.start = SecondMomentStart(self.structure.second_moment_start, layout)
        self.params_Kn = params_Kn
        self._read_numbers(configs)
        device = params_Kn.device
        self.alive_K = torch.ones(len(configs), dtype=torch.bool, device=device)
        # Each member's updates and steps so far; a held member's step is not an update. A member may join a pack that
        # has already started.
        self.age_K = torch.zeros(len(configs), dtype=torch.float64, device=device)
        self.step_K = torch.zeros_like(self.age_K)
        self.states = self._empty_states()
        self.start.begin(self.states, range(len(configs)), self.numbers, seeds)
        self._advance = Compiled(advance) if compiled else advance
        # On a CPU, reading a flag costs nothing and saves useless passes over memory.
        self._may_look = device.type == "cpu" and not compiled
        self.lr_K = self.numbers["lr"]

    def _make_rule(self) -> UpdateRule:
        return rule_of(self.structure.optimizer, native=self._is_native)(self.structure, self.layout)

    def _read_numbers(self, configs: Sequence[TrainingConfig]) -> None:
        # Hyperparameters are in double precision: 1 - 0.9999 in single precision is off by 6e-4. They are rounded only
        # when they meet the parameters.
        fields = (*_COMMON_FIELDS, *self.structure.optimizer_facts.numbers)
        self.numbers = {name: self._tensor([_number(config, name) for config in configs]) for name in fields}
        self.clipping = Clipping(configs, self.layout)
        self.holder = Holder(configs, self.layout, self.params_Kn.device)
        self._factor_KT = {purpose: self._factors(configs, purpose) for purpose in _PURPOSES}
        self._has_decay = any(config.weight_decay > 0 for config in configs)

    def _tensor(self, values: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.params_Kn.device)

    def _factors(self, configs: Sequence[TrainingConfig], purpose: str) -> torch.Tensor | None:
        """Return the factor of every weight, (K, T), or None if all are 1."""
        names = [(purpose, piece.name, piece.group) for piece in self.layout.pieces]
        values = [[config.weight_factor(*name) for name in names] for config in configs]
        return None if all(value == 1 for row in values for value in row) else self._tensor(values)

    def renew(self, rows: Sequence[int], configs: Sequence[TrainingConfig]) -> None:
        """Give the members ``rows`` the numbers of their new ``configs``; the others keep theirs."""
        index = torch.tensor(rows, device=self.params_Kn.device)
        values_FR = self._tensor([[_number(config, name) for config in configs] for name in self.numbers])
        # Not in place: readings and the last learning rates may share their memory.
        self.numbers = {
            name: value_K.index_copy(0, index, new_R)
            for (name, value_K), new_R in zip(self.numbers.items(), values_FR, strict=True)
        }
        old = self._factor_KT
        self._factor_KT = {purpose: self._renewed_factors(old[purpose], index, configs, purpose) for purpose in old}
        self._has_decay = self._has_decay or any(config.weight_decay > 0 for config in configs)

    def _renewed_factors(
        self, factor_KT: torch.Tensor | None, index: torch.Tensor, configs: Sequence[TrainingConfig], purpose: str
    ) -> torch.Tensor | None:
        if (new_RT := self._factors(configs, purpose)) is factor_KT is None:
            return None
        size = (len(self.params_Kn), len(self.layout.pieces))
        factor_KT = factor_KT if factor_KT is not None else self.params_Kn.new_ones(size, dtype=torch.float64)
        new_RT = new_RT if new_RT is not None else factor_KT.new_ones(len(configs), size[1])
        return factor_KT.index_copy(0, index, new_RT)

    def restart(self, row: int, seeds: Sequence[int]) -> None:
        """Give the member ``row`` the states of a new member. Its schedule and clipping continue.

        Its bias correction restarts too, as for a new optimizer.
        """
        for name in (*self.rule.state_sizes(), *self.start.states(self.params_Kn)):
            self.states[name][row] = 0
        self.age_K[row] = 0
        self.start.begin(self.states, [row], self.numbers, seeds)

    def rescale(self, row: int, names: Sequence[str], factor: float) -> None:
        """Multiply the states ``names`` of the member ``row``. Their bias correction continues."""
        for name in set(names) & self.states.keys():
            # Zero is assigned: a product with zero would keep non-finite numbers.
            self.states[name][row] = self.states[name][row] * factor if factor else 0

    def _empty_states(self) -> States:
        """Return states of zeros."""
        dtypes, params_Kn = self.rule.state_types, self.params_Kn
        of_rule = {
            name: params_Kn.new_zeros(len(params_Kn), size, dtype=dtypes.get(name, params_Kn.dtype))
            for name, size in self.rule.state_sizes().items()
        }
        return of_rule | self.clipping.states(params_Kn) | self.start.states(params_Kn) | self.holder.states(params_Kn)

    def take_hessian(self, rows: torch.Tensor, hessian_Rn: torch.Tensor) -> None:
        """Pass estimates of the Hessian's diagonal to a rule that ``needs_hessian``, before a step.

        ``rows`` are the members whose ``rule.hessian_is_due``. The estimates, (R, n), are at the parameters and
        data of the next step: u (H u) with u normal, a function of seed and step (Hutchinson).
        """
        self.rule.take_hessian(self.states, rows, hessian_Rn, self.numbers)

    def step(
        self, loss_K: torch.Tensor, grad_Kn: torch.Tensor, *, held_K: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Update in place, overwriting ``grad_Kn``, and return the step's metrics, shape (K,) each.

        A member with a non-finite loss or gradient norm is masked, starting with this update: its parameters stay, and
        from the next step its metrics are NaN.

        Members in ``held_K`` are not updated at this step; only their schedule advances. A non-finite loss masks them,
        a non-finite gradient does not.
        """
        return self._holding_step(loss_K, self._weighted(grad_Kn), held_K)[0]

    def observed_step(
        self,
        loss_K: torch.Tensor,
        grad_Kn: torch.Tensor,
        rows: Rows,
        *,
        held_K: torch.Tensor | None = None,
    ) -> tuple[dict[str, torch.Tensor], Observed]:
        """Do a ``step`` and also return what it did to the members in ``rows``."""
        before = (self.params_Kn[rows], self._weighted(grad_Kn)[rows])
        # For a slice these are views of buffers that the step overwrites.
        params_Rn, grad_Rn = (value.clone() for value in before) if isinstance(rows, slice) else before
        metrics, update_Kn, clip_factor_K = self._holding_step(loss_K, grad_Kn, held_K)
        return metrics, Observed(params_Rn, grad_Rn, update_Kn[rows], clip_factor_K[rows])

    def hold(self, row: int, held: Held, begins: Held) -> None:
        """Hold what ``held`` says for the member ``row``; ``begins`` is the part that has just begun."""
        self.holder.begin(row, begins, self.params_Kn, self.states, self.age_K)
        self.holder.change(row, held)
        self._has_decay = self._has_decay or any(held.decay.values())

    def _holding_step(
        self, loss_K: torch.Tensor, grad_Kn: torch.Tensor, held_K: torch.Tensor | None
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Do a ``_step`` that leaves frozen weights and kept norms as they were."""
        kept = self.holder.before(self.params_Kn, self.states, grad_Kn)
        metrics, update_Kn, clip_factor_K = self._step(loss_K, grad_Kn, held_K)
        if kept is not None:
            updated_K = self.alive_K if held_K is None else self.alive_K & ~held_K
            self.holder.after(kept, self.params_Kn, self.states, update_Kn, updated_K)
            norm_K = metrics["update_norm"]
            metrics["update_norm"] = torch.where(norm_K.isnan(), norm_K, self.rule.norms(update_Kn))
        return metrics, update_Kn, clip_factor_K

    def acting_numbers(self) -> Numbers:
        """Return the hyperparameters, and the age of second moments that stand still."""
        still_K = self.holder.still_age(self.states)
        return self.numbers if still_K is None else {**self.numbers, "still_age": still_K}

    def _weighted(self, grad_Kn: torch.Tensor) -> torch.Tensor:
        """Multiply the gradient by the factors of its layer groups, in place."""
        if (factor_KT := self._factor_KT["grad"]) is not None:
            self.layout.scale(grad_Kn, factor_KT.to(grad_Kn.dtype))
        return grad_Kn

    def _step(
        self, loss_K: torch.Tensor, grad_Kn: torch.Tensor, held_K: torch.Tensor | None
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Return metrics, the update, and the share of the gradient's norm that clipping left."""
        was_alive_K = self.alive_K
        schedule_K = schedule_factor(self.structure, self.step_K, self.numbers["warmup"])
        self.lr_K = lr_K = self.numbers["lr"] * schedule_K
        age_K = self.age_K + 1
        self.alive_K, grad_norm_K, update_norm_K, update_Kn, clip_factor_K = self._advance(
            Stages(self.layout, self.clipping, self.start, self.rule, self._may_look),
            self._step_numbers(schedule_K, lr_K, age_K, self.acting_numbers()),
            self.states,
            self.params_Kn,
            grad_Kn,
            loss_K,
            was_alive_K,
            held_K,
        )
        self.step_K = self.step_K + 1
        self.age_K = age_K if held_K is None else torch.where(held_K, self.age_K, age_K)
        lr_K = lr_K.to(self.params_Kn.dtype)
        metrics = {"loss": loss_K, "grad_norm": grad_norm_K, "update_norm": update_norm_K, "lr": lr_K}
        metrics = {name: value.masked_fill(~was_alive_K, float("nan")) for name, value in metrics.items()}
        return metrics, update_Kn, clip_factor_K

    def _step_numbers(
        self, schedule_K: torch.Tensor, lr_K: torch.Tensor, age_K: torch.Tensor, number: Numbers
    ) -> StepNumbers:
        """Return the numbers of a step, computed in double precision and rounded to the parameters' type."""
        dtype, kind = self.params_Kn.dtype, self.structure.weight_decay_kind
        lr_factor_KT, decay_factor_KT = self._factor_KT["lr"], self._factor_KT["decay"]

        def rows(values_K: Numbers) -> Numbers:
            return {name: value_K.to(dtype)[:, None] for name, value_K in values_K.items()}

        coupled_K1 = kept_K1 = None
        weight_decay_K1 = self.holder.decay(number["weight_decay"])
        if kind == "coupled":
            coupled_K1 = weight_decay_K1.to(dtype)
            coupled_K1 = self.layout.spread(coupled_K1) if coupled_K1.shape[1] > 1 else coupled_K1
        elif self._has_decay:
            decay_K1 = (lr_K if kind == "decoupled" else schedule_K)[:, None] * weight_decay_K1
            for factor_KT in (lr_factor_KT, decay_factor_KT) if kind == "decoupled" else ():
                decay_K1 = decay_K1 if factor_KT is None else decay_K1 * factor_KT
            kept_K1 = (1 - decay_K1).to(dtype)
        rule_K1 = rows(self.rule.scalars(number, lr_K, age_K))
        if (factor_KT := self._factor_KT["eps"]) is not None:
            rule_K1 = {**rule_K1, "eps": self.layout.spread(rule_K1["eps"] * factor_KT.to(dtype))}
        return StepNumbers(
            clip={name: number[name] for name in Clipping.fields},
            coupled_decay_K1=coupled_K1,
            start_K1=rows(self.start.scalars(number, age_K)),
            rule_K1=rule_K1,
            lr_factor_KT=None if lr_factor_KT is None else lr_factor_KT.to(dtype),
            kept_K1=kept_K1,
        )

    def arrange(
        self,
        rows: torch.Tensor,
        params_Kn: torch.Tensor,
        configs: Sequence[TrainingConfig],
        seeds: Sequence[int] | None = None,
    ) -> None:
        """Rearrange to members that continue ``rows`` of the old pack, -1 for a new one.

        ``params_Kn`` is their parameter buffer, ``configs`` their configurations, ``seeds`` as in the constructor.
        """
        self.params_Kn = params_Kn
        self._read_numbers(configs)
        self.alive_K = continued(self.alive_K, rows) | (rows < 0)
        self.age_K, self.step_K = continued(self.age_K, rows), continued(self.step_K, rows)
        self.lr_K = self.lr_K[rows.clamp(min=0)]
        kept = {name: continued(state, rows) for name, state in self.states.items()}
        # A method that was off for all members has no state to continue.
        self.states = {name: kept.get(name, empty) for name, empty in self._empty_states().items()}
        self.start.begin(self.states, [k for k, row in enumerate(rows.tolist()) if row < 0], self.numbers, seeds)

    def live(self) -> dict[str, torch.Tensor]:
        """Return the state that members continue with, (K, ...) each, read and written in place.

        What members hold is not a part of it: an intervention that holds goes on after a rollback.
        """
        states = {name: state for name, state in self.states.items() if name not in HELD_STATES}
        return {"age": self.age_K, "step": self.step_K, "alive": self.alive_K, **states}

    def state_dict(self) -> dict[str, Any]:
        """Return moments, mask and ages. Hyperparameters come from the configs."""
        states = {name: state.clone() for name, state in self.states.items()}
        counts = {"age": self.age_K.clone(), "step": self.step_K.clone()}
        return counts | {"alive": self.alive_K.clone(), "states": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the ``state_dict`` of an optimizer with the same members."""
        self.age_K, self.step_K, self.alive_K = (state[name].clone() for name in ("age", "step", "alive"))
        for name, value in self.states.items():
            value.copy_(state["states"].get(name, torch.zeros_like(value)))

    def of_rows(self, rows: Rows) -> tuple[States, Numbers, torch.Tensor]:
        """Return the states, numbers and ages of the members in ``rows``: the arguments of a rule's readings.

        An eps that differs by weight is (R, n).
        """
        states = {name: state[rows] for name, state in self.states.items()}
        numbers = {name: value[rows] for name, value in self.acting_numbers().items()}
        if (factor_KT := self._factor_KT["eps"]) is not None and "eps" in numbers:
            numbers["eps"] = self.layout.spread(numbers["eps"][:, None] * factor_KT[rows])
        return states, numbers, self.age_K[rows]

    def divisor(self, rows: Rows) -> torch.Tensor | None:
        """Return the divisor of lr times the first moment at the last step, (R, n), or None if it is not diagonal.

        It is the rule's divisor over the learning-rate factors of the layer groups; infinite if a factor is zero.
        """
        divisor_Rn = self.rule.divisor(*self.of_rows(rows))
        if divisor_Rn is None or (factor_KT := self._factor_KT["lr"]) is None:
            return divisor_Rn
        return divisor_Rn / self.layout.spread(factor_KT[rows].to(divisor_Rn.dtype))


def _number(config: TrainingConfig, name: str) -> float:
    """Return a field as a number, with infinity for null."""
    value = config.second_moment_decay if name == "beta2" else getattr(config, name)
    return float("inf") if value is None else value
