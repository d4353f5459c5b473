"""The sums of telemetry by the C++ kernel: one pass over memory in place of twenty."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

from objectives.native import library
from objectives.native.cache import kernel_folder
from objectives.stacking import Layout

# Shapes: Q quantities, R observed members, n parameters per member, T weights.

_NUM_QUANTITIES = 8  # the last five need moments, the last two the first moment
_NUM_WITHOUT_MOMENTS, _NUM_WITHOUT_FIRST = 3, 6


class StepValues(NamedTuple):
    """What one step did to some members, (R, n) each: gradients, updates, weights, and moments or None.

    ``eps`` is (R,), or (R, n) if it differs by weight.
    """

    grad_Rn: torch.Tensor
    update_Rn: torch.Tensor
    weight_Rn: torch.Tensor
    first_moment_Rn: torch.Tensor | None
    second_moment_Rn: torch.Tensor | None
    eps: torch.Tensor


def native_sums(layout: Layout, values: StepValues) -> torch.Tensor:
    """Return the ``sums_per_weight`` of objectives/instruments/telemetry.py, (Q, R, T); NaN without the moments."""
    if values.second_moment_Rn is None:
        values = values._replace(first_moment_Rn=None)
    grad_Rn, pieces = values.grad_Rn, layout.pieces
    num_rows, size = grad_Rn.shape
    buffers = [None if value is None else value.contiguous() for value in values[:-1]]
    eps_R = values.eps.contiguous()
    addresses = (ctypes.c_void_p * len(buffers))(*(None if value is None else value.data_ptr() for value in buffers))
    sums_QRT = grad_Rn.new_empty(_NUM_QUANTITIES, num_rows, len(pieces))
    real = "double" if grad_Rn.dtype == torch.float64 else "float"
    library.load("telemetry", kernel_folder(), real).telemetry_sums(
        *(ctypes.c_int64(count) for count in (num_rows, size, len(pieces))),
        _places([piece.start for piece in pieces]),
        _places([piece.end for piece in pieces]),
        addresses,
        ctypes.c_void_p(eps_R.data_ptr()),
        ctypes.c_void_p(sums_QRT.data_ptr()),
    )
    if values.second_moment_Rn is None:
        sums_QRT[_NUM_WITHOUT_MOMENTS:] = torch.nan
    elif values.first_moment_Rn is None:
        sums_QRT[_NUM_WITHOUT_FIRST:] = torch.nan
    return sums_QRT


def _places(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)
