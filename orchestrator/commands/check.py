"""`sweep check`: one trial of a custom trainer for a moment, to see what is read of its output."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.table import Table

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED, InputError, Problem
from orchestrator.base.packs import LaunchedPack, Member
from orchestrator.base.reports import Paused, Trace
from orchestrator.commands.printing import Answer
from orchestrator.driver.checks import check_runnable
from orchestrator.driver.packing import pack_of, planned_workers
from orchestrator.driver.words import format_seconds
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.custom_run import CustomRun
from orchestrator.worker.trial_process import close_server

_SHOWN = 3  # first and last points
_REPORT_S = 0.2
_TIMED_S = 1.0  # a shorter look says too little of how long a step takes


def check(sweep: Sweep, num_losses: int, seconds: float) -> Answer:
    """Train the first trial of ``sweep`` for ``num_losses`` losses or ``seconds``, in a folder that is then removed.

    Nothing is stored. The exit code is 3 where no loss was read, or it is not clear which one. Raises InputError.
    """
    own = sweep.objective
    if not isinstance(own, CustomTrainer):
        remedy = f"it trains {own.name}, whose losses are known; `sweep plan` shows what would run"
        raise InputError(Problem(sweep.name, "objective", "is no custom trainer, so there is nothing to check", remedy))
    trial = sweep.trials[0]
    with tempfile.TemporaryDirectory(prefix="sweep-check-") as folder:
        check_runnable(sweep, Path(folder) / sweep.name)
        pack = pack_of(sweep, [Member(trial.trial_id, trial.config, trial.seed)], 0)
        assert isinstance(pack, LaunchedPack), "it is of a custom trainer"
        pack = replace(pack, launch=replace(pack.launch, trials_folder=folder, report_s=_REPORT_S))
        shown = trial.cell.name
        yield f"running:  {own.summary}"
        yield f"          with {shown} seed={trial.seed}, for at least {num_losses} losses, at most {seconds:g} s"
        run, traces, error, began = CustomRun(pack, None), list[Trace](), None, time.monotonic()
        readings: list[Trace] = []
        seen = list[tuple[float, float]]()  # when the last step of each report was read, and which one it was
        try:
            for report in run.reports(began, lambda: False):
                traces += report.traces.values()
                readings += report.telemetry.values()
                error = report.error
                seen += [(time.monotonic() - began, float(trace["step"][-1])) for trace in report.traces.values()]
                passed = time.monotonic() - began
                has_enough = sum(len(trace["step"]) for trace in traces) >= num_losses
                if (has_enough and passed - seen[0][0] >= _TIMED_S) or passed > seconds:
                    readings += run.report(began, Paused()).telemetry.values()
                    break
            note, question = (run.source.note, run.source.question) if error is None or traces else ("", None)
        finally:
            run.close()
            close_server()
    elapsed = time.monotonic() - began
    if error is not None:
        yield "failed:   " + error.strip().replace("\n", "\n          ")
        return EXIT_SOME_FAILED
    if not traces:
        yield f"no loss in {elapsed:.0f} s: {note}"
        return EXIT_SOME_FAILED
    yield f"read:     {note}"
    steps = [int(step) for trace in traces for step in trace["step"]]
    yield _points_table(traces)
    counted = "1 loss" if len(steps) == 1 else f"{len(steps)} losses"
    yield f"          {counted} in {elapsed:.1f} s, steps {steps[0]:,} to {steps[-1]:,}"
    yield from _others(readings)
    every = (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else 1.0
    expected = max(1, round(trial.steps / every))
    yield f"          a whole trial of {trial.steps:,} steps would have about {expected:,} losses"
    if len(steps) > 1:
        yield f"time:     {_time_text(sweep, seen)}"
    if expected < 2 * sweep.stopping.min_history:
        yield f"few:      spikes are found from {sweep.stopping.min_history} losses on; print one every step, or nearly"
    if question is not None:
        yield f"unclear:  {question}"
        return EXIT_SOME_FAILED
    return EXIT_OK


def _others(readings: Sequence[Trace]) -> Iterator[str]:
    """The last value of what was read beside losses and norms."""
    last: dict[str, str] = {}
    for trace in readings:
        for name in trace:
            known_M = np.flatnonzero(np.isfinite(trace[name]))
            if name != "step" and len(known_M):
                last[name] = f"{name} {float(trace[name][known_M[-1]]):.6g} at step {int(trace['step'][known_M[-1]]):,}"
    if last:
        yield f"also:     {', '.join(last.values())}"


def _time_text(sweep: Sweep, seen: Sequence[tuple[float, float]]) -> str:
    """How long a whole trial and the sweep would take, from when steps were read."""
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    # What came before the first report, imports and data, is paid once a trial. A script that was through before a
    # second report says only how long it took.
    per_step_s = (last_s - first_s) / (last - first) if last > first else last_s / (last + 1)
    trial_s = last_s + max(0.0, sweep.trials[0].steps - last - 1) * per_step_s
    at_a_time = min(planned_workers(sweep), len(sweep.trials))
    one = f"{trial_s:.1f} s" if trial_s < 60 else format_seconds(trial_s)
    whole = format_seconds(len(sweep.trials) * trial_s / at_a_time)
    return (
        f"a whole trial takes about {one}, all {len(sweep.trials)} of the sweep about {whole} "
        f"({at_a_time} at a time on this machine)"
    )


def _points_table(traces: Sequence[Trace]) -> Table:
    """The first and the last points, with their norms."""
    table = Table("step", "loss", "gradient norm", box=None, pad_edge=False, padding=(0, 2, 0, 2))
    rows = [
        (int(trace["step"][i]), float(trace["loss"][i]), float(trace["grad_norm"][i]) if "grad_norm" in trace else None)
        for trace in traces
        for i in range(len(trace["step"]))
    ]
    chosen = rows if len(rows) <= 2 * _SHOWN else [*rows[:_SHOWN], *rows[-_SHOWN:]]
    for step, loss, norm in chosen:
        table.add_row(f"{step:,}", f"{loss:.6g}", "-" if norm is None or norm != norm else f"{norm:.6g}")
    return table
