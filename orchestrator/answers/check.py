"""What is read of a custom trainer's output, from one trial that runs for a moment."""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED, InputError, Problem
from orchestrator.base.query import Query, Say, Subject, hidden, option, reported, silent
from orchestrator.base.vocabulary import ENOUGH_LOSSES
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line, Table

if TYPE_CHECKING:
    from orchestrator.base.packs import Trace
    from orchestrator.driver.timing import TrialTime
    from orchestrator.sweepfile.spec import Sweep

_SHOWN = 3  # first and last points
_REPORT_S = 0.2
_TIMED_S = 1.0  # a shorter look says too little about how long a step takes
_BEYOND = 1.2  # times the steps of a trial, since a counter of an epoch may end early
_INTERVALS = (
    "`logging_steps` of Transformers, `log_every_n_steps` of Lightning, `log_interval` of nanoGPT, `--log-interval` of "
    "Megatron and of PyTorch's examples"
)
# What trainers call the settings that a diagnosis knows.
_FACTS: Mapping[str, str] = {
    **{name: "warmup" for name in ("warmup", "warmup_iters", "warmup_steps", "num_warmup_steps", "lr_warmup_iters")},
    **{f"{prefix}{name}": name for prefix in ("", "adam_") for name in ("beta1", "beta2", "eps")},
    **{name: "eps" for name in ("epsilon", "adam_epsilon")},
    **{
        name: "clip"
        for name in ("clip", "grad_clip", "clip_grad", "max_grad_norm", "gradient_clip_val", "grad_norm_clip")
    },
    **{name: "weight_decay" for name in ("weight_decay", "wd")},
    **{name: "optimizer" for name in ("optimizer", "optim", "opt")},
    **{name: "precision" for name in ("precision", "dtype")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuery(Query["tuple[Sweep, Path]"]):
    """Check what is read of a custom trainer's output, from one trial that runs for a moment.

    Only its speed is kept, for `plan`. For example `sweep check mine.yaml --losses 50`.
    """

    panel: ClassVar[str] = "train"
    subject: ClassVar[Subject] = "file"
    imports_code: ClassVar[bool] = True

    losses: int = option(20, "losses after which the trial is ended", minimum=1)
    timeout: float = option(60.0, "seconds after which it is ended in any case", minimum=1)

    def ask(self, subject: tuple[Sweep, Path], say: Say = silent) -> CheckAnswer:
        """Train the first trial until ``losses`` losses were read, in a folder that is then removed."""
        from orchestrator.base.packs import Completed, LaunchedPack, Member, Paused
        from orchestrator.base.processes import inherited
        from orchestrator.driver.packing import pack_of
        from orchestrator.driver.planning import check_runnable
        from orchestrator.driver.timing import keep_trial_time
        from orchestrator.sweepfile.custom_trainer import CustomTrainer
        from orchestrator.worker.forked_run import launched_run
        from orchestrator.worker.launcher import close_server

        sweep, own = subject[0], subject[0].objective
        if not isinstance(own, CustomTrainer):
            remedy = f"it trains {own.name}, whose losses are known; `sweep plan` shows what would run"
            message = "is not a custom trainer, so there is nothing to check"
            raise InputError(Problem(sweep.name, "objective", message, remedy))
        trial = sweep.trials[0]
        with inherited(sweep.receiver, None), tempfile.TemporaryDirectory(prefix="sweep-check-") as folder:
            check_runnable(sweep, Path(folder) / sweep.name)
            pack = pack_of(sweep, [Member(trial.trial_id, trial.config, trial.seed)], 0)
            assert isinstance(pack, LaunchedPack), "it is of a custom trainer"
            pack = replace(pack, launch=replace(pack.launch, trials_folder=folder, report_s=_REPORT_S))
            say(f"running:  {own.summary}")
            say(f"          with {trial.name}, for at least {self.losses} losses, at most {self.timeout:g} s")
            run, traces, error, began = launched_run(pack, None), list["Trace"](), None, time.monotonic()
            has_ended = False
            readings: list[Trace] = []
            seen: list[tuple[float, float]] = []  # when the last step of each report was read, and which one it was
            try:
                for report in run.reports(began, lambda: False):
                    traces += report.traces.values()
                    readings += report.telemetry.values()
                    error, has_ended = report.error, isinstance(report.ending, Completed) and not run.curve.goes_on
                    now = time.monotonic() - began
                    seen += [(now, float(trace["step"][-1])) for trace in report.traces.values()]
                    has_enough = sum(len(trace["step"]) for trace in traces) >= self.losses
                    if (has_enough and now - seen[0][0] >= _TIMED_S) or now > self.timeout:
                        readings += run.report(began, Paused()).telemetry.values()
                        break
                note, question = (run.source.note, run.source.question) if error is None or traces else ("", None)
                output = run.folder.output(0)
                is_silent = own.section.metrics.file is None and not (output.exists() and output.stat().st_size)
            finally:
                run.close()
                close_server()
        elapsed = time.monotonic() - began
        points, also = _points(traces), _last(readings)
        facts = _facts(own.section.command or (), sweep)
        answer = CheckAnswer(
            sweep.name,
            error,
            note,
            question,
            elapsed,
            has_ended,
            is_silent,
            points,
            also,
            facts,
            sweep,
            seen,
            own.section.metrics.score is not None,
        )
        if len(points) > 1:
            keep_trial_time(own, answer.time)
        return answer


@dataclass(frozen=True, slots=True)
class CheckAnswer(Answer):
    """What was read: ``points`` are step, loss and gradient norm, ``also`` the last values of other metrics.

    ``question`` says what is not clear about the losses. The trial ``has_ended`` by itself, or ``is_silent`` so far.
    ``facts`` are settings that the command seems to keep, as the sweep file may say.
    """

    sweep: str
    error: str | None
    note: str
    question: str | None
    elapsed_s: float
    has_ended: bool
    is_silent: bool
    points: list[tuple[int, float, float | None]]
    also: dict[str, tuple[int, float]]
    facts: dict[str, bool | int | float | str]
    file: Sweep = hidden()
    seen: Sequence[tuple[float, float]] = hidden()
    has_score: bool = hidden()

    @property
    def exit_code(self) -> int:
        """The code for a trial that failed if it has no outcome, or if it is not clear which losses count."""
        return EXIT_OK if self.kind in ("read", "few", "units") else EXIT_SOME_FAILED

    @reported
    def every(self) -> float:
        """Usual number of steps between two losses."""
        steps = [step for step, _, _ in self.points]
        return median(later - step for step, later in itertools.pairwise(steps)) if len(steps) > 1 else 1.0

    @property
    def _expected(self) -> int:
        """The losses of a whole trial, at least."""
        if self.has_ended or self._counts_beyond:
            return len(self.points)
        return max(1, round(self.file.trials[0].steps / self.every))

    @property
    def _counts_beyond(self) -> bool:
        """Whether the trainer counts something else than the steps of the sweep file."""
        return self.points[-1][0] > _BEYOND * self.file.trials[0].steps + self.every

    @reported
    def kind(self) -> str:
        """What was found: ``failed``, ``silent``, ``none``, ``question``, ``too_few``, ``signed``, ``units``, ``few``
        or ``read``; only losses of the last three are judged.
        """
        if self.error is not None:
            return "failed"
        if not self.points:
            return "silent" if self.is_silent else "none"
        if self.question is not None:
            return "question"
        if self._expected < ENOUGH_LOSSES:
            return "too_few"
        if any(loss < 0 for _, loss, _ in self.points) and not self.has_score:
            return "signed"
        if self._expected < 2 * self.file.stopping.min_history:
            return "few"
        return "units" if self._counts_beyond else "read"

    @reported
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if self.error is not None:
            return f"the trial failed: {self.error.strip().rsplit(chr(10), 1)[-1]}"
        if not self.points:
            longer = f"it may still import or compile; `--timeout {5 * math.ceil(self.elapsed_s):g}` waits longer"
            if self.is_silent:
                return f"no output yet in {self.elapsed_s:.0f} s: {longer}"
            waits = "" if self.has_ended else f"; {longer}"
            named = "say under metrics what it is called, or its file"
            return f"no loss in {self.elapsed_s:.0f} s: {self.note}{waits}; {'' if self.has_ended else 'or '}{named}"
        if self.question is not None:
            return f"it is not clear which losses count: {self.question}"
        expected, min_history = self._expected, self.file.stopping.min_history
        whole = f"{count(expected, 'loss', 'losses')} in a whole trial"
        if self.kind == "too_few":
            return f"too few losses are read: {whole}, and a trial with fewer than {ENOUGH_LOSSES} has no outcome"
        if self.kind == "signed":
            return (
                f"the loss goes below zero, so only NaN and infinity count as lost: name a score under metrics; {whole}"
            )
        if self.kind == "few":
            return f"few losses are read: {whole}, and spikes are found after {min_history}"
        if self.kind != "units":
            return f"its losses are read: {whole}"
        beyond = f"it counts to {self.points[-1][0]:,}, beyond the {self.file.trials[0].steps:,} of `steps`"
        if self.has_ended:
            return f"its losses are read: {whole}, but {beyond}, which must be in its units"
        return f"its losses are read, but {beyond}, which must be in its units; or pass {{steps}} on to end it there"

    @reported
    def remedy(self) -> str:
        """How there would be more losses, if they are few."""
        if not self.points or self._expected >= 2 * self.file.stopping.min_history:
            return ""
        unit = self.points[0][0] if len(self.points) == 1 else round(self.every)
        if unit < 2 and self.has_ended and len(self.points) < self.file.trials[0].steps:
            return f"train more steps, or let it log each of them: {_INTERVALS}"
        if unit < 2:
            return "train more steps"
        return (
            f"it counts in units of {unit}. If it logs every {unit} steps, let it log every step: {_INTERVALS}. If it "
            "counts samples or environment steps, train longer"
        )

    def blocks(self) -> Iterator[Block]:
        """Yield what was found, what was read, and how long the sweep would take."""
        yield Line(self.sentence)
        if self.error is not None:
            yield Line("output:   " + self.error.strip().replace("\n", "\n          "))
            return
        if not self.points:
            return
        yield Line(f"read:     {self.note}")
        yield self._table()
        steps, trial = [step for step, _, _ in self.points], self.file.trials[0]
        yield Line(f"          {count(len(steps), 'loss', 'losses')} in {self.elapsed_s:.1f} s, {self._range()}")
        if self.also:
            shown = (f"{name} {value:.6g} at step {step:,}" for name, (step, value) in self.also.items())
            yield Line(f"also:     {', '.join(shown)}")
        if self._counts_beyond:
            yield Line(f"units:    write under `steps` how far it counts in a whole trial, {self._range()} so far")
        if not self.has_ended and not self._counts_beyond:
            yield Line(f"          a whole trial of {trial.steps:,} steps would have about {self._expected:,} losses")
        if steps[0] > 2 * self.every:
            yield Line(
                f"begins:   at step {steps[0]:,}: if it goes on from a checkpoint that trials share, they continue "
                "each other; {folder} in its path separates them"
            )
        if self.remedy:
            yield Line(f"few:      {self.remedy}")
        if len(steps) > 1:
            yield Line(f"time:     {self._time()}")
        if self.facts:
            written = ", ".join(f"{name}: {value}" for name, value in self.facts.items())
            yield Line(f"facts:    if the command means what it says, add `facts: {{{written}}}` for `sweep diagnose`")

    def _range(self) -> str:
        first, last = self.points[0][0], self.points[-1][0]
        return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"

    def _table(self) -> Table:
        """The first and the last points, with their norms."""
        few = len(self.points) <= 2 * _SHOWN
        chosen = self.points if few else [*self.points[:_SHOWN], *self.points[-_SHOWN:]]
        rows = (
            (f"{step:,}", f"{loss:.6g}", "-" if norm is None or math.isnan(norm) else f"{norm:.6g}")
            for step, loss, norm in chosen
        )
        return Table(("step", "loss", "gradient norm"), tuple(rows), indent=1)

    @property
    def time(self) -> TrialTime:
        """How long a trial takes, from when steps were read.

        What came before the first report, imports and data, is paid once a trial. A script that ended before a second
        report shows only how long it took.
        """
        from orchestrator.driver.timing import TrialTime

        (first_s, first), (last_s, last) = self.seen[0], self.seen[-1]
        per_step_s = (last_s - first_s) / (last - first) if last > first else last_s / (last + 1)
        return TrialTime(last_s - (last + 1) * per_step_s, per_step_s)

    def _time(self) -> str:
        """How long a whole trial and the sweep would take, from when steps were read."""
        from orchestrator.base.words import format_seconds
        from orchestrator.driver.packing import planned_workers

        sweep = self.file
        (last_s, last), steps = self.seen[-1], sweep.trials[0].steps
        trial_s = last_s if self.has_ended else self.time.of(max(steps, int(last) + 1))
        at_a_time = min(planned_workers(sweep), len(sweep.trials))
        one = f"{trial_s:.1f} s" if trial_s < 60 else format_seconds(trial_s)
        whole = format_seconds(len(sweep.trials) * trial_s / at_a_time)
        return (
            f"a whole trial takes about {one}, all {len(sweep.trials)} of the sweep about {whole} "
            f"({at_a_time} at a time on this machine)"
        )


def _facts(command: Sequence[str], sweep: Sweep) -> dict[str, bool | int | float | str]:
    """The settings with usual names to which the ``command`` gives a value, such as ``--warmup_iters=30``."""
    from orchestrator.sweepfile.overrides import parse_scalar

    words = [part for word in command for part in (word.split("=", 1) if word.startswith("-") else [word])]
    found = {}
    for flag, value in itertools.pairwise(words):
        plain = flag.lstrip("-").replace("-", "_").lower().rpartition(".")[2]  # of --trainer.grad_norm_clip
        name = _FACTS.get(plain) if flag.startswith("-") else None
        if name is not None and "{" not in value and not value.startswith("--"):
            found[name] = parse_scalar(value)
    return {name: value for name, value in found.items() if name not in {*sweep.facts, *sweep.trials[0].config}}


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
