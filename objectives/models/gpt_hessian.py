"""Products of the transformer's Hessian and vectors by the C++ kernel: the derivative of its passes along a vector."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from objectives.base import GptConfig
from objectives.instruments.curvature import Curvature
from objectives.models.gpt_knobs import Knobs
from objectives.models.gpt_native import address, made, numbers_of
from objectives.native import library
from objectives.stacking import Layout

# Shapes: R members, B sequences, S bytes per sequence, n parameters per member.


class NativeHessian:
    """The gradient of R members, (R, n), and products with their Hessians, each member by itself.

    Once asked for these, it keeps the activations of both passes of every member; ``curvature`` keeps one member's.
    """

    def __init__(
        self,
        structure: GptConfig,
        layout: Layout,
        folder: Path,
        params_Rn: torch.Tensor,
        tokens_RBS: torch.Tensor,
        knobs: Knobs,
    ) -> None:
        """At these parameters, on these bytes. Raises RuntimeError without a kernel in ``folder``, and MemoryError."""
        real = "double" if params_Rn.dtype == torch.float64 else "float"
        self._kernel = library.load("hessian", folder, real)
        self._points = made(self, self._kernel, "hessian", structure, layout)
        self._params_Rn, self._tokens_RBS = params_Rn.contiguous(), tokens_RBS.contiguous()
        self._numbers = numbers_of([knobs])

    @property
    def loss_R(self) -> torch.Tensor:
        """The losses, (R,). Raises MemoryError."""
        return self._passes[0]

    @property
    def gradient_Rn(self) -> torch.Tensor:
        """The gradients, (R, n). Raises MemoryError."""
        return self._passes[1]

    @functools.cached_property
    def _passes(self) -> tuple[torch.Tensor, torch.Tensor]:
        loss_R, gradient_Rn = self._params_Rn.new_empty(len(self._params_Rn)), torch.empty_like(self._params_Rn)
        self._call("hessian_take", *self._point, address(loss_R), address(gradient_Rn))
        return loss_R, gradient_Rn

    def hessian_product(self, vector_Rn: torch.Tensor) -> torch.Tensor:
        """Return the Hessian of each member times its row of ``vector_Rn``, (R, n). Raises MemoryError."""
        num_members = len(self.loss_R)  # the passes at the point, whose activations the kernel keeps
        vector_Rn = vector_Rn.contiguous()
        product_Rn = torch.empty_like(vector_Rn)
        self._call("hessian_product", num_members, torch.get_num_threads(), address(vector_Rn), address(product_Rn))
        return product_Rn

    def curvature(
        self, divisor_Rn: torch.Tensor, factor_R: torch.Tensor, warm_Rn: torch.Tensor, num_products: int
    ) -> Curvature:
        """Return what ``measure_curvature`` does, up to rounding: member by member, whose vectors stay in the cache."""
        dtype = self._params_Rn.dtype
        divisor_Rn, warm_Rn = divisor_Rn.to(dtype).contiguous(), warm_Rn.to(dtype, copy=True).contiguous()
        found_2R = torch.empty(2, len(warm_Rn), dtype=torch.float64)
        places = map(address, (divisor_Rn, warm_Rn, *found_2R))
        self._call("hessian_curvature", *self._point, ctypes.c_int(num_products), *places)
        lambda_grad_R, lambda_max_R = (factor_R * found_2R).to(dtype)
        return Curvature(lambda_grad_R, lambda_max_R, warm_Rn)

    @property
    def _point(self) -> tuple[object, ...]:
        """What the kernel's passes at the point begin with."""
        sizes = len(self._params_Rn), self._tokens_RBS.shape[1], torch.get_num_threads()
        return self._numbers[0], *sizes, address(self._params_Rn), address(self._tokens_RBS)

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._kernel, name)(self._points, *arguments):
            raise MemoryError("bad_alloc in the native kernel")
