"""An optimizer of torch in the user's own loop, whose updates follow an ``Action``.

The learning rate is changed for the time of an update only, and set back after it: whatever a scheduler or the loop
writes into ``param_groups`` is the rate without rules, and neither overwrites the factor nor multiplies it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from objectives.action import Action
from objectives.instruments.update_line import are_flattened

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class SteeredOptimizer:
    """Change the next updates of ``optimizer`` as ``action`` says; ``close`` ends it.

    With a closure, gradients are changed after it was called, so that an action may also be set within it.
    """

    def __init__(self, optimizer: Any, *, may_clip: bool = True) -> None:
        """Raise ValueError if it ``may_clip`` gradients split over processes, as in FSDP1."""
        self._optimizer = inner(optimizer)
        if may_clip and are_flattened(self._parameters()):
            raise ValueError(
                "a rule clips, and gradients in FullyShardedDataParallel have no norm here: clip by "
                "model.clip_grad_norm_ in the loop, or use fully_shard (FSDP2)"
            )
        self.action: Action | None = None
        self._rates: list[tuple[dict[str, Any], Any]] = []  # groups, and their rates without the factor
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(lambda *_: self._restore_rates()),
        ]

    def close(self) -> None:
        """Leave the optimizer alone."""
        for hook in self._hooks:
            hook.remove()

    def _before_step(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Steer now, or after the closure, which is the first argument after the optimizer itself."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._steer()
            return None
        if len(args) > 1:
            return (args[0], self._steered(closure), *args[2:]), kwargs
        return args, {**kwargs, "closure": self._steered(closure)}

    def _steered(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def steered() -> Any:
            loss = closure()
            self._steer()
            return loss

        return steered

    @torch.no_grad()
    def _steer(self) -> None:
        """Scale the rates, and clip the gradients or drop them."""
        self._restore_rates()
        action = self.action
        if action is None:
            return
        if action.skip:
            for parameter in self._parameters():
                parameter.grad = None  # an optimizer of torch leaves such a parameter, and its state, as they are
            return
        if action.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self._parameters()), action.clip)
        if action.factor != 1.0:
            for group in self._optimizer.param_groups:
                self._rates.append((group, group["lr"]))
                group["lr"] = group["lr"] * action.factor

    def _restore_rates(self) -> None:
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates = []

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (parameter for group in self._optimizer.param_groups for parameter in group["params"])


def inner(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer of torch within wrappers, such as Accelerate's. Raises TypeError for anything else."""
    own = optimizer
    while not hasattr(own, "_optimizer_step_pre_hooks"):
        own = getattr(own, "optimizer", None)
        if own is None:
            raise TypeError(f"{type(optimizer).__name__} is not an optimizer of torch: follow the action yourself")
    return own
