"""Curves of elsewhere -> runs: the detector judges each, so that spikes, onsets and rises are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchestrator.base.reports import Trace
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.outcomes import member_result
from orchestrator.importing.runs import Run, Settings
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import Replayed, replay_logs


def runs_of_logs(settings: Sequence[Settings], logs: Sequence[Log], stopping: StoppingConfig) -> list[Run]:
    """A run for each log, judged to its end; a length that is not known is that of its log."""
    replayed = replay_logs(logs, stopping)
    return [_run(own, one, stopping) for own, one in zip(settings, replayed, strict=True)]


def _run(settings: Settings, replayed: Replayed, stopping: StoppingConfig) -> Run:
    log = replayed.log
    steps_done = int(log.step_N[-1]) + 1
    result = member_result("", replayed.record, stopping, steps_done, math.nan)
    num_points = f"{len(log.step_N):,} losses to step {log.step_N[-1]:,} of {log.name}"
    # It has trained on after every verdict: that is what an audit looks at.
    result = replace(result, is_audited=True, reason=f"{result.reason}; {'; '.join([num_points, *log.notes])}")
    return Run(replace(settings, steps=settings.steps or steps_done), result, _trace(log))


def _trace(log: Log) -> Trace:
    norms = {} if log.grad_norm_N is None else {"grad_norm": log.grad_norm_N.astype(np.float64)}
    return {"step": log.step_N.astype(np.int64), "loss": log.loss_N.astype(np.float64), **norms}
