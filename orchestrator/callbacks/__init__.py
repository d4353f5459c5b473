"""Callbacks that watch training in other libraries' trainers, one module per library."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from objectives.action import Action
    from orchestrator.detection.watch import Watch


def reported(watch: Watch, step: int, loss: Any, norm: Any, logger: logging.Logger | None) -> Action:
    """Report a step, log the loss of the run and notes with ``logger`` if there is one, return what to do."""
    was_lost = watch.is_lost
    action = watch.report(step, loss, norm)
    if logger is not None and watch.is_lost and not was_lost:
        logger.warning("training stops after %d steps: %s", step + 1, watch.lost_reason)
    if logger is not None and (note := watch.note) is not None:
        logger.warning("note: %s", note)
    return action


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
