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

    _kernel: ctypes.CDLL | None = None  # loaded at the first step, which shows the type of numbers

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return lr * m / (sqrt(v) + eps) in the memory of the gradient."""
        if scalars_K1["eps"].shape[1] > 1:  # differs by weight
            return super().update(states, grad_Kn, params_Kn, scalars_K1)
        if self._kernel is None:
            real = "double" if grad_Kn.dtype == torch.float64 else "float"
            self._kernel = library.load("adamw", kernel_folder(), real)
        numbers = [scalars_K1[name].contiguous() for name in ("first_weight", "second_weight", "eps", "step_size")]
        buffers = [grad_Kn, states["first_moment"], states["second_moment"], *numbers]
        assert all(buffer.is_contiguous() for buffer in buffers)
        sizes = (ctypes.c_int64(size) for size in grad_Kn.shape)
        self._kernel.adamw_update(*sizes, *(ctypes.c_void_p(buffer.data_ptr()) for buffer in buffers))
        return grad_Kn
