"""AdamW by the C++ kernel: whole steps in one pass, and several steps of a member while it is in the cache."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.optimizers.rules.native_adamw import NativeAdamW, kernel_of
from objectives.optimizers.schedules import schedule_factor

# Shapes: T steps, K members, n parameters per member.

_STATES = ("params", "first_moment", "second_moment", "alive")
_NUMBERS = ("clip", "first_weight", "second_weight", "eps", "step_size", "kept")
_METRICS = ("loss", "grad_norm", "update_norm")


class NativeOptimizer(PackedOptimizer):
    """A ``PackedOptimizer`` whose steps are the kernel's if it has all that they need; to the bit, they are equal."""

    @property
    def can_step_ahead(self) -> bool:
        """Whether only clipping of whole gradients and uncoupled decay come on top of AdamW."""
        has_factors = any(factor_KT is not None for factor_KT in self._factor_KT.values()) or self.holder.has_decay
        has_more = self.clipping.has_zclip or self.clipping.has_adagc or self.start.learns
        is_coupled = self.structure.weight_decay_kind == "coupled"
        return isinstance(self.rule, NativeAdamW) and not (has_factors or has_more or is_coupled)

    def begin_steps(self, count: int) -> NativeSteps:
        """Prepare the next ``count`` steps, if it ``can_step_ahead``."""
        return NativeSteps.of(self, count, self._numbers_ahead(count))

    def end_steps(self, steps: NativeSteps) -> list[dict[str, torch.Tensor]]:
        """Count the steps, which have been taken, and return the metrics of each, (K,)."""
        lr_TK = steps.numbers["lr"]
        self.step_K, self.age_K, self.lr_K = self.step_K + len(lr_TK), self.age_K + len(lr_TK), lr_TK[-1]
        return steps.by_step()

    def _step(
        self, loss_K: torch.Tensor, grad_Kn: torch.Tensor, held_K: torch.Tensor | None
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        if held_K is not None or not self.can_step_ahead:
            return super()._step(loss_K, grad_Kn, held_K)
        steps, grad_Kn = self.begin_steps(1), grad_Kn.contiguous()
        steps.take(loss_K.contiguous(), grad_Kn)
        clip_factor_K = steps.numbers["clip"][0] / (steps.metrics["grad_norm"][0] + 1e-6)
        return self.end_steps(steps)[0], grad_Kn, clip_factor_K.clamp(max=1.0)

    def _numbers_ahead(self, count: int) -> dict[str, torch.Tensor]:
        """Return the numbers of the next ``count`` steps, when all members are updated, (T, K) each.

        These are ``clip``, the rule's numbers, ``kept`` with weight decay, and ``lr`` in double precision.
        """
        ahead_T1 = torch.arange(count, dtype=torch.float64)[:, None]
        numbers = self.acting_numbers()
        if count > 1:
            numbers = {name: value_K.repeat(count) for name, value_K in numbers.items()}
        schedule_N = schedule_factor(self.structure, (self.step_K + ahead_T1).view(-1), numbers["warmup"])
        lr_N = numbers["lr"] * schedule_N
        step = self._step_numbers(schedule_N, lr_N, (self.age_K + 1 + ahead_T1).view(-1), numbers)
        found = {"clip": numbers["clip"].to(self.params_Kn.dtype), "lr": lr_N, **step.rule_K1}
        found |= {} if step.kept_K1 is None else {"kept": step.kept_K1}
        return {name: value.reshape(count, -1).contiguous() for name, value in found.items()}


class _Steps(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("members", "n")),
        *((name, ctypes.c_void_p) for name in (*_STATES, *_NUMBERS, *_METRICS)),
    ]


@dataclass(frozen=True)
class NativeSteps:
    """T steps of an optimizer as the kernel sees them: their numbers, and room for their metrics, (T, K) each."""

    numbers: dict[str, torch.Tensor]
    metrics: dict[str, torch.Tensor]
    was_alive_K: torch.Tensor
    kernel: ctypes.CDLL
    arguments: _Steps

    @classmethod
    def of(cls, optimizer: PackedOptimizer, count: int, numbers: dict[str, torch.Tensor]) -> NativeSteps:
        """Prepare ``count`` steps, which change the optimizer's parameters, states and mask."""
        params_Kn = optimizer.params_Kn
        metrics = dict(zip(_METRICS, params_Kn.new_empty(len(_METRICS), count, len(params_Kn)), strict=True))
        was_alive_K, optimizer.alive_K = optimizer.alive_K, optimizer.alive_K.clone()
        buffers = {"params": params_Kn, **optimizer.states, "alive": optimizer.alive_K, **numbers, **metrics}
        addresses: dict[str, Any] = {}
        for name in (*_STATES, *_NUMBERS, *_METRICS):
            if name in buffers:
                assert buffers[name].is_contiguous(), name
                addresses[name] = buffers[name].data_ptr()
        arguments = _Steps(members=len(params_Kn), n=params_Kn.shape[1], **addresses)
        return cls(numbers, metrics, was_alive_K, kernel_of(params_Kn.dtype), arguments)

    @property
    def function(self) -> ctypes.c_void_p:
        """The address of the function that takes a member's gradient at a step; ``arguments`` are its first ones."""
        return ctypes.cast(self.kernel.adamw_step, ctypes.c_void_p)

    def take(self, loss_K: torch.Tensor, grad_Kn: torch.Tensor) -> None:
        """Take a single step of all members; the update takes the place of the gradient."""
        places = (ctypes.c_void_p(value.data_ptr()) for value in (loss_K, grad_Kn))
        self.kernel.adamw_step_of_all(ctypes.byref(self.arguments), *places)

    def by_step(self) -> list[dict[str, torch.Tensor]]:
        """Return the metrics of each step, (K,), NaN for members that were masked before."""
        loss_TK, norm_TK, _ = self.metrics.values()
        by_name = {**self.metrics, "lr": self.numbers["lr"].to(loss_TK.dtype)}
        is_sound_TK = torch.isfinite(loss_TK) & torch.isfinite(norm_TK)
        if not (is_sound_TK.all() and self.was_alive_K.all()):
            was_alive_TK = torch.cat([self.was_alive_K[None], is_sound_TK[:-1]]).cumprod(0).bool()
            by_name = {name: value.masked_fill(~was_alive_TK, float("nan")) for name, value in by_name.items()}
        return [dict(zip(by_name, row, strict=True)) for row in zip(*by_name.values(), strict=True)]
