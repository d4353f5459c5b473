"""Trains one pack: steps the objective, feeds the detector, reports, drops members that are lost.

The same code runs in this process, in a Ray worker or anywhere else: it is a generator of reports
that never raises, whatever the trainer does.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import socket
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from objectives.base import OBJECTIVES, Trainer
from orchestrator.detection import MemberRecord, SpikeDetector, StoppingConfig
from orchestrator.outcomes import judge
from orchestrator.reports import Finished, Pack, Report, Trace

# Steps between two looks at the metrics. Members that are lost train on until then, masked or not;
# their curves end at the verdict all the same, so results do not depend on it.
_STEPS_PER_LOOK = 10
_SECONDS_PER_REPORT = 1.0
_ERROR_LINES = 30


def run_pack(pack: Pack) -> Iterator[Report]:
    """Train ``pack`` to its end, yielding a report about every second and a last one."""
    started = time.perf_counter()
    run = _PackRun(pack)
    try:
        yield from run.reports(started)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException:  # a trainer that calls sys.exit() is a bug of the trainer too
        tail = "".join(traceback.format_exc().splitlines(keepends=True)[-_ERROR_LINES:])
        yield run.report(started, is_last=True, error=tail)
    finally:
        run.close()


class _PackRun:
    """The members that are still training, and what has not been reported yet."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.trial_ids = pack.trial_ids
        self.stopping = StoppingConfig(**pack.stopping)
        self.detector = SpikeDetector(len(pack.members), self.stopping, pack.steps)
        self.trainer: Trainer | None = None
        self.steps_done = self.member_steps = 0
        self.environment: Mapping[str, str] = {}
        self._traces: dict[str, list[Trace]] = {}
        self._finished: list[Finished] = []

    def reports(self, started: float) -> Iterator[Report]:
        self.trainer = trainer = self._start()
        last_report = time.perf_counter()
        while self.steps_done < self.pack.steps and self.trial_ids:
            num_steps = min(_STEPS_PER_LOOK, self.pack.steps - self.steps_done)
            metrics = to_host([trainer.step() for _ in range(num_steps)])
            self._look(metrics, num_steps)
            if time.perf_counter() - last_report >= _SECONDS_PER_REPORT:
                last_report = time.perf_counter()
                yield self.report(started)
        if self.trial_ids:
            self._finish_rest(to_host([{"validation": trainer.validate()}])["validation"][0])
        yield self.report(started, is_last=True)

    def report(self, started: float, *, is_last: bool = False, error: str | None = None) -> Report:
        """Everything since the last report."""
        report = Report(
            pack_id=self.pack.pack_id,
            steps_done=self.steps_done,
            member_steps=self.member_steps,
            seconds=time.perf_counter() - started,
            traces={trial_id: _joined(pieces) for trial_id, pieces in self._traces.items()},
            finished=tuple(self._finished),
            is_last=is_last,
            error=error,
            environment=self.environment,
        )
        self._traces, self._finished, self.environment = {}, [], {}
        return report

    def close(self) -> None:
        """Release the trainer; what it raises by now changes no result."""
        if self.trainer is not None:
            try:
                self.trainer.close()
            except Exception:
                traceback.print_exc()

    def _start(self) -> Trainer:
        import torch

        torch.set_num_threads(self.pack.cpus)
        if self.pack.gpus and not torch.cuda.is_available():
            raise RuntimeError("resources.gpus asks for a GPU, but torch sees none on this worker")
        device = "cuda" if self.pack.gpus else "cpu"
        objective = OBJECTIVES[self.pack.objective]
        # Configurations were checked strictly when they were read; JSON has no tuples.
        configs = [objective.config_class.model_validate(m.config, strict=False) for m in self.pack.members]
        trainer = objective.start(configs, [member.seed for member in self.pack.members], device)
        self.environment = {**describe_process(), "device": device, **trainer.describe()}
        return trainer

    def _look(self, metrics: Mapping[str, np.ndarray], num_steps: int) -> None:
        """Feed ``num_steps`` rows of metrics, (T, K) each, to the detector; let lost members go."""
        steps = np.arange(self.steps_done, self.steps_done + num_steps)
        lost_at_K = np.full(len(self.trial_ids), num_steps)
        for row, step in enumerate(steps):
            lost_K = self.detector.update(int(step), metrics["loss"][row], metrics["grad_norm"][row])
            if self.stopping.early_stop:
                lost_at_K[lost_K] = np.minimum(lost_at_K[lost_K], row)
        self.steps_done += num_steps
        self.member_steps += num_steps * len(self.trial_ids)
        for k, trial_id in enumerate(self.trial_ids):
            rows = slice(0, lost_at_K[k] + 1)
            columns = {name: values[rows, k] for name, values in metrics.items()}
            self._traces.setdefault(trial_id, []).append({"step": steps[rows], **columns})
        lost = np.flatnonzero(lost_at_K < num_steps)
        if len(lost):
            for k in lost:
                steps_done = int(steps[lost_at_K[k]]) + 1
                self._finished.append(_result(self.trial_ids[k], self.detector.record(k), self.stopping, steps_done))
            self._keep([k for k in range(len(self.trial_ids)) if lost_at_K[k] == num_steps])

    def _keep(self, index: Sequence[int]) -> None:
        assert self.trainer is not None
        if index:
            self.trainer.keep(index)
        self.detector.keep(index)
        self.trial_ids = [self.trial_ids[k] for k in index]

    def _finish_rest(self, validation_K: np.ndarray) -> None:
        for k, trial_id in enumerate(self.trial_ids):
            result = _result(trial_id, self.detector.record(k), self.stopping, self.steps_done, float(validation_K[k]))
            self._finished.append(result)
        self.trial_ids = []


def _result(
    trial_id: str, record: MemberRecord, stopping: StoppingConfig, steps_done: int, validation: float = math.nan
) -> Finished:
    verdict = judge(record, stopping)
    return Finished(
        trial_id=trial_id,
        outcome=verdict.outcome,
        onset_step=verdict.onset_step,
        num_spikes=verdict.num_spikes,
        steps_done=steps_done,
        initial_loss=record.initial_loss,
        best_loss=record.best_loss,
        final_loss=record.recent_loss if record.is_finite else None,
        peak_loss=verdict.peak_loss,
        validation_loss=validation if math.isfinite(validation) else None,
        reason=verdict.reason,
    )


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


def describe_process() -> dict[str, str]:
    """Where this process runs and on which versions."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "ray")}
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **versions,
    }


def _joined(pieces: Sequence[Trace]) -> Trace:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
