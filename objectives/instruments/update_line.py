"""The loss along the last update of any torch optimizer, and putting everything back afterwards.

Parameters may be sharded by FSDP2: each process moves its shards, and all processes read at the same steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from objectives.instruments.critical_step import critical_steps

# Shapes: R members, of which there is one.

Closure = Callable[[], torch.Tensor]


def local(value: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process holds, without a graph; it shares the tensor's memory."""
    value = value.detach()
    return value.to_local() if hasattr(value, "to_local") else value


def are_flattened(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether FSDP1 has joined ``parameters`` and cut them at any place, so that no process has a whole one."""
    return any(getattr(parameter, "_fsdp_flattened", False) for parameter in parameters)


@torch.no_grad()
def critical_step(
    module: torch.nn.Module,
    parameters: Sequence[torch.Tensor],
    before: Sequence[torch.Tensor],
    closure: Closure,
    start: float,
) -> float:
    """Return the smallest step along the update that raises the loss, 1 for the update itself, NaN if unknown.

    ``parameters`` are ``local`` ones after the update, ``before`` their values before it; ``start`` as in
    ``critical_steps``. Parameters, buffers and random streams are as before afterwards. Of several processes, all must
    call it, and the loss is the mean of theirs.
    """
    with untouched(module, parameters) as after:

        def losses(step_R: torch.Tensor) -> torch.Tensor:
            for parameter, first, last in zip(parameters, before, after, strict=True):
                dtype = torch.promote_types(first.dtype, torch.float32)
                parameter.copy_(first.to(dtype) + step_R.item() * (last.to(dtype) - first.to(dtype)))
            _forget_copies(module)
            with random_streams_of(parameters):
                return _mean_of_processes(closure())

        found = critical_steps(losses, torch.tensor([start], dtype=torch.float64))
    _forget_copies(module)
    return float(found)


@contextmanager
def untouched(module: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Restore parameters and the module's buffers after the block, which gets the parameters' values."""
    after = [parameter.detach().clone() for parameter in parameters]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield after
    finally:
        with torch.no_grad():
            for value, old in (*zip(parameters, after, strict=True), *buffers):
                value.copy_(old)


def random_streams_of(parameters: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
    """Return a block after which the random streams of the parameters' devices continue as if it had drawn none."""
    devices = {parameter.device for parameter in parameters if parameter.device.type == "cuda"}
    return torch.random.fork_rng(devices=list(devices))


def _forget_copies(module: torch.nn.Module) -> None:
    """Drop copies of parameters that would be used after these changed: gathered by FSDP2, or cast by autocast."""
    torch.clear_autocast_cache()
    sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())  # imported if any module is one
    for part in module.modules():
        if isinstance(part, sharded):
            part.reshard()


def _mean_of_processes(loss: torch.Tensor) -> torch.Tensor:
    """Return the mean of all processes' losses, float64, (R,), on the CPU."""
    whole = getattr(loss, "full_tensor", loss.clone)()
    loss_R = whole.detach().to(torch.float64).reshape(1)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        distributed.all_reduce(loss_R)
        loss_R /= distributed.get_world_size()
    return loss_R.cpu()
