"""Products of the transformer's Hessian and vectors by the C++ kernel: the derivative of its passes along a vector."""

from __future__ import annotations

from pathlib import Path

import torch

from objectives.base import GptConfig
from objectives.models.gpt_knobs import Knobs
from objectives.models.gpt_native import address, made, numbers_of
from objectives.native import library
from objectives.stacking import Layout

# Shapes: R members, B sequences, S bytes per sequence, n parameters per member.


class NativeHessian:
    """The gradient of R members, (R, n), and products with their Hessians, each member by itself.

    It keeps the activations of both passes for its lifetime.
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
        params_Rn, tokens_RBS = params_Rn.contiguous(), tokens_RBS.contiguous()
        numbers, values = numbers_of([knobs])
        self._kept = params_Rn, values  # the kernel reads them again for each product
        self.loss_R, self.gradient_Rn = params_Rn.new_empty(len(params_Rn)), torch.empty_like(params_Rn)
        places = [address(value) for value in (params_Rn, tokens_RBS, self.loss_R, self.gradient_Rn)]
        sizes = len(params_Rn), tokens_RBS.shape[1], torch.get_num_threads()
        if self._kernel.hessian_take(self._points, numbers, *sizes, *places):
            raise MemoryError("bad_alloc in the native kernel")

    def hessian_product(self, vector_Rn: torch.Tensor) -> torch.Tensor:
        """Return the Hessian of each member times its row of ``vector_Rn``, (R, n). Raises MemoryError."""
        vector_Rn = vector_Rn.contiguous()
        product_Rn, sizes = torch.empty_like(vector_Rn), (len(vector_Rn), torch.get_num_threads())
        if self._kernel.hessian_product(self._points, *sizes, address(vector_Rn), address(product_Rn)):
            raise MemoryError("bad_alloc in the native kernel")
        return product_Rn
