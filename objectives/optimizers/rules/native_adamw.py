"""AdamW by the C++ kernel: one pass over memory in place of seven.

The moments have torch's bits. The root is rounded correctly, which torch's is not everywhere.
"""

from __future__ import annotations

import ctypes

import torch

from objectives.native import library
from objectives.native.cache import kernel_folder
from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.rule import Numbers, States


class NativeAdamW(AdamW):
    """``AdamW``, faster on a CPU; float32 and float64."""

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return lr * m / (sqrt(v) + eps) in the memory of the gradient."""
        if scalars_K1["eps"].shape[1] > 1:  # differs by weight
            return super().update(states, grad_Kn, params_Kn, scalars_K1)
        numbers = [scalars_K1[name].contiguous() for name in ("first_weight", "second_weight", "eps", "step_size")]
        buffers = [grad_Kn, states["first_moment"], states["second_moment"], *numbers]
        kernel_of(grad_Kn.dtype).adamw_update(*_sizes(grad_Kn), *map(_address, buffers))
        return grad_Kn

    def norms(self, value_Kn: torch.Tensor) -> torch.Tensor:
        """Return the Euclidean norm of each member's row, (K,), as whole steps of the kernel sum it."""
        norm_K, value_Kn = value_Kn.new_empty(len(value_Kn)), value_Kn.contiguous()
        kernel_of(value_Kn.dtype).adamw_norms(*_sizes(value_Kn), *map(_address, (value_Kn, norm_K)))
        return norm_K


def kernel_of(dtype: torch.dtype) -> ctypes.CDLL:
    """Return the kernel for numbers of this type, compiled at the first call."""
    return library.load("adamw", kernel_folder(), "double" if dtype == torch.float64 else "float")


def _sizes(value_Kn: torch.Tensor) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(size) for size in value_Kn.shape]


def _address(buffer: torch.Tensor) -> ctypes.c_void_p:
    assert buffer.is_contiguous()
    return ctypes.c_void_p(buffer.data_ptr())
