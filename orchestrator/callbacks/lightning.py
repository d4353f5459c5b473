"""The callback for Lightning."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from objectives.action import Action
from orchestrator.base.environment import install_command
from orchestrator.base.errors import InputError
from orchestrator.callbacks import gradient_norm, reported
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.policies import PolicyLike
from orchestrator.detection.watch import Watch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
except ImportError as error:
    raise ImportError(f"this callback needs Lightning: {install_command('lightning')}") from error

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class StabilityCallback(Callback):
    """Watch each optimizer step of a Lightning Trainer and stop training once the run is lost.

    Use ``Trainer(callbacks=[StabilityCallback()])``; afterwards ``watch`` has the outcome. Within a sweep it reports to
    the sweep. Each ``fit()`` is a separate run. A step is an optimizer step, counted from 0; if a batch takes
    several optimizer steps, only the last one is reported.

    The loss is the return value of `training_step`, averaged over a step's micro-batches, and never of validation.
    With manual optimization, `training_step` must return it. The gradient norm is measured before clipping (the largest
    one if several optimizers step). It is unscaled if there is a loss scaler, except with fused optimizers.
    FSDPStrategy and DeepSpeedStrategy shard gradients over processes and hide them, so the norm is missing.

    With ``curvature`` the watch reads telemetry, and every so many steps the curvature by forward passes on the step's
    last batch (`docs/warning.md`): it calls `training_step` some more times, without its `log`.

    A rise of the gradient norm by half is logged as a note. After the callback has stopped a run, Lightning validates
    once more, and trains on up to `min_epochs` and `min_steps`.

    With rules, ``control=...``, a step is reported before its update, which follows them; with manual optimization it
    is reported after it, and the next update follows them. To go back, the callback keeps snapshots in memory.
    Checkpoints have the state of the rules, and a resumed run goes on with it. Outside a sweep, a run without rules
    that resumes from a checkpoint is judged without its past.
    """

    def __init__(
        self,
        stopping: StoppingConfig | None = None,
        *,
        curvature: int | None = None,
        control: PolicyLike | None = None,
    ) -> None:
        self._new_watch = functools.partial(Watch, stopping, control=control)
        self.watch = self._new_watch()
        self._curvature = curvature
        self._batch: tuple[Any, int] | None = None
        self._is_resumed = False
        self._begin(num_steps=0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rules for a checkpoint; empty without rules."""
        return self.watch.state_dict() if self.watch.has_rules else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume the rules from a checkpoint."""
        if state_dict and self.watch.has_rules:
            self.watch = self._new_watch()
            self.watch.load_state_dict(state_dict)
            self._is_resumed = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a new run."""
        if self.watch.record().num_steps and not self._is_resumed:
            self.watch = self._new_watch()
        self._is_resumed = False
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self.watch.keep(pl_module, *trainer.optimizers, *schedulers)
        self._begin(trainer.global_step)
        if self._curvature is not None:
            if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
                raise InputError(
                    "the curvature is read with automatic optimization by one optimizer\n"
                    "    remedy: leave out `curvature`, or call `Watch.telemetry` with a closure"
                )
            loss = functools.partial(self._loss_of, trainer, pl_module)
            self.watch.telemetry(pl_module, trainer.optimizers[0], loss, curvature=self._curvature, by="forwards")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keep the batch for the curvature."""
        self._batch = None if self._curvature is None else (batch, batch_idx)

    def _loss_of(self, trainer: Trainer, pl_module: LightningModule) -> Any:
        """Return the loss of the last batch, without logging."""
        assert self._batch is not None, "a step has a batch"
        pl_module.log = lambda *_, **__: None  # type: ignore[method-assign]
        try:
            output = trainer.strategy.training_step(*self._batch)
        finally:
            del pl_module.log
        return output["loss"] if isinstance(output, dict) else output

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Record the loss of a micro-batch for a report before the update."""
        if self._reports_before(pl_module):
            self._losses.append(loss.detach() * trainer.accumulate_grad_batches)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Measure the gradient: Lightning clips after this hook."""
        if not isinstance(trainer.strategy, DeepSpeedStrategy | FSDPStrategy):
            norm = gradient_norm(parameter for group in optimizer.param_groups for parameter in group["params"])
            self._norms += [] if norm is None else [norm]
        if self._reports_before(pl_module):
            self.watch.apply(optimizer, self._report(trainer, trainer.global_step))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the loss of a micro-batch, and report after the last micro-batch of an optimizer step.

        Raises InputError if manual optimization does not return its loss.
        """
        if self._reports_before(pl_module):
            return
        loss = None if outputs is None else outputs.get("loss")
        if loss is not None:
            # Lightning has divided it by this number, even if the last step of an epoch has fewer micro-batches.
            self._losses.append(loss.detach() * trainer.accumulate_grad_batches)
        elif not pl_module.automatic_optimization:
            raise InputError(
                "with manual optimization the loss is seen only if `training_step` returns it\n"
                "    remedy: return the loss, or a dict with the key 'loss'"
            )
        if trainer.global_step == self._num_steps:
            return
        if not self._losses:  # training_step returned None, which skips a batch
            self._begin(trainer.global_step)
            return
        action = self._report(trainer, trainer.global_step - 1)
        self._begin(trainer.global_step)
        if self.watch.has_rules:
            for optimizer in trainer.optimizers:
                self.watch.apply(optimizer, action)

    def _reports_before(self, pl_module: LightningModule) -> bool:
        """Whether a step is reported before its update."""
        return self.watch.has_rules and pl_module.automatic_optimization

    def _report(self, trainer: Trainer, step: int) -> Action:
        losses, norms = self._losses, self._norms
        self._begin(self._num_steps)
        loss = sum(losses) / len(losses)
        norm = float(np.max([float(norm) for norm in norms])) if norms else None  # NaN is the largest
        action = reported(self.watch, step, loss, norm, logger if trainer.is_global_zero else None)
        if action:
            trainer.should_stop = True
        return action

    def _begin(self, num_steps: int) -> None:
        """Start collecting for the next step, after ``num_steps`` steps of the run."""
        self._num_steps = num_steps
        self._losses: list[torch.Tensor] = []
        self._norms: list[torch.Tensor] = []
