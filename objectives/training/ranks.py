"""Several processes that share each batch of a trial: rank 0 trains, and all ranks compute the gradient.

Rank 0 sends each rank its sequences and the weights, and gets the mean of their losses and gradients. All that a step
does besides (optimizer, rules, readings, checkpoints) is in rank 0 alone, so the weights of all ranks are equal to the
bit. A broadcast of the weights and a reduction of the gradient move as much as one all-reduce of the gradient would.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from objectives.base import RankLost

# Shapes: K members, n parameters per member.

Differentiate = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # losses (K,) and gradients (K, n)
# Rank 0 may validate or write a checkpoint meanwhile; the death of a process ends its connections at once.
_TIMEOUT = datetime.timedelta(days=1)


class Ranks:
    """The processes that share the batches of a trial, as one of them sees them."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        """Meet the others by ``store``, and connect to them. Raises RankLost."""
        self.size = size
        with _losses():
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)

    def bounds(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the sequences of each rank among those from ``first`` to ``end``, which it divides evenly."""
        share = (end - first) // self.size
        return [(first + rank * share, first + (rank + 1) * share) for rank in range(self.size)]

    def mean(
        self, params_Kn: torch.Tensor, parts: Sequence[tuple[Any, ...]], differentiate: Differentiate, *, is_new: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean of ``differentiate(*part)`` over the part of each rank; in rank 0.

        The weights are sent if they are new since the last call. Raises RankLost.
        """
        with _losses():
            dist.scatter_object_list([None], [None, *((part, is_new) for part in parts[1:])])
            if is_new:
                dist.broadcast(params_Kn, 0)
        loss_K, grad_Kn = differentiate(*parts[0])
        loss_K, grad_Kn = loss_K.contiguous(), grad_Kn.contiguous()
        with _losses():
            for value in (loss_K, grad_Kn):
                dist.reduce(value, 0)
        return loss_K / self.size, grad_Kn.div_(self.size)

    def serve(self, params_Kn: torch.Tensor, differentiate: Differentiate) -> None:
        """Answer rank 0, with its weights in ``params_Kn``, until it ends or cannot be reached: raises RankLost."""
        received: list[Any] = [None]
        while True:
            with _losses():
                dist.scatter_object_list(received, None)
                part, is_new = received[0]
                if is_new:
                    dist.broadcast(params_Kn, 0)
            values = differentiate(*part)
            with _losses():
                for value in values:
                    dist.reduce(value.contiguous(), 0)

    def close(self) -> None:
        """Disconnect from the others."""
        dist.destroy_process_group()


@contextmanager
def _losses() -> Iterator[None]:
    """Raise RankLost for what torch raises if another process cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(str(error).partition("\n")[0]) from error
