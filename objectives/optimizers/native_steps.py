"""Several steps of AdamW for each member before the next one, by the C++ kernel and in its cache.

To the bit, the steps are those of ``PackedOptimizer`` with native kernels.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.optimizers.rules.native_adamw import NativeAdamW, kernel_of

# Shapes: T steps, K members, n parameters per member.

_STATES = ("params", "first_moment", "second_moment", "alive")
_NUMBERS = ("clip", "first_weight", "second_weight", "eps", "step_size", "kept")
_METRICS = ("loss", "grad_norm", "update_norm")


class _Steps(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("members", "n")),
        *((name, ctypes.c_void_p) for name in (*_STATES, *_NUMBERS, *_METRICS)),
    ]


def can_step_ahead(optimizer: PackedOptimizer) -> bool:
    """Return whether the kernel has all that this optimizer does between a gradient and the parameters."""
    return isinstance(optimizer.rule, NativeAdamW) and optimizer.is_plain


@dataclass(frozen=True)
class NativeSteps:
    """The next T steps of an optimizer: its numbers, and room for what they report, (T, K) each."""

    optimizer: PackedOptimizer
    numbers: dict[str, torch.Tensor]
    metrics: dict[str, torch.Tensor]
    was_alive_K: torch.Tensor
    kernel: ctypes.CDLL
    arguments: _Steps

    @classmethod
    def of(cls, optimizer: PackedOptimizer, count: int) -> NativeSteps:
        """Prepare ``count`` steps of an optimizer that ``can_step_ahead``."""
        params_Kn = optimizer.params_Kn
        numbers = optimizer.numbers_ahead(count)
        metrics = {name: params_Kn.new_empty(count, len(params_Kn)) for name in _METRICS}
        was_alive_K, optimizer.alive_K = optimizer.alive_K, optimizer.alive_K.clone()
        states = {"params": params_Kn, **optimizer.states, "alive": optimizer.alive_K}
        buffers = {name: states[name] for name in _STATES} | numbers | metrics
        assert all(buffer.is_contiguous() for buffer in buffers.values())
        addresses: dict[str, Any] = {
            name: buffers[name].data_ptr() for name in (*_STATES, *_NUMBERS, *_METRICS) if name in buffers
        }
        arguments = _Steps(members=len(params_Kn), n=params_Kn.shape[1], **addresses)
        return cls(optimizer, numbers, metrics, was_alive_K, kernel_of(params_Kn.dtype), arguments)

    @property
    def function(self) -> ctypes.c_void_p:
        """The address of the function that takes a member's gradient at a step; ``arguments`` are its first ones."""
        return ctypes.cast(self.kernel.adamw_step, ctypes.c_void_p)

    def finish(self) -> list[dict[str, torch.Tensor]]:
        """Count the steps, and return the metrics of each, (K,)."""
        lr_TK, (loss_TK, norm_TK, _) = self.numbers["lr"], self.metrics.values()
        self.optimizer.count(len(lr_TK), lr_TK)
        # A member has metrics up to the step that masks it.
        is_sound_TK = torch.isfinite(loss_TK) & torch.isfinite(norm_TK)
        was_alive_TK = torch.cat([self.was_alive_K[None], is_sound_TK[:-1]]).cumprod(0).bool()
        by_name = {**self.metrics, "lr": lr_TK.to(loss_TK.dtype)}
        if not was_alive_TK.all():
            by_name = {name: value.masked_fill(~was_alive_TK, float("nan")) for name, value in by_name.items()}
        return [{name: value_TK[t] for name, value_TK in by_name.items()} for t in range(len(lr_TK))]
