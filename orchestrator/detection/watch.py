"""The detector for a custom training loop: give it the loss of each step, and it says what to do.

    watch = Watch()
    for step in range(num_steps):
        ...
        if watch.report(step, loss, grad_norm):
            break

With rules, ``Watch(control=...)``, it also says how to save the run, and ``watch.apply(optimizer, action)`` does so.
After ``watch.telemetry(model, optimizer, closure)`` it also reads the optimizer's steps and estimates the risk of an
instability in the next steps: ``watch.risk``, and ``watch.warning`` while an alarm is active.

In a process that a sweep started, the same lines report to the sweep, and `watch.config` has the trial's values.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from objectives.action import Action
from orchestrator.base.errors import InputError, Problem
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord
from orchestrator.detection.outcomes import Verdict
from orchestrator.detection.partial_sums import TrialMonitor
from orchestrator.detection.rows import append_row, read_rows, readings_by_step, row_of
from orchestrator.detection.run_monitor import NOTE
from orchestrator.detection.warning.monitor import Risk, WatchedSteps

if TYPE_CHECKING:
    from orchestrator.detection.policies import PolicyLike
    from orchestrator.detection.steering import Steering

TRIAL_VARIABLE = "SWEEP_TRIAL"  # names the file of the trial that this process trains


class TrainingLost(Exception):
    """Raised by ``Watch(raises=True)`` when the run is lost. Do not catch it: it ends the training."""


class _Trial(BaseModel):
    """What the sweep passes to this process."""

    model_config = ConfigDict(frozen=True, strict=True)  # a newer sweep may pass more

    trial_id: str
    config: dict[str, Any]
    seed: int
    steps: int
    stopping: StoppingConfig
    is_audited: bool = False  # trains on after a verdict
    rows: Path
    telemetry: Path | None = None  # an older sweep passes none
    control: list[dict[str, Any]] | None = None  # None for the rules of the script
    folder: Path


class Watch:
    """Watch one run: ``report`` takes a step and returns an ``Action``, which is true if the run should stop.

    ``control`` are rules that act on the run (docs/control.md): a list of them, or a file with the key `control`. In a
    sweep, its stopping settings and its `control`, if it has the key, replace ``stopping`` and ``control``, so one
    script works in both. Nulls in ``stopping`` mean the same as in `sweep replay` for a log of unknown origin. With
    ``raises``, a run that should stop raises ``TrainingLost`` instead. ``norm_rises`` turns notes on rising gradient
    norms on or off; by default they are off if there are more than ten steps between reports.

    In a sweep, each report becomes a line of the trial's rows file, written by the process of rank 0 (the environment
    variable RANK, or torch.distributed once it is initialised). If that file has rows of an earlier attempt, this run
    continues them: they are judged first, and reports up to the last one are ignored. Each reading of telemetry becomes
    a line of another file.

    If torch.distributed is initialised with several processes, each must report each step. The reports of rank 0 are
    judged, and all processes get its answer or its error.
    """

    def __init__(
        self,
        stopping: StoppingConfig | None = None,
        *,
        raises: bool = False,
        norm_rises: bool | None = None,
        control: PolicyLike | None = None,
    ) -> None:
        self._trial = _this_trial()
        self._stopping = (stopping or StoppingConfig()) if self._trial is None else self._trial.stopping
        self._raises = raises
        is_audited, all_steps = (
            (False, math.inf) if self._trial is None else (self._trial.is_audited, self._trial.steps)
        )
        self._monitor = TrialMonitor(self._stopping, is_audited, (), all_steps, norm_rises)
        self._is_lost = False
        self._last_step: int | None = None
        self._is_shared = False  # whether all processes know what rank 0 knows
        self._steps: WatchedSteps | None = None
        if self._trial is not None and self._trial.control is not None:
            control = self._trial.control
        self._steering: Steering | None = None
        if control is not None:
            from orchestrator.detection.steering import Steering  # takes a while

            self._steering = Steering(control, self.steps)
        if self._trial is not None:
            self._continue(self._trial)
        self._resumed_step = self._last_step

    def report(self, step: int, loss: Any, grad_norm: Any = None, **metrics: Any) -> Action:
        """Report one step. Return what to do, true if the run should stop. Numbers may be tensors of one element.

        Raises ValueError if ``step`` does not increase, TypeError for anything except a number, StorageError if a
        sweep's row cannot be written, and TrainingLost for a run that should stop if the watch raises.
        """
        row = row_of(step, loss, grad_norm, metrics)
        processes = _processes()
        if processes is None:
            self._take(row, writes=rank() == 0)
        else:
            self._report_together(row, processes)
        if self._steps is not None:
            self._keep(step, self._steps.follow(step, self._monitor.record().episodes))
        action = self._action(step)
        if self._raises and action:
            raise TrainingLost(
                f"the run is lost: {action.reason}" if self._is_lost else f"a rule ends it: {action.words}"
            )
        return action

    def apply(self, optimizer: Any, action: Action) -> None:
        """Let the next update of torch's ``optimizer`` follow ``action``: its rate, clipping, or leaving it out.

        What a scheduler or the loop sets is the rate without rules: the factor applies during the update alone. After
        ``keep``, it also returns to a snapshot, or takes one. Raises TypeError for another optimizer.
        """
        if self._steering is not None:
            self._steering.apply(optimizer, action)

    def keep(self, *parts: Any, every: int | None = None, folder: str | os.PathLike[str] | None = None) -> None:
        """Let ``apply`` take snapshots of model, optimizer, scheduler and the like, and return to them.

        They are taken every ``every`` steps, by default half of the fewest steps that a rule goes back, and kept in
        memory or in ``folder``, where a resumed run finds those before its first step. Each process needs a folder of
        its own.
        """
        if self._steering is not None and self._steering.policy.farthest:
            self._steering.keep(parts, every, None if folder is None else Path(folder))

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint: what is known of the run, and what its rules have counted and done."""
        policy = None if self._steering is None else self._steering.policy.state_dict()
        known = {"last_step": self._last_step, "is_lost": self._is_lost, "control": policy}
        return {"monitor": self._monitor.state_dict(), **known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict``. In a sweep it is ignored: the run resumes from what the sweep has kept."""
        if self._trial is None:
            self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        self._monitor.load_state_dict(state["monitor"])
        self._last_step, self._is_lost = state["last_step"], state["is_lost"]
        if self._steering is not None and state["control"] is not None:
            self._steering.policy.load_state_dict(state["control"])

    def telemetry(
        self,
        model: Any,
        optimizer: Any,
        closure: Callable[[], Any] | None = None,
        *,
        every: int = 5,
        curvature: int = 25,
        products: int = 1,
        by: str = "products",
    ) -> None:
        """Start to read every ``every``-th step of torch's ``optimizer`` on ``model``.

        ``closure()`` returns the loss of a sample batch without calling ``backward``. With it, the curvature is
        measured every ``curvature`` steps by ``products`` Hessian-vector products, at the cost of two gradients each.
        Four products every 5 steps predict more instabilities (docs/warning.md). Reading does not change training. Of
        several processes only rank 0 reads: give it the model within DistributedDataParallel.
        With ``by="forwards"`` it takes six forward passes instead, and works with a compiled or sharded model (FSDP2).
        Then every process must call this, and ``closure`` may use collectives.
        Raises ValueError if the optimizer does not train the model, or sharded parameters cannot be read.
        """
        if self._steps is not None:
            self._steps.close()
        if rank() == 0 or by == "forwards":
            self._steps = WatchedSteps(model, optimizer, closure, every, curvature, products, by, self.record)

    @property
    def risk(self) -> Risk | None:
        """The risk of an instability in the next steps, at the last reading of telemetry; None while unknown."""
        return None if self._steps is None else self._steps.risk

    @property
    def warning(self) -> str | None:
        """A line for the user while an alarm is active, else None."""
        return None if self._steps is None or self._last_step is None else self._steps.warning(self._last_step)

    @property
    def readings(self) -> dict[str, float]:
        """The last reading of telemetry, for a log; empty without one."""
        return {} if self._steps is None else self._steps.reading

    @property
    def has_rules(self) -> bool:
        """Whether it has rules, its own or a sweep's."""
        return self._steering is not None

    @property
    def fired(self) -> list[dict[str, Any]]:
        """What its rules have done so far, in order."""
        return [] if self._steering is None else list(self._steering.policy.fired)

    @property
    def is_lost(self) -> bool:
        """Whether the run should stop; always false without ``early_stop``."""
        return self._is_lost

    @property
    def lost_reason(self) -> str | None:
        """Why the run is lost."""
        return self.record().lost_reason if self._is_lost else None

    @property
    def note(self) -> str | None:
        """A note if the gradient norm had just risen by half at the last report, else None."""
        rises = self._monitor.norm_rises()
        return f"{NOTE}, at step {rises[-1]}" if rises and rises[-1] == self._last_step else None

    @property
    def is_run_by_sweep(self) -> bool:
        """Whether a sweep started this process for a trial."""
        return self._trial is not None

    @property
    def config(self) -> dict[str, Any]:
        """The trial's values in a sweep, else empty."""
        return {} if self._trial is None else dict(self._trial.config)

    @property
    def folder(self) -> Path | None:
        """The trial's folder in a sweep, for files of the training."""
        return None if self._trial is None else self._trial.folder

    @property
    def seed(self) -> int | None:
        """The trial's seed in a sweep."""
        return None if self._trial is None else self._trial.seed

    @property
    def steps(self) -> int | None:
        """The number of steps of the trial in a sweep."""
        return None if self._trial is None else self._trial.steps

    def record(self) -> MemberRecord:
        """Return what the detector knows about the run so far."""
        return self._monitor.record()

    def verdict(self) -> Verdict:
        """Return the outcome of the run if it ended now. Raises ValueError before the first report."""
        if self.record().num_steps == 0:
            raise ValueError("a run without a reported step has no outcome")
        return self._monitor.verdict()

    def _report_together(self, row: Mapping[str, Any], processes: ModuleType) -> None:
        """Judge the row of rank 0 and send the result. The other detectors follow, for their records."""
        news: list[Any] = [None]
        is_first, self._is_shared = not self._is_shared, True
        if processes.get_rank() == 0:
            error = None
            try:
                row = self._take(row, writes=True)
            except Exception as raised:  # the other ranks wait for an answer, even an error
                error = raised
            # The other ranks may not see the rows of an earlier attempt, so they get the resulting state.
            past = (self.state_dict(), self._resumed_step) if is_first else None
            news = [(row, self._is_lost, past, error)]
        processes.broadcast_object_list(news, src=0)
        seen, is_lost, past, error = news[0]
        if error is not None:
            raise error
        if seen["step"] != row["step"]:
            raise ValueError(f"step {row['step']} was reported while rank 0 reported step {seen['step']}")
        if processes.get_rank() != 0:
            if past is None:
                self._take(seen, writes=False, is_known=True)
            else:
                state, self._resumed_step = past
                self._load(state)
            self._is_lost = is_lost

    def _take(self, row: Mapping[str, Any], *, writes: bool, is_known: bool = False) -> Mapping[str, Any]:
        """Take a row, and return it with what rules do; if it ``is_known``, another process has decided that."""
        step = row["step"]
        if self._resumed_step is not None and step <= self._resumed_step:
            return row
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(
                f"step {step} was reported after step {self._last_step}: steps must increase. "
                "A run that starts again needs a new Watch"
            )
        if self._steering is not None and not is_known:
            row = self._steering.fire(row, logs=writes, has_telemetry=self._steps is not None or rank() != 0)
        elif self._steering is not None:
            self._steering.repeat(row)
        if writes and self._trial is not None:
            append_row(self._trial.rows, row)
        self._judge(row)
        return row

    def _continue(self, trial: _Trial) -> None:
        """Judge the rows of an earlier attempt, and let rules count its readings."""
        readings = {} if trial.telemetry is None or self._steering is None else readings_by_step(trial.telemetry)
        for row in read_rows(trial.rows):
            if self._last_step is None or row["step"] > self._last_step:
                if self._steering is not None:
                    self._steering.repeat(row)
                    self._steering.policy.read(row["step"], readings.get(row["step"], {}))
                self._judge(row)

    def _action(self, step: int) -> Action:
        if self._is_lost:
            return Action(step, "stop", reason=self.lost_reason or "")
        return Action(step) if self._steering is None else self._steering.policy.action(step)

    def _keep(self, step: int, reading: Mapping[str, float] | None) -> None:
        """Write a reading of ``step`` for the sweep, after the row of that step."""
        is_new = self._resumed_step is None or step > self._resumed_step
        if reading is not None and is_new and self._steering is not None:
            self._steering.policy.read(step, reading)
        is_new = is_new and rank() == 0
        if reading is not None and is_new and self._trial is not None and self._trial.telemetry is not None:
            append_row(self._trial.telemetry, {"step": step, **reading})

    def _judge(self, row: Mapping[str, Any]) -> None:
        self._is_lost = self._monitor.update_single(row["step"], row)
        self._last_step = row["step"]


def _this_trial() -> _Trial | None:
    """Return the trial that a sweep runs in this process, or None. Raises InputError if its file is invalid."""
    name = os.environ.get(TRIAL_VARIABLE)
    if not name:
        return None
    remedy = f"{TRIAL_VARIABLE} is set by a sweep for the training that it starts; unset it for a run of your own"
    try:
        return _Trial.model_validate_json(Path(name).read_bytes())
    except OSError as error:
        raise InputError(Problem(name, TRIAL_VARIABLE, error.strerror or str(error), remedy)) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(Problem(name, key, first["msg"], remedy)) from error


def rank() -> int:
    """Return the rank of this process among the training processes, 0 if it trains alone."""
    processes = _processes()
    return int(os.environ.get("RANK", "0")) if processes is None else int(processes.get_rank())


def _processes() -> ModuleType | None:
    """Return torch.distributed if several processes train together, else None. Never imports torch itself."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None
