"""Callbacks that watch training in other libraries' trainers, one module per library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def gradient_norm(parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor | None:
    """Return the norm of all gradients together, including DTensors, or None without gradients.

    With DTensors it is a collective: every process that holds a shard must call it.
    """
    import torch

    by_mesh: dict[Any, list[torch.Tensor]] = {}  # torch sums over the shards of one mesh at a time
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None:
            whole = grad.coalesce().values() if grad.is_sparse else grad
            by_mesh.setdefault(getattr(grad, "device_mesh", None), []).append(whole)
    norms = [torch.nn.utils.get_total_norm(grads) for grads in by_mesh.values()]
    norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else None
