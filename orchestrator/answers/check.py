"""What is read of a custom trainer's output, from one trial that runs for a moment."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED, InputError, Problem
from orchestrator.base.query import Query, Say, Subject, hidden, option, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line, Table

if TYPE_CHECKING:
    from orchestrator.base.packs import Trace
    from orchestrator.sweepfile.spec import Sweep

_SHOWN = 3  # first and last points
_REPORT_S = 0.2
_TIMED_S = 1.0  # a shorter look says too little about how long a step takes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuery(Query["tuple[Sweep, Path]"]):
    """Check what is read of a custom trainer's output, from one trial that runs for a moment.

    Nothing is stored. For example `sweep check mine.yaml --losses 50`.
    """

    panel: ClassVar[str] = "train"
    subject: ClassVar[Subject] = "file"
    imports_code: ClassVar[bool] = True

    losses: int = option(20, "losses after which the trial is ended", minimum=1)
    seconds: float = option(60.0, "time after which it is ended in any case", minimum=1)

    def ask(self, subject: tuple[Sweep, Path], say: Say = silent) -> CheckAnswer:
        """Train the first trial until ``losses`` losses were read, in a folder that is then removed."""
        from orchestrator.base.packs import LaunchedPack, Member, Paused
        from orchestrator.driver.packing import pack_of
        from orchestrator.driver.planning import check_runnable
        from orchestrator.sweepfile.custom_trainer import CustomTrainer
        from orchestrator.worker.custom_run import CustomRun
        from orchestrator.worker.launcher import close_server

        sweep, own = subject[0], subject[0].objective
        if not isinstance(own, CustomTrainer):
            remedy = f"it trains {own.name}, whose losses are known; `sweep plan` shows what would run"
            message = "is not a custom trainer, so there is nothing to check"
            raise InputError(Problem(sweep.name, "objective", message, remedy))
        trial = sweep.trials[0]
        with tempfile.TemporaryDirectory(prefix="sweep-check-") as folder:
            check_runnable(sweep, Path(folder) / sweep.name)
            pack = pack_of(sweep, [Member(trial.trial_id, trial.config, trial.seed)], 0)
            assert isinstance(pack, LaunchedPack), "it is of a custom trainer"
            pack = replace(pack, launch=replace(pack.launch, trials_folder=folder, report_s=_REPORT_S))
            say(f"running:  {own.summary}")
            say(f"          with {trial.name}, for at least {self.losses} losses, at most {self.seconds:g} s")
            run, traces, error, began = CustomRun(pack, None), list["Trace"](), None, time.monotonic()
            readings: list[Trace] = []
            seen: list[tuple[float, float]] = []  # when the last step of each report was read, and which one it was
            try:
                for report in run.reports(began, lambda: False):
                    traces += report.traces.values()
                    readings += report.telemetry.values()
                    error = report.error
                    now = time.monotonic() - began
                    seen += [(now, float(trace["step"][-1])) for trace in report.traces.values()]
                    has_enough = sum(len(trace["step"]) for trace in traces) >= self.losses
                    if (has_enough and now - seen[0][0] >= _TIMED_S) or now > self.seconds:
                        readings += run.report(began, Paused()).telemetry.values()
                        break
                note, question = (run.source.note, run.source.question) if error is None or traces else ("", None)
            finally:
                run.close()
                close_server()
        elapsed = time.monotonic() - began
        return CheckAnswer(sweep.name, error, note, question, elapsed, _points(traces), _last(readings), sweep, seen)


@dataclass(frozen=True, slots=True)
class CheckAnswer(Answer):
    """What was read: ``points`` are step, loss and gradient norm, ``also`` the last values of other metrics.

    ``question`` says what is not clear about the losses.
    """

    sweep: str
    error: str | None
    note: str
    question: str | None
    elapsed_s: float
    points: list[tuple[int, float, float | None]]
    also: dict[str, tuple[int, float]]
    file: Sweep = hidden()
    seen: Sequence[tuple[float, float]] = hidden()

    @property
    def exit_code(self) -> int:
        """The code for a trial that failed if no loss was read, or if it is not clear which one."""
        is_clear = self.error is None and self.points and self.question is None
        return EXIT_OK if is_clear else EXIT_SOME_FAILED

    def blocks(self) -> Iterator[Block]:
        """Yield what was read, and how long the sweep would take."""
        if self.error is not None:
            yield Line("failed:   " + self.error.strip().replace("\n", "\n          "))
            return
        if not self.points:
            yield Line(f"no loss in {self.elapsed_s:.0f} s: {self.note}")
            return
        yield Line(f"read:     {self.note}")
        yield self._table()
        steps = [step for step, _, _ in self.points]
        counted = "1 loss" if len(steps) == 1 else f"{len(steps)} losses"
        yield Line(f"          {counted} in {self.elapsed_s:.1f} s, steps {steps[0]:,} to {steps[-1]:,}")
        if self.also:
            shown = (f"{name} {value:.6g} at step {step:,}" for name, (step, value) in self.also.items())
            yield Line(f"also:     {', '.join(shown)}")
        trial, min_history = self.file.trials[0], self.file.stopping.min_history
        every = (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else 1.0
        expected = max(1, round(trial.steps / every))
        yield Line(f"          a whole trial of {trial.steps:,} steps would have about {expected:,} losses")
        if len(steps) > 1:
            yield Line(f"time:     {self._time()}")
        if expected < 2 * min_history:
            yield Line(f"few:      spikes are found after {min_history} losses; print one every step, or nearly")
        if self.question is not None:
            yield Line(f"unclear:  {self.question}")

    def _table(self) -> Table:
        """The first and the last points, with their norms."""
        few = len(self.points) <= 2 * _SHOWN
        chosen = self.points if few else [*self.points[:_SHOWN], *self.points[-_SHOWN:]]
        rows = (
            (f"{step:,}", f"{loss:.6g}", "-" if norm is None or math.isnan(norm) else f"{norm:.6g}")
            for step, loss, norm in chosen
        )
        return Table(("step", "loss", "gradient norm"), tuple(rows), indent=1)

    def _time(self) -> str:
        """How long a whole trial and the sweep would take, from when steps were read."""
        from orchestrator.base.words import format_seconds
        from orchestrator.driver.packing import planned_workers

        sweep = self.file
        (first_s, first), (last_s, last) = self.seen[0], self.seen[-1]
        # What came before the first report, imports and data, is paid once a trial. A script that ended before a
        # second report shows only how long it took.
        per_step_s = (last_s - first_s) / (last - first) if last > first else last_s / (last + 1)
        trial_s = last_s + max(0.0, sweep.trials[0].steps - last - 1) * per_step_s
        at_a_time = min(planned_workers(sweep), len(sweep.trials))
        one = f"{trial_s:.1f} s" if trial_s < 60 else format_seconds(trial_s)
        whole = format_seconds(len(sweep.trials) * trial_s / at_a_time)
        return (
            f"a whole trial takes about {one}, all {len(sweep.trials)} of the sweep about {whole} "
            f"({at_a_time} at a time on this machine)"
        )


def _points(traces: Sequence[Trace]) -> list[tuple[int, float, float | None]]:
    return [
        (int(trace["step"][i]), float(trace["loss"][i]), float(trace["grad_norm"][i]) if "grad_norm" in trace else None)
        for trace in traces
        for i in range(len(trace["step"]))
    ]


def _last(readings: Sequence[Trace]) -> dict[str, tuple[int, float]]:
    """The last value of what was read besides losses and norms, with its step."""
    last: dict[str, tuple[int, float]] = {}
    for trace in readings:
        for name in trace:
            known = [i for i, value in enumerate(trace[name]) if math.isfinite(value)]
            if name != "step" and known:
                last[name] = int(trace["step"][known[-1]]), float(trace[name][known[-1]])
    return last
