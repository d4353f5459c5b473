"""The callback for Hugging Face's Trainer."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from objectives.action import Action
from orchestrator.base.environment import install_command
from orchestrator.base.errors import InputError
from orchestrator.callbacks import reported
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.policies import PolicyLike
from orchestrator.detection.watch import Watch

try:
    import torch
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(f"this callback needs Hugging Face's transformers: {install_command('transformers')}") from error

logger = logging.getLogger(__name__)


class StabilityCallback(TrainerCallback):
    """Watch each optimizer step of a Trainer and stop training once the run is lost.

    Use ``Trainer(..., callbacks=[StabilityCallback()])``; afterwards ``watch`` has the outcome. Within a sweep it
    reports to the sweep. Each ``train()`` is a separate run. Steps count from 0, as in a sweep: the Trainer's step 1 is
    step 0 here.

    The loss is the return value of the Trainer's `training_step`, summed over a step's micro-batches as the Trainer
    does. It is taken before the Trainer's filter of non-finite losses, excludes evaluation, and works with any loss
    function. The gradient norm is measured before clipping: the Trainer clips before every callback hook, so the norm
    is the return value of the accelerator's `clip_grad_norm_`. If the Trainer does not call that method, there is no
    norm.

    With ``curvature`` the watch reads telemetry, and every so many steps the curvature by forward passes on the step's
    last batch (`docs/warning.md`).

    With rules, ``control=...``, a step is reported before its update, which follows them. To go back, the callback
    keeps snapshots in memory. Checkpoints have the state of the rules, and a resumed run goes on with it. Outside a
    sweep, a run without rules that resumes from a checkpoint is judged without its past.
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
        self._inputs: Any = None
        self._taps: list[_Tap] = []
        self._loss: Any = None
        self._norm: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the Trainer. Raises InputError if none is running."""
        self._close_taps()  # the last training may have raised an error and left some
        self._forget()
        if self.watch.record().num_steps:
            self.watch = self._new_watch()
        if self.watch.has_rules:
            kept = _checkpoint(args, state)
            if kept.is_file():
                self.watch.load_state_dict(torch.load(kept, weights_only=True))
            self.watch.keep(kwargs["model"], kwargs["optimizer"], kwargs["lr_scheduler"])
        trainer = _running_trainer()
        self._taps = [
            _Tap(trainer, "training_step", self._hear_loss),
            _Tap(trainer.accelerator, "clip_grad_norm_", self._hear_norm),
        ]
        if self._curvature is not None:
            self._taps.append(_Tap(trainer, "_prepare_inputs", self._hear_inputs))
            # Hooks of an optimizer that Accelerate wraps would not be called.
            optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
            self.watch.telemetry(
                trainer.model, optimizer, lambda: self._loss_of(trainer), curvature=self._curvature, by="forwards"
            )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """With rules, report the optimizer step before it is taken, and let it follow them."""
        if self.watch.has_rules:
            self.watch.apply(kwargs["optimizer"], self._report(state, control, before=0))
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Without rules, report the optimizer step that was just taken. Raises InputError if its loss was not seen."""
        if not self.watch.has_rules:
            self._report(state, control, before=1)
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the state of the rules to a checkpoint."""
        if self.watch.has_rules and state.is_world_process_zero:
            torch.save(self.watch.state_dict(), _checkpoint(args, state))

    def _report(self, state: TrainerState, control: TrainerControl, before: int) -> Action:
        """Report the step that is so many before the next one."""
        if self._loss is None:
            raise InputError(
                "this Trainer takes its steps without `training_step`, so its loss is not seen\n"
                "    remedy: report each step from its own loop, with orchestrator.detection.watch.Watch"
            )
        own_logger = logger if state.is_world_process_zero else None
        action = reported(self.watch, state.global_step - before, self._loss, self._norm, own_logger)
        if action:
            control.should_training_stop = True
        self._forget()
        return action

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the Trainer's methods."""
        self._close_taps()

    def _hear_loss(self, loss: Any) -> None:
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def _hear_norm(self, norm: Any) -> None:
        self._norm = norm

    def _hear_inputs(self, inputs: Any) -> None:
        self._inputs = dict(inputs)  # the Trainer may take the labels out

    def _loss_of(self, trainer: Trainer) -> Any:
        """Return the loss of the last batch."""
        if self._inputs is None:
            raise InputError(
                "this Trainer prepares its batches without `_prepare_inputs`, so none is seen\n"
                "    remedy: leave out `curvature`"
            )
        with trainer.compute_loss_context_manager():
            return trainer.compute_loss(trainer.model_wrapped, dict(self._inputs))

    def _forget(self) -> None:
        self._loss, self._norm, self._inputs = None, None, None

    def _close_taps(self) -> None:
        for tap in self._taps:
            tap.close()
        self._taps = []


class _Tap:
    """Capture the return values of an object's method until closed; the method works as before."""

    def __init__(self, owner: Any, name: str, hear: Callable[[Any], None]) -> None:
        self._owner, self._name = owner, name
        self._hear: Callable[[Any], None] | None = hear
        self._own_before = vars(owner).get(name)
        method = getattr(owner, name)

        @functools.wraps(method)
        def tapped(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if self._hear is not None:
                self._hear(result)
            return result

        self._tapped = tapped
        setattr(owner, name, tapped)

    def close(self) -> None:
        """Stop capturing, and restore the method unless other code has wrapped it since."""
        self._hear = None
        if vars(self._owner).get(self._name) is not self._tapped:
            return
        if self._own_before is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own_before)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return where the state of the rules is in the checkpoint of this step."""
    return Path(args.output_dir or "") / f"checkpoint-{state.global_step}" / "watch.pt"


def _running_trainer() -> Trainer:
    """Return the Trainer that called the callback, found on the stack. Raises InputError if there is none.

    The hook's arguments include everything except the Trainer. A hook on the model would not suffice: with label
    smoothing or a custom loss function the Trainer computes the loss outside the model, and only the Trainer knows
    whether micro-batches are summed or averaged.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    raise InputError(
        "this callback works in a transformers.Trainer only\n"
        "    remedy: in another loop report each step with orchestrator.detection.watch.Watch"
    )
