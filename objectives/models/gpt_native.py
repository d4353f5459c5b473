"""Losses and gradients of the stacked transformer by the C++ kernel, one member after the other.

The same mathematics as ``objectives.models.gpt_gradient``, rounded in another order. A member is computed by itself, in
chunks of sequences that fit the processor's cache, so its bits do not depend on the pack and memory does not grow with
it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from objectives.base import GptConfig
from objectives.models.gpt_knobs import NEUTRAL, Knobs
from objectives.models.gpt_parts import turns
from objectives.native import library
from objectives.optimizers.native_optimizer import NativeSteps
from objectives.stacking import Layout

# Shapes: K members, B sequences, S bytes per sequence, n parameters per member.

_PARTS = ("attention_norm", "qkv", "q_norm", "k_norm", "attention_out", "mlp_norm", "mlp_gate", "mlp_in", "mlp_out")
_NORMS, _PLACES = (None, "layer", "rms"), ("pre", "post", "output")
_SIZES = ("depth", "width", "heads", "kv_heads", "mlp_width", "positions", "norm", "place", "qk_norm")
_KNOBS = ("z_loss_K", "residual_scale_K", "dropout_K", "dropout_key_KB", "context_K")


class Shape(ctypes.Structure):
    """As in objectives/native/gpt_shape.hpp."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _SIZES),
        *((name, ctypes.c_double) for name in ("embedding_scale", "attention_scale", "head_scale")),
        ("angles", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("parameters", "embedding", "position", "final_norm", "head")),
        ("parts", ctypes.POINTER(ctypes.c_int64)),
    ]


class Numbers(ctypes.Structure):
    """As in objectives/native/gpt_shape.hpp."""

    _fields_ = [(name, ctypes.c_void_p) for name in _KNOBS]


def _shape_of(structure: GptConfig, layout: Layout) -> tuple[Shape, object]:
    """Return the kernels' ``Shape``, and what must stay alive until a kernel has copied it."""
    start = {piece.name: piece.start for piece in layout.pieces}
    parts = [start.get(f"{layer}.{part}", -1) for layer in range(structure.depth) for part in _PARTS]
    angle = None if structure.position != "rope" else torch.cat(turns(structure, structure.context), dim=1)
    shape = Shape(
        depth=structure.depth,
        width=structure.width,
        heads=structure.heads,
        kv_heads=structure.num_kv_heads,
        mlp_width=structure.mlp_width,
        embedding_scale=structure.embedding_scale,
        attention_scale=structure.attention_scale,
        head_scale=1 / structure.size_factors.width,
        angles=None if angle is None else angle.data_ptr(),
        positions=structure.context,
        norm=_NORMS.index(structure.norm),
        place=_PLACES.index(structure.norm_place),
        qk_norm=structure.qk_norm,
        parameters=layout.size,
        embedding=start["embedding"],
        position=start.get("position", -1),
        final_norm=start.get("final_norm", -1),
        head=start.get("head", -1),
        parts=(ctypes.c_int64 * len(parts))(*parts),
    )
    return shape, angle


def made(owner: object, kernel: ctypes.CDLL, name: str, structure: GptConfig, layout: Layout) -> ctypes.c_void_p:
    """Return what the ``kernel`` called ``name`` makes for models of one structure, until ``owner`` ends.

    Raises MemoryError.
    """
    create, destroy = (getattr(kernel, f"{name}_{what}") for what in ("create", "destroy"))
    create.restype = ctypes.c_void_p
    shape, _kept = _shape_of(structure, layout)
    handle = ctypes.c_void_p(create(ctypes.byref(shape)))
    if not handle:
        raise MemoryError
    weakref.finalize(owner, destroy, handle)
    return handle


def numbers_of(knobs: Sequence[Knobs]) -> tuple[ctypes.Array[Any], object]:
    """Return the kernels' ``Numbers`` of each step, and what they point to."""
    values = [
        {name: value.contiguous() for name in _KNOBS if (value := getattr(one, name)) is not None} for one in knobs
    ]
    numbers = (Numbers * len(knobs))(
        *(Numbers(**{name: value.data_ptr() for name, value in one.items()}) for one in values)
    )
    return numbers, values


class NativeGpt:
    """The kernel for models of one structure; ``layout`` is the order of a member's parameters."""

    def __init__(
        self,
        structure: GptConfig,
        layout: Layout,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        options: Sequence[str] = (),
    ) -> None:
        """``folder`` keeps compiled kernels; ``options`` are the compiler's. Raises RuntimeError if it fails."""
        self._kernel = library.load("gpt", folder, "double" if dtype == torch.float64 else "float", *options)
        self._crew = made(self, self._kernel, "gpt", structure, layout)

    def losses_and_gradient(
        self, params_Kn: torch.Tensor, tokens_KBS: torch.Tensor, knobs: Knobs = NEUTRAL
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each member's loss, (K,), and gradient, (K, n), zero in the padding. Raises MemoryError."""
        loss_K, grad_Kn = params_Kn.new_empty(len(params_Kn)), torch.empty_like(params_Kn)
        self._run(
            "gpt_losses_and_gradient", params_Kn, tokens_KBS[None], [knobs], [], [address(loss_K), address(grad_Kn)]
        )
        return loss_K, grad_Kn

    def readings(
        self, params_Kn: torch.Tensor, tokens_KBS: torch.Tensor, knobs: Knobs = NEUTRAL
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return loss without z-loss, ``attention_logit`` and ``log_z`` of a pass forward, (K,). Raises MemoryError.

        The last two are as in objectives.models.gpt_model.forward_readings.
        """
        found_3K = params_Kn.new_empty(3, len(params_Kn))
        self._run("gpt_readings", params_Kn, tokens_KBS[None], [knobs], [], [address(row_K) for row_K in found_3K])
        loss_K, logit_K, log_z_K = found_3K
        return loss_K, logit_K, log_z_K

    def train(
        self, params_Kn: torch.Tensor, tokens_TKBS: torch.Tensor, knobs: Sequence[Knobs], steps: NativeSteps
    ) -> None:
        """Train T steps on these batches, with the knobs of each; ``steps`` are the optimizer's. Raises MemoryError."""
        count = ctypes.c_int(len(tokens_TKBS))
        self._run("gpt_train", params_Kn, tokens_TKBS, knobs, [count], [steps.function, ctypes.byref(steps.arguments)])

    def _run(
        self,
        name: str,
        params_Kn: torch.Tensor,
        tokens_TKBS: torch.Tensor,
        knobs: Sequence[Knobs],
        counts: Sequence[Any],
        places: Sequence[Any],
    ) -> None:
        params_Kn, tokens_TKBS, num_members = params_Kn.contiguous(), tokens_TKBS.contiguous(), len(params_Kn)
        numbers, _kept = numbers_of(knobs)
        sizes = (num_members, tokens_TKBS.shape[2], torch.get_num_threads(), *counts)
        call = getattr(self._kernel, name)
        if call(self._crew, numbers, *sizes, address(params_Kn), address(tokens_TKBS), *places):
            raise MemoryError("bad_alloc in the native kernel")


def address(value: torch.Tensor) -> ctypes.c_void_p:
    """Return where the numbers of a tensor without gaps begin."""
    return ctypes.c_void_p(value.data_ptr())
