"""The callback for Lightning."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.base.environment import install_command
from orchestrator.base.errors import InputError
from orchestrator.callbacks import gradient_norm, reported
from orchestrator.detection.config import StoppingConfig
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
    once more, and trains on up to `min_epochs` and `min_steps`. Outside a sweep, a run that resumes from a checkpoint
    is judged without its past.
    """

    def __init__(self, stopping: StoppingConfig | None = None, *, curvature: int | None = None) -> None:
        self.watch = Watch(stopping)
        self._stopping, self._curvature = stopping, curvature
        self._batch: tuple[Any, int] | None = None
        self._begin(num_steps=0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a new run."""
        if self.watch.record().num_steps:
            self.watch = Watch(self._stopping)
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

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Measure the gradient: Lightning clips after this hook."""
        if not isinstance(trainer.strategy, DeepSpeedStrategy | FSDPStrategy):
            norm = gradient_norm(parameter for group in optimizer.param_groups for parameter in group["params"])
            self._norms += [] if norm is None else [norm]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the loss of a micro-batch, and report after the last micro-batch of an optimizer step.

        Raises InputError if manual optimization does not return its loss.
        """
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
        losses, norms = self._losses, self._norms
        self._begin(trainer.global_step)
        if not losses:  # training_step returned None, which skips a batch
            return
        loss = sum(losses) / len(losses)
        norm = float(np.max([float(norm) for norm in norms])) if norms else None  # NaN is the largest
        if reported(self.watch, trainer.global_step - 1, loss, norm, logger if trainer.is_global_zero else None):
            trainer.should_stop = True

    def _begin(self, num_steps: int) -> None:
        """Start collecting for the next step, after ``num_steps`` steps of the run."""
        self._num_steps = num_steps
        self._losses: list[torch.Tensor] = []
        self._norms: list[torch.Tensor] = []
