"""Trains one pack: steps the objective, feeds the detector, reports, drops members that are lost.

The same code runs in this process, in a Ray worker or anywhere else: it is a generator of reports
that never raises, whatever the trainer does.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from objectives.base import Objective, Trainer, TrainingConfig, Way, load_objective
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.outcomes import finished_of
from orchestrator.environment import describe_process
from orchestrator.messages import Checkpoint, Finished, Pack, Report, Trace
from orchestrator.replay.audit import is_audited
from orchestrator.worker.checkpoints import (
    BadCheckpoint,
    CheckpointWriter,
    from_bytes,
    random_states,
    set_random_states,
)
from orchestrator.worker.own_run import OwnRun, RankPlaces
from orchestrator.worker.readings import Point, Reading, as_table, due, of_row, on_host
from orchestrator.worker.roster import Roster
from orchestrator.worker.ways import Choice, choose_way, is_out_of_memory, prepare_process

# Steps between two looks at the metrics. Members that are lost train on until then, masked or not;
# their curves end at the verdict all the same, so results do not depend on it.
_STEPS_PER_LOOK = 10
_SECONDS_PER_LOOK = 1.0  # slow steps are looked at more often, so that no worker seems to hang
_SECONDS_PER_REPORT = 1.0
_ERROR_LINES = 30


def never() -> bool:
    """Nobody asks a pack to pause."""
    return False


def run_pack(pack: Pack, wants_pause: Callable[[], bool] = never, places: RankPlaces | None = None) -> Iterator[Report]:
    """Train ``pack`` to its end, yielding a report about every second, one for each checkpoint, and a last one.

    Once ``wants_pause()``, asked at every report, is true, the last one is a checkpoint. The processes of a
    trainer of one's own are put on ``places``, by default all on this machine.
    """
    started = time.perf_counter()
    run = _PackRun(pack) if pack.launch is None else OwnRun(pack, places)
    try:
        yield from run.reports(started, wants_pause)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a trainer that calls sys.exit() is a bug of the trainer too
        tail = "".join(traceback.format_exc().splitlines(keepends=True)[-_ERROR_LINES:])
        kind = {"out_of_memory": is_out_of_memory(error), "is_refused": isinstance(error, BadCheckpoint)}
        yield run.report(started, is_last=True, error=tail, **kind)
    finally:
        run.close()


class _PackRun:
    """The members that are still training, and what has not been reported yet."""

    def __init__(self, pack: Pack) -> None:
        self.pack, self.trial_ids = pack, pack.trial_ids
        self.stopping = StoppingConfig(**pack.stopping)
        self.detector = SpikeDetector(0, self.stopping)
        self.trainer: Trainer | None = None
        self.roster: Roster | None = None
        self.way = Way(1)
        self.at_a_time = 0
        self.seconds_per_step = _SECONDS_PER_LOOK
        self.age_of: dict[int, int] = {}
        self.member_steps = 0
        self.environment: Mapping[str, str] = {}
        self.checkpoints = CheckpointWriter(pack.trial_ids, pack.checkpoint_s, pack.checkpoint_steps)
        self._traces: dict[str, list[Trace]] = {}
        self._telemetry: dict[str, list[Point]] = {}
        self._finished: list[Finished] = []

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        prepare_process()
        self.roster = roster = self._start()
        last_report = time.perf_counter()
        while roster.training:
            num_steps, began = self._steps_to_next_look(), time.perf_counter()
            self._look(*self._train(num_steps), num_steps)
            self.seconds_per_step = (time.perf_counter() - began) / num_steps
            if roster.training and self.checkpoints.is_due(num_steps):
                self._begin_checkpoint()
            if time.perf_counter() - last_report >= _SECONDS_PER_REPORT or self.checkpoints.is_ready:
                last_report = time.perf_counter()
                yield self.report(started, checkpoint=self.checkpoints.take())
                if roster.training and wants_pause():
                    self.checkpoints.take(wait=True)
                    self._begin_checkpoint()
                    yield self.report(
                        started, is_last=True, is_paused=True, checkpoint=self.checkpoints.take(wait=True)
                    )
                    return
        yield self.report(started, is_last=True)

    def report(
        self,
        started: float,
        *,
        is_last: bool = False,
        is_paused: bool = False,
        error: str | None = None,
        out_of_memory: bool = False,
        is_refused: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> Report:
        """Everything since the last report."""
        waiting = self.roster.waiting if self.roster is not None and error else ()
        report = Report(
            pack_id=self.pack.pack_id,
            member_steps=self.member_steps,
            steps_in_hand=sum(self.age_of.values()),
            seconds=time.perf_counter() - started,
            traces={trial_id: _joined(pieces) for trial_id, pieces in self._traces.items()},
            telemetry={trial_id: as_table(points) for trial_id, points in self._telemetry.items()},
            finished=tuple(self._finished),
            is_last=is_last,
            error=error,
            waited=tuple(self.trial_ids[member] for member in waiting),
            environment=self.environment,
            checkpoint=checkpoint,
            is_paused=is_paused,
            out_of_memory=out_of_memory,
            is_refused=is_refused,
            at_a_time=self.at_a_time,
        )
        self._traces, self._telemetry, self._finished, self.environment = {}, {}, [], {}
        return report

    def close(self) -> None:
        """Release the trainer; what it raises by now changes no result."""
        self.checkpoints.close()
        if self.trainer is not None:
            try:
                self.trainer.close()
            except Exception:
                traceback.print_exc()

    def _start(self) -> Roster:
        import torch

        pack = self.pack
        torch.set_num_threads(pack.cpus)
        if pack.gpus and not torch.cuda.is_available():
            raise RuntimeError("resources.gpus asks for a GPU, but torch sees none on this worker")
        device = "cuda" if pack.gpus else "cpu"
        objective = load_objective(pack.objective, pack.folder)
        # Configurations were checked strictly when they were read; JSON has no tuples.
        configs = [objective.config_class.model_validate(m.config, strict=False) for m in pack.members]
        resumed = from_bytes(pack.resume.content, pack.trial_ids) if pack.resume is not None else None
        skipped = {k for k, member in enumerate(pack.members) if member.trial_id in pack.skip}
        num_members = len(configs) - len(skipped)
        choice = self._choose(objective, configs, device, num_members, resumed)
        self.way = choice.way
        # Rounds of equal size: 16 and 16 train faster than 31 in rounds of 30 and 1.
        num_rounds = math.ceil(num_members / self.way.width)
        self.at_a_time = math.ceil(num_members / num_rounds)
        roster = Roster(configs, [member.seed for member in pack.members], self.at_a_time)
        if resumed is None:
            roster.drop(skipped)
            roster.admit()
        else:
            roster.load_state_dict(resumed["roster"])
        places = roster.places(self._num_rows(roster))
        self.trainer = objective.start([p.config for p in places], [p.seed for p in places], device, choice.way)
        if resumed is None:
            self.detector.arrange([None] * len(roster.training))
            self.age_of = dict.fromkeys(roster.training, 0)
        else:
            self._resume(roster, resumed, skipped)
        self.environment = {
            **describe_process(),
            "device": device,
            "way": choice.reason,
            **self.trainer.describe(),
        }
        return roster

    def _choose(
        self,
        objective: Objective,
        configs: Sequence[TrainingConfig],
        device: str,
        num_members: int,
        resumed: Mapping[str, Any] | None,
    ) -> Choice:
        """How to run this pack: as before, as the sweep says, or as is fastest here."""
        width = self.pack.width
        if resumed is not None:
            way = Way(**resumed["way"])
            return Choice(way if width is None else replace(way, width=width), "as before it was interrupted")
        if width is not None:
            return Choice(Way(width), f"{width} at a time, as resources.pack says")
        return choose_way(objective, configs[0], device, self.pack.cpus, num_members, self.pack.steps_ahead)

    def _resume(self, roster: Roster, state: Mapping[str, Any], skipped: Collection[int]) -> None:
        """Go on where an earlier attempt stood, without those who are ``skipped``."""
        self.trainer.load_state_dict(state["trainer"])
        detector = state["detector"]
        arrays = {name: values.numpy() for name, values in detector["arrays"].items()}
        self.detector.load_state_dict({**detector, "arrays": arrays})
        self.age_of = dict(state["ages"])
        set_random_states(state["random"])
        members_before = roster.training
        roster.drop(skipped)
        roster.admit()
        self.roster = roster
        self._arrange(members_before)

    def _begin_checkpoint(self) -> None:
        members = self.roster.training
        ages = {self.trial_ids[member]: self.age_of[member] for member in members}
        self.checkpoints.begin(self._state, ages)

    def _state(self) -> dict[str, Any]:
        """All that training goes on from: tensors, arrays, numbers and strings."""
        return {
            "way": asdict(self.way),
            "roster": self.roster.state_dict(),
            "trainer": self.trainer.state_dict(),
            "detector": self.detector.state_dict(),
            "ages": dict(self.age_of),
            "random": random_states(),
        }

    def _num_rows(self, roster: Roster) -> int:
        """Rows of the trainer: one for each of those who train, or in a compiled pack its width or the width
        halved some times, with a row for everybody, so that few sizes are ever compiled."""
        if not self.way.compiled:
            return len(roster.training)
        size = self.way.width
        while size // 2 >= len(roster.training):
            size //= 2
        return size

    def _steps_to_next_look(self) -> int:
        """Members end at their last step exactly."""
        oldest = max(self.age_of[member] for member in self.roster.training)
        in_time = max(1, int(_SECONDS_PER_LOOK / self.seconds_per_step))
        return min(_STEPS_PER_LOOK, in_time, self.pack.steps - oldest)

    def _train(self, num_steps: int) -> tuple[dict[str, np.ndarray], list[Reading]]:
        """Metrics of the next steps, (T, R) each, and what was read meanwhile, by rows of the trainer."""
        trainer, wanted = self.trainer, self.pack.telemetry
        age_R = np.array([self.age_of[member] for member in self.roster.training])
        can_read = hasattr(trainer, "observed_step")
        is_curved_TR = due(age_R, num_steps, wanted.curvature if can_read else None)
        is_read_TR = due(age_R, num_steps, wanted.every if can_read else None) | is_curved_TR
        metrics, readings = [], []
        for offset in range(num_steps):
            rows = np.flatnonzero(is_read_TR[offset]).tolist()
            if not rows:
                metrics.append(trainer.step())
                continue
            curved = np.flatnonzero(is_curved_TR[offset]).tolist()
            of_step, read = trainer.observed_step(rows, curved, wanted.products)
            metrics.append(of_step)
            readings.append((offset, rows, read))
        return to_host(metrics), on_host(readings)

    def _look(self, metrics: Mapping[str, np.ndarray], readings: Sequence[Reading], num_steps: int) -> None:
        """Feed ``num_steps`` rows of metrics, (T, R) each, to the detector; let members that end go."""
        members = self.roster.training
        # Rows beyond the members fill up a compiled pack.
        metrics = {name: values[:, : len(members)] for name, values in metrics.items()}
        age_K = np.array([self.age_of[member] for member in members])
        lost_at_K = np.full(len(members), num_steps)
        audited_K = np.array([self._is_audited(member) for member in members])
        # A member that ends is judged by what came up to its last step; the others by all.
        record_of: dict[int, MemberRecord] = {}
        loss_TK, norm_TK = self._as_judged(metrics)
        for row in range(num_steps):
            lost_K = self.detector.update(loss_TK[row], norm_TK[row])
            if self.stopping.early_stop:
                # What is not finite stays so: there is nothing to audit.
                ends_K = lost_K & (~audited_K | ~self.detector.is_finite)
                for k in np.flatnonzero(ends_K & (lost_at_K == num_steps)):
                    lost_at_K[k], record_of[k] = row, self.detector.record(int(k))
        self.member_steps += num_steps * len(members)
        for k, member in enumerate(members):
            rows = slice(0, lost_at_K[k] + 1)
            steps = age_K[k] + np.arange(num_steps)[rows]
            columns = {name: values[rows, k] for name, values in metrics.items()}
            if self.roster.configs[member].rollback is None:
                columns.pop("rolled_back", None)  # of others in the pack
            trial_id = self.trial_ids[member]
            is_kept = (steps % self.pack.telemetry.curves == 0) | (steps == age_K[k] + lost_at_K[k])
            is_kept |= steps == self.pack.steps - 1
            if is_kept.any():
                kept = {name: values[is_kept] for name, values in columns.items()}
                self._traces.setdefault(trial_id, []).append({"step": steps[is_kept], **kept})
            points = [(int(age_K[k]) + offset, read) for offset, read in of_row(readings, k) if offset <= lost_at_K[k]]
            if points:
                self._telemetry.setdefault(trial_id, []).extend(points)
            self.age_of[member] = int(age_K[k]) + num_steps
        is_lost_K = lost_at_K < num_steps
        is_complete_K = ~is_lost_K & (age_K + num_steps == self.pack.steps)
        if is_complete_K.any():
            complete = np.flatnonzero(is_complete_K)
            for k, loss in zip(complete, self._validate(complete), strict=True):
                self._finish(k, self.detector.record(int(k)), self.pack.steps, float(loss))
        for k, record in record_of.items():
            self._finish(k, record, int(age_K[k] + lost_at_K[k]) + 1, math.nan)
        ended = {members[k] for k in np.flatnonzero(is_lost_K | is_complete_K)}
        if ended:
            self.roster.drop(ended)
            self.roster.admit()
            self._arrange(members)

    def _as_judged(self, metrics: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Losses and gradient norms without what the trainer has dealt with: steps that it skipped or took back."""
        loss_TK, norm_TK = metrics["loss"], metrics["grad_norm"]
        if "is_skipped" in metrics:
            norm_TK = np.where(metrics["is_skipped"] == 1, 1.0, norm_TK)
        is_undone_TK = metrics["rolled_back"] == 1 if "rolled_back" in metrics else np.zeros(loss_TK.shape, dtype=bool)
        if is_undone_TK.any():
            norm_TK = np.where(is_undone_TK, 1.0, norm_TK)
            loss_TK = loss_TK.copy()
            for row, k in zip(*np.nonzero(is_undone_TK & ~np.isfinite(loss_TK)), strict=True):
                loss_TK[row, k] = loss_TK[row - 1, k] if row else self.detector.record(int(k)).recent_loss
        return loss_TK, norm_TK

    def _is_audited(self, member: int) -> bool:
        return is_audited(self.trial_ids[member], self.stopping.audit)

    def _arrange(self, members_before: Sequence[int]) -> None:
        """Make trainer and detector hold those who train now."""
        members = self.roster.training
        position = {member: k for k, member in enumerate(members_before)}
        self.detector.arrange([position.get(member) for member in members])
        self.age_of = {member: self.age_of.get(member, 0) for member in members}
        if members:
            self.trainer.arrange(self.roster.places(self._num_rows(self.roster)))

    def _validate(self, positions: Sequence[int]) -> np.ndarray:
        return to_host([{"validation": self.trainer.validate([int(k) for k in positions])}])["validation"][0]

    def _finish(self, position: int, record: MemberRecord, steps_done: int, validation: float) -> None:
        member = self.roster.training[position]
        result = finished_of(self.trial_ids[member], record, self.stopping, steps_done, validation)
        self._finished.append(replace(result, is_audited=self._is_audited(member)))


def to_host(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Metrics of T steps, (K,) each and maybe on a device, as float64 arrays of shape (T, K).

    All of them come over in one copy, so a GPU is waited for once per look and not once per step.
    """
    names = list(rows[0])
    values = [row[name] for row in rows for name in names]
    if all(hasattr(value, "detach") for value in values):
        import torch

        stacked = torch.stack([value.detach().double() for value in values]).cpu().numpy()
    else:
        stacked = np.stack([np.asarray(value, dtype=np.float64) for value in values])
    by_step = stacked.reshape(len(rows), len(names), -1)
    return {name: by_step[:, i] for i, name in enumerate(names)}


def _joined(pieces: Sequence[Trace]) -> Trace:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
