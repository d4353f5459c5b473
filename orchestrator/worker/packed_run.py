"""Run a pack: train its members, detect instabilities, report, and drop members that end."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from objectives.base import ExecutionPlan, Objective, Trainer, TrainingConfig, load_objective
from orchestrator.base.consumption import EnergyMeter, peak_device_memory, peak_memory, reset_peaks
from orchestrator.base.environment import describe_process
from orchestrator.base.packs import Checkpoint, Completed, Ending, Paused, Report, StackedPack
from orchestrator.base.trial_result import MemberResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import member_result
from orchestrator.detection.run_monitor import RunMonitor, is_audited
from orchestrator.logs.point_maker import VALIDATION
from orchestrator.worker.checkpoints import CheckpointWriter, from_bytes, random_states, set_random_states
from orchestrator.worker.kept_states import StateKeeper
from orchestrator.worker.machine import PlanChoice, choose_plan, prepare_process, release_memory, set_plan
from orchestrator.worker.members import (
    UPDATE_STEPS,
    MemberCurves,
    Roster,
    RowReadings,
    check_takes,
    closely_due,
    due,
    metrics_on_host,
    readings_of_row,
    readings_on_host,
    unread_steps,
)

# Shapes: T steps between two updates of the members, K members, R rows of the trainer.


@dataclass(frozen=True, slots=True)
class Pace:
    """How often members are updated and reported; results do not depend on it.

    A lost member trains on until the next update, masked or not; its curve still ends at the verdict.
    """

    update_steps: int = UPDATE_STEPS  # at most
    update_s: float = 1.0  # at most; with slow steps updates are more frequent, so that no worker seems to hang
    report_s: float = 1.0
    clock: Callable[[], float] = time.perf_counter  # in seconds


class PackedRun:
    """The training members of a pack, and their news since the last report."""

    roster: Roster  # training and waiting members; it and the trainer exist once the run has started
    trainer: Trainer

    def __init__(self, pack: StackedPack, pace: Pace) -> None:
        self.pack, self.trial_ids, self.pace = pack, pack.trial_ids, pace
        self.stopping = StoppingConfig(**pack.stopping)
        self.monitor = RunMonitor(self.stopping, [], rung_thresholds=pack.rung_thresholds, all_steps=pack.steps)
        self.curves = MemberCurves(pack.telemetry.curves, pack.steps)
        self.plan = ExecutionPlan(1)
        self.at_a_time = 0
        self.seconds_per_step = pace.update_s
        self.age_of: dict[int, int] = {}
        self.member_steps = 0
        self.environment: Mapping[str, str] = {}
        self.energy = EnergyMeter(pack.gpus)
        self.joules_of: dict[int, float] = {}
        self._energy_read = 0.0
        self.checkpoints = CheckpointWriter(pack.trial_ids, pack.checkpoint_s, pack.checkpoint_steps)
        self.keeper = StateKeeper(pack.keep)
        self._finished: list[MemberResult] = []

    @property
    def waited(self) -> tuple[str, ...]:
        """Trials that wait for a free row."""
        return tuple(self.trial_ids[member] for member in self.roster.waiting) if hasattr(self, "roster") else ()

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """Yield a report about every second and one per checkpoint; the last one is Completed or Paused."""
        prepare_process()
        reset_peaks()
        self.roster = roster = self._start()
        last_report = -math.inf  # the first update shows at once that it trains
        while roster.training:
            num_steps, began = self._steps_to_next_update(), self.pace.clock()
            self._update(*self._train(num_steps), num_steps)
            self.seconds_per_step = (self.pace.clock() - began) / num_steps
            if roster.training and self.checkpoints.is_due(num_steps):
                self._begin_checkpoint()
            if self.pace.clock() - last_report >= self.pace.report_s or self.checkpoints.is_ready:
                last_report = self.pace.clock()
                yield self.report(started, checkpoint=self.checkpoints.take())
                if roster.training and wants_pause():
                    self.checkpoints.take(wait=True)
                    self._begin_checkpoint()
                    yield self.report(started, Paused(), checkpoint=self.checkpoints.take(wait=True))
                    return
        yield self.report(started, Completed())

    def report(self, started: float, ending: Ending | None = None, checkpoint: Checkpoint | None = None) -> Report:
        """Return everything since the last report."""
        traces, telemetry = self.curves.take()
        risen, nonfinite = (self.monitor.num_risen, self.monitor.num_nonfinite) if ending is None else (0, 0)
        report = Report(
            pack_id=self.pack.pack_id,
            member_steps=self.member_steps,
            steps_in_hand=sum(self.age_of.values()),
            seconds=time.perf_counter() - started,
            traces=traces,
            telemetry=telemetry,
            finished=tuple(self._finished),
            ending=ending,
            environment=self.environment,
            checkpoint=checkpoint,
            states=self.keeper.take(),
            at_a_time=self.at_a_time,
            num_risen=risen,
            num_nonfinite=nonfinite,
            peak_memory=peak_memory(),
        )
        self._finished, self.environment = [], {}
        return report

    def close(self) -> None:
        """Release the trainer; an error here changes no result."""
        self.checkpoints.close()
        if hasattr(self, "trainer"):
            try:
                self.trainer.close()
            except Exception:
                traceback.print_exc()
            del self.trainer
        release_memory()

    def _start(self) -> Roster:
        import torch

        pack = self.pack
        torch.set_num_threads(pack.cpus)
        if pack.gpus and not torch.cuda.is_available():
            raise RuntimeError("resources.gpus asks for a GPU, but torch sees none on this worker")
        device = "cuda" if pack.gpus else "cpu"
        objective = load_objective(pack.objective, pack.folder)
        configs = [objective.config_of(member.config) for member in pack.members]
        resumed = from_bytes(pack.resume.content, pack.trial_ids) if pack.resume is not None else None
        skipped = {k for k, member in enumerate(pack.members) if member.trial_id in pack.skip}
        num_members = len(configs) - len(skipped)
        choice = self._choose(objective, configs[0], device, num_members, resumed)
        self.plan = choice.plan
        # Rounds of equal size: 16 and 16 train faster than 31 in rounds of 30 and 1.
        num_rounds = math.ceil(num_members / self.plan.width)
        self.at_a_time = math.ceil(num_members / num_rounds)
        everybody = range(len(configs))
        roster = Roster(configs, [m.seed for m in pack.members], self.at_a_time, self._are_audited(everybody))
        if resumed is None:
            roster.drop(skipped)
            roster.admit()
        else:
            roster.load_state_dict(resumed["roster"])
        rows = roster.row_specs(self._num_rows(roster))
        trained, seeds = [row.config for row in rows], [row.seed for row in rows]
        self.trainer = objective.start(trained, seeds, device, choice.plan, later=configs)
        check_takes(self.trainer, objective.name, configs)
        if resumed is None:
            self.monitor.arrange([None] * len(roster.training), self._are_audited(roster.training))
            self.age_of = dict.fromkeys(roster.everybody, 0)
        else:
            self._resume(roster, resumed, skipped)
        self.environment = {
            **describe_process(),
            "device": device,
            "way": choice.reason,
            **choice.plan.rounding.facts,
            **({"energy": self.energy.source} if self.energy.source else {}),
            **self.trainer.describe(),
        }
        self.energy.take()  # what the start took belongs to no trial
        return roster

    def _choose(
        self,
        objective: Objective,
        config: TrainingConfig,
        device: str,
        num_members: int,
        resumed: Mapping[str, Any] | None,
    ) -> PlanChoice:
        """Return the plan of this pack: its earlier one, or the width set in the sweep, or the fastest one here."""
        width, rounding = self.pack.width, self.pack.rounding
        if resumed is not None:
            plan = ExecutionPlan(**resumed["way"])
            reason = "as before it was interrupted"
            return PlanChoice(plan if width is None else plan.rounding.plan(width), reason)
        if width is not None:
            return set_plan(rounding.plan(width), self.pack.sizes or (self.pack.workers,))
        return choose_plan(objective, config, device, self.pack.cpus, num_members, rounding)

    def _resume(self, roster: Roster, state: Mapping[str, Any], skipped: Collection[int]) -> None:
        """Resume from the state of an earlier attempt, without the members in ``skipped``."""
        self.trainer.load_state_dict(state["trainer"])
        self.monitor.load_state_dict(state["judging"])
        self.age_of = dict(state["ages"])
        self.joules_of = dict(state["joules"])
        set_random_states(state["random"])
        rows_before = roster.rows
        roster.drop(skipped)
        roster.admit()
        self.roster = roster
        self._arrange(rows_before)

    def _begin_checkpoint(self) -> None:
        ages = {self.trial_ids[member]: self.age_of[member] for member in self.roster.everybody}
        self.checkpoints.begin(self._state, ages)

    def _state(self) -> dict[str, Any]:
        """The complete state of training: tensors, arrays, numbers and strings."""
        return {
            "way": asdict(self.plan),
            "roster": self.roster.state_dict(),
            "trainer": self.trainer.state_dict(),
            "judging": self.monitor.state_dict(),
            "ages": dict(self.age_of),
            "joules": dict(self.joules_of),
            "random": random_states(),
        }

    def _num_rows(self, roster: Roster) -> int:
        """Number of the trainer's rows, at least one per training member.

        A compiled pack has its full width, or the width halved several times, so that few sizes are compiled. It never
        shrinks from two rows to one, because code compiled for one row rounds differently.
        """
        if not self.plan.compiled:
            return len(roster.training)
        size = self.plan.width
        while size // 2 >= max(2, len(roster.training)):
            size //= 2
        return size

    def _steps_to_next_update(self) -> int:
        """Return a number of steps after which members are validated, fork and end exactly when they are due."""
        oldest = max(self.age_of[member] for member in self.roster.training)
        in_time = max(1, int(self.pace.update_s / self.seconds_per_step))
        limit = min(self.pace.update_steps, in_time, self.pack.steps - oldest)
        forks = ((self.roster.next_fork(k), row) for k, row in enumerate(self.roster.rows) if len(row) > 1)
        limits = [limit, *(step - self.age_of[row[0]] for step, row in forks if step is not None)]
        periods = (self.pack.validate_every, None if self.pack.keep is None else self.pack.keep.every)
        for every in (period for period in periods if period is not None):
            limits += [every - self.age_of[member] % every for member in self.roster.training]
        return min(limits)

    def _train(self, num_steps: int) -> tuple[dict[str, np.ndarray], list[RowReadings]]:
        """Train ``num_steps`` and return their metrics, (T, R) each, and readings by row of the trainer."""
        trainer, wanted = self.trainer, self.pack.telemetry
        age_R = np.array([self.age_of[member] for member in self.roster.training])
        can_read = hasattr(trainer, "observed_step")
        every, curvature = (wanted.every, wanted.curvature) if can_read else (None, None)
        is_curved_TR = due(age_R, num_steps, curvature)
        is_close_TR = closely_due(age_R, self.monitor.left_step_K, num_steps, every)
        is_read_TR = due(age_R, num_steps, every) | is_close_TR | is_curved_TR
        metrics: list[Mapping[str, Any]] = []
        readings = []
        for offset in np.flatnonzero(is_read_TR.any(axis=1)).tolist():
            metrics += unread_steps(trainer, offset - len(metrics))
            rows = np.flatnonzero(is_read_TR[offset]).tolist()
            curved = np.flatnonzero(is_curved_TR[offset]).tolist()
            step_metrics, values = trainer.observed_step(rows, curved, wanted.num_products)
            metrics.append(step_metrics)
            readings.append((offset, rows, values))
        metrics += unread_steps(trainer, num_steps - len(metrics))
        return metrics_on_host(metrics), readings_on_host(readings)

    def _update(self, metrics: Mapping[str, np.ndarray], readings: Sequence[RowReadings], num_steps: int) -> None:
        """Update the monitor with ``num_steps`` rows of metrics, (T, R) each, and drop members that end."""
        members, rows = self.roster.training, self.roster.rows
        # The rows beyond the members pad a compiled pack.
        metrics = {name: values[:, : len(members)] for name, values in metrics.items()}
        age_K = np.array([self.age_of[member] for member in members])
        # A member that ends is monitored up to its last step; the others to the end.
        update = self.monitor.update(metrics)
        self.member_steps += num_steps * len(members)
        for k, member in enumerate(members):
            age, num_kept = int(age_K[k]), int(update.num_steps_K[k])
            columns = {name: values[:num_kept, k] for name, values in metrics.items()}
            if self.roster.configs[member].rollback is None:  # reported only because other members roll back
                columns.pop("rolled_back", None)
            step_values = [
                (age + offset, values) for offset, values in readings_of_row(readings, k) if offset < num_kept
            ]
            for sharer in rows[k]:
                self.curves.add(self.trial_ids[sharer], age, columns, has_ended=bool(update.has_ended_K[k]))
                self.curves.add_readings(self.trial_ids[sharer], step_values)
                self.age_of[sharer] = age + num_steps
        is_complete_K = ~update.has_ended_K & (age_K + num_steps == self.pack.steps)
        self._share_energy(is_due=bool((update.has_ended_K | is_complete_K).any()))
        is_plateaued_K = self._validate(members, is_complete_K, ~update.has_ended_K)
        # A lost member trains on until the update.
        for k in () if self.pack.keep is None else np.flatnonzero(update.num_steps_K == num_steps).tolist():
            ids, is_last = [self.trial_ids[member] for member in rows[k]], bool(is_complete_K[k] or is_plateaued_K[k])
            self.keeper.offer(self.trainer, k, ids, int(age_K[k]) + num_steps, is_last=is_last)
        for k in np.flatnonzero(update.has_ended_K).tolist():
            self._finish(k, int(age_K[k] + update.num_steps_K[k]), math.nan)
        has_ended_K = update.has_ended_K | is_complete_K | is_plateaued_K
        ended = {sharer for k in np.flatnonzero(has_ended_K) for sharer in rows[k]}
        self.roster.drop(ended)
        has_forked = self.roster.fork(self.age_of)
        if ended:
            self.roster.admit()
        if ended or has_forked:
            self._arrange(rows)

    def _share_energy(self, *, is_due: bool) -> None:
        """Give each trial in training the same part of the energy since the last time, about a second ago."""
        if not is_due and self.pace.clock() - self._energy_read < self.pace.report_s:
            return
        self._energy_read = self.pace.clock()
        joules, trials = self.energy.take(), [member for row in self.roster.rows for member in row]
        if joules is not None:
            for member in trials:
                self.joules_of[member] = self.joules_of.get(member, 0.0) + joules / len(trials)

    def _arrange(self, rows_before: Sequence[Sequence[int]]) -> None:
        """Rearrange trainer and monitor to the members that train now, each with the past of its former row."""
        members = self.roster.training
        position = {member: k for k, row in enumerate(rows_before) for member in row}
        self.monitor.arrange([position.get(member) for member in members], self._are_audited(members))
        self.age_of = {member: self.age_of.get(member, 0) for member in self.roster.everybody}
        if members:
            self.trainer.arrange(self.roster.row_specs(self._num_rows(self.roster)))

    def _are_audited(self, members: Sequence[int]) -> list[bool]:
        return [is_audited(self.trial_ids[member], self.stopping.audit) for member in members]

    def _validate(self, members: Sequence[int], is_complete_K: np.ndarray, is_there_K: np.ndarray) -> np.ndarray:
        """Measure the held-out loss of members that are due; finish members that are complete or end here.

        Returns which members have stopped improving and end before their last step.
        """
        every = self.pack.validate_every
        done_K = np.array([self.age_of[member] for member in members])
        is_due_K = is_complete_K if every is None else is_complete_K | (is_there_K & (done_K % every == 0))
        is_plateaued_K = np.zeros(len(members), dtype=bool)
        due = np.flatnonzero(is_due_K).tolist()
        if not due:
            return is_plateaued_K
        losses, averaged = self._held_out_losses(due)
        for k, loss, means in zip(due, losses, averaged, strict=True):
            last_step = int(done_K[k]) - 1
            ends = self.monitor.validated(k, last_step, loss)
            is_plateaued_K[k] = ends and not is_complete_K[k]
            if every is not None and math.isfinite(loss):
                for sharer in self.roster.rows[k]:
                    self.curves.add_readings(self.trial_ids[sharer], [(last_step, {VALIDATION: loss, **means})])
            if is_complete_K[k] or is_plateaued_K[k]:
                self._finish(k, last_step + 1, loss, means, bool(is_plateaued_K[k]))
        return is_plateaued_K

    def _held_out_losses(self, rows: Sequence[int]) -> tuple[list[float], list[dict[str, float]]]:
        """Return the held-out loss of each of ``rows``, and the finite ones of the averages of its weights, by name."""
        of_averages = getattr(self.trainer, "averaged_losses", None)  # a trainer need not have it
        averaged = {} if of_averages is None else of_averages(rows)
        losses = metrics_on_host([{VALIDATION: self.trainer.validate(rows), **averaged}])
        by_row = [{name: float(losses[name][0, k]) for name in averaged} for k in range(len(rows))]
        return losses[VALIDATION][0].tolist(), [{n: v for n, v in row.items() if math.isfinite(v)} for row in by_row]

    def _finish(
        self,
        position: int,
        steps_done: int,
        validation: float,
        averaged: Mapping[str, float] = MappingProxyType({}),
        is_plateaued: bool = False,
    ) -> None:
        """Record the result of all members of a row."""
        members, record = self.roster.rows[position], self.monitor.record(int(position))
        progress, validations = self.monitor.rung_progress(position), self.monitor.validations(position)
        result = member_result(
            self.trial_ids[members[0]], record, self.stopping, steps_done, validation, progress, validations,
            is_plateaued=is_plateaued,
        )  # fmt: skip
        has_rules = bool(self.roster.configs[members[0]].control)
        fired = self.trainer.fired(position) if has_rules else ()
        # A lost member trains on until the update.
        fired = tuple(action for action in fired if action["step"] < steps_done)
        result = replace(result, merged_loss=averaged.get("merged_loss"), ema_loss=averaged.get("ema_loss"))
        result = replace(result, fired=fired, peak_memory=peak_memory(), peak_device_memory=peak_device_memory())
        for member, chosen in zip(members, self._are_audited(members), strict=True):
            joules = self.joules_of.get(member)
            result = replace(result, trial_id=self.trial_ids[member], is_audited=chosen, joules=joules)
            self._finished.append(result)
