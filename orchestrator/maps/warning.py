"""A sweep's trials as runs to be warned of: their telemetry, and where they became unstable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.packs import Trace
from orchestrator.base.query import flat, reported
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.warning.alarms import (
    HORIZON,
    Quality,
    RunWarnings,
    ScoredRun,
    UnstableSpan,
    quality,
    run_warnings,
    unstable_spans,
)
from orchestrator.detection.warning.monitor import kind_for, model_for, reasons_of
from orchestrator.detection.warning.risk import ALONG_GRADIENT, features
from orchestrator.ledger.reader import LedgerReader

# A stalled trial learned nothing that it could lose; of an unknown or pruned one nobody knows what it did.
WATCHED = ("stable", "spiked", "diverged")


@dataclass(frozen=True, slots=True, eq=False)
class WatchedRun:
    """A trial with readings, (N,) each column of ``telemetry``, and its instabilities."""

    trial: TrialResult
    telemetry: Trace
    unstable: tuple[UnstableSpan, ...]
    num_steps: int


def watched_runs(ledger: LedgerReader) -> Iterator[WatchedRun]:
    """The trials that have readings and an outcome that says whether they were stable, in the sweep's order."""
    return _with_readings(ledger, _judged(ledger))


def _judged(ledger: LedgerReader) -> list[TrialResult]:
    return [trial for trial in ledger.trials() if trial.outcome in WATCHED]


def _with_readings(ledger: LedgerReader, trials: Iterable[TrialResult]) -> Iterator[WatchedRun]:
    for trial in trials:
        telemetry = ledger.telemetry(trial.trial_id)
        if telemetry and np.isfinite(telemetry.get("grad_norm/all", np.empty(0))).any():
            num_steps = trial.steps_done or trial.steps
            yield WatchedRun(trial, telemetry, unstable(trial), num_steps)


def unstable(trial: TrialResult) -> tuple[UnstableSpan, ...]:
    """The instabilities of a trial: its episodes, and the onset of one that drifted away without an episode."""
    num_steps = trial.steps_done or trial.steps
    episodes = list(trial.episodes)
    if not episodes and trial.onset_step is not None:
        episodes = [(trial.onset_step, None)]
    return tuple(unstable_spans(episodes, num_steps))


def curvature_every(telemetry: Trace) -> float | None:
    """The usual number of steps between two measurements of the curvature; None if there are none."""
    measured_N = telemetry.get(
        ALONG_GRADIENT, telemetry.get("curvature_threshold", np.full(len(telemetry["step"]), np.nan))
    )
    step_M = telemetry["step"][np.isfinite(measured_N)]
    return float(np.median(np.diff(step_M))) if len(step_M) > 1 else None


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm in a trial: the ``risk``, 0 to 1, and the ``reasons`` that raise it most."""

    trial: TrialResult
    step: int
    risk: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instability:
    """An onset in a trial and the first alarm in the horizon before it, None without one."""

    trial: TrialResult
    onset: int
    alarm: Alarm | None

    @reported
    def lead(self) -> int | None:
        """Steps from the alarm to the onset."""
        return None if self.alarm is None else self.onset - self.alarm.step


@dataclass(frozen=True, slots=True)
class UsedModel:
    """A model of the package, the risk that raises an alarm, and the runs that it judged."""

    name: str
    threshold: float
    num_runs: int


@dataclass(frozen=True, slots=True)
class WarnedSweep:
    """What the warning would have said of each trial with readings, and how good that is.

    ``num_unread`` trials have no telemetry; ``num_with_curvature`` were judged by a model that needs it.
    """

    sweep: str
    num_runs: int
    num_unread: int
    num_with_curvature: int
    models: tuple[UsedModel, ...]
    horizon: int
    instabilities: tuple[Instability, ...]
    false_alarms: tuple[Alarm, ...]
    quality: Quality = flat()


def warn(ledger: LedgerReader) -> WarnedSweep:
    """The package's warning on every trial of a sweep. Raises InputError where none has readings."""
    instabilities: list[Instability] = []
    false_alarms: list[Alarm] = []
    runs: list[RunWarnings] = []
    with_curvature, used = 0, Counter[tuple[str, float]]()
    judged = _judged(ledger)
    for run in _with_readings(ledger, judged):
        every = curvature_every(run.telemetry)
        with_curvature += every is not None
        model, feature_NF = model_for(every), features(run.telemetry)
        used[kind_for(every), model.threshold] += 1
        step_N, risk_N = run.telemetry["step"], model.risks(feature_NF)
        found = run_warnings(ScoredRun(step_N, risk_N, run.unstable, run.num_steps), model.threshold, model.horizon)

        alarm_of = {
            step: Alarm(run.trial, step, float(risk_N[place]), reasons_of(model, feature_NF[place : place + 1]))
            for step in found.alarms
            for place in [int(np.searchsorted(step_N, step))]
        }
        for onset in found.onsets:
            first = None if onset.lead is None else alarm_of[onset.step - onset.lead]
            instabilities.append(Instability(run.trial, onset.step, first))
        false_alarms += [alarm_of[step] for step in found.false_alarms]
        runs.append(found)
    if not runs:
        what = "has no trial with readings of telemetry and an outcome"
        remedy = "a sweep with telemetry: {every: 5} has them, and {curvature: 25} warns earlier"
        raise InputError(Problem(str(ledger.path), "", what, remedy))
    return WarnedSweep(
        ledger.path.parent.name,
        len(runs),
        len(judged) - len(runs),
        with_curvature,
        tuple(UsedModel(name, threshold, num) for (name, threshold), num in sorted(used.items())),
        HORIZON,
        tuple(instabilities),
        tuple(false_alarms),
        quality(runs),
    )
