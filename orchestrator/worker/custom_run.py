"""Run one trial of a custom trainer: start its processes, read their output, and determine its ending."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.environment import OWN_PYTHON, describe_process
from orchestrator.base.files import atomic_write
from orchestrator.base.measure import SCORE
from orchestrator.base.packs import Completed, Ending, Failed, LaunchedPack, Lost, Paused, Report
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.vocabulary import ENOUGH_LOSSES
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord
from orchestrator.detection.outcomes import judge, member_result
from orchestrator.detection.partial_sums import TrialMonitor
from orchestrator.detection.run_monitor import is_audited
from orchestrator.detection.scores import Scores
from orchestrator.detection.validations import Validations
from orchestrator.logs.columns import MetricsConfig
from orchestrator.logs.point_maker import VALIDATION, Point, Reading
from orchestrator.sweepfile.custom_trainer import GIVEN, command_of, render, takes_steps
from orchestrator.sweepfile.entries import are_rules, rules_of
from orchestrator.worker.fork_server import FUNCTION
from orchestrator.worker.launcher import CannotStart, Launcher
from orchestrator.worker.own_verdict import (
    Losses,
    aborted,
    first_to_fail,
    how_failed,
    own_verdict,
    question_of,
    signal_from_outside,
)
from orchestrator.worker.points import Curve, Process, Readings, Source, TrialFolder, WatchReadings
from orchestrator.worker.recorded import recorded_firings, recorded_points, recorded_readings
from orchestrator.worker.trainer_checkpoints import changed_at, read_text, trainer_checkpoints

# A paused trial must end before the driver stops waiting for its last report.
_MAX_PAUSE_S = 8.0
_SHOWN_LINES = 20
_CAUSE_S = 2.0  # in which the process that made another one fail is seen to have ended, too


class CustomRun:
    """One trial, from the start of its processes to its result."""

    at_a_time = 1
    waited: tuple[str, ...] = ()  # it is the only member
    poll_s = 0.05
    skips_existing = False  # whether the metrics file may start with lines of another run

    def __init__(self, pack: LaunchedPack, launcher: Launcher | None) -> None:
        self.pack, self.launch = pack, pack.launch
        (self.member,) = pack.members
        self.stopping = StoppingConfig(**pack.stopping)
        self.is_audited = is_audited(self.member.trial_id, self.stopping.audit)
        # An earlier attempt was not pruned at these rungs, so neither is its repetition.
        open_bars = [replace(bar, loss=math.inf) for bar in pack.rung_thresholds]
        self.monitor = TrialMonitor(self.stopping, self.is_audited, open_bars, pack.steps)
        self.folder = TrialFolder(Path(self.launch.trials_folder) / self.member.trial_id)
        self.launcher = launcher or Launcher(self.launch.preload)
        self.curve = Curve(None if takes_steps(self.member.config) else pack.steps)
        self._readings, self._validations = Readings(), Validations()
        score = self.member.config.get("metrics", {}).get("score", {})
        self._scores = Scores(self.launch.maximizes, self.stopping.validation_patience, score.get("initial"))
        self._watched = WatchReadings(self.folder.telemetry)
        self.is_over = self._has_reported = False  # it is over at the detector's verdict
        self.environment: Mapping[str, str] = {}
        self._children: list[Process] = []
        self._finished: list[MemberResult] = []
        self._failed_at: float | None = None
        self._source: Source | None = None

    @property
    def source(self) -> Source:
        """The source of its losses; only after the run has started."""
        assert self._source is not None
        return self._source

    @property
    def is_pruned(self) -> bool:
        """Whether it ends because it is slow."""
        return self.is_over and self.monitor.rung_progress().is_pruned

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """Yield a report every ``launch.report_s`` seconds, and a last one with the result or the reason for none."""
        try:
            self._start()
        except CannotStart as error:
            yield self.report(started, Failed(str(error)))
            return
        last_report = last_news = time.monotonic()
        while True:
            if self._poll():
                last_news = time.monotonic()
            if self.is_over or self._has_ended():
                break
            if (now := time.monotonic()) - last_news > self.launch.silence_s:
                if self.source.goes_back:
                    break
                yield self._hung(started)
                return
            if now - last_report >= self.launch.report_s:
                last_report = now
                yield self.report(started)
                if wants_pause():
                    yield from self._wait_for_end(started, min(self.launch.grace_s, _MAX_PAUSE_S))
                    # Output from before its checkpoint belongs to the curve that resumes there.
                    self._take(self.source.finish(self._children[0]))
                    if not self.is_over:
                        yield self.report(started, Paused())
                        return
        if self.is_over:
            # A `Watch` reaches a verdict itself, but knows no other trials, so not that this one is slow.
            is_informed = self.source.uses_watch and not self.is_pruned and self._scores.plateau_step is None
            yield from self._wait_for_end(started, self.launch.grace_s, is_informed=is_informed)
        else:
            for child in self._children[1:]:
                child.read()  # what it wrote between the last look and its end, which a pipe holds and one read takes
            self._take(self.source.finish(self._children[0]))
        yield self._last_report(started)

    def report(self, started: float, ending: Ending | None = None) -> Report:
        """Return everything since the last report."""
        trace = self.curve.take()
        self._take_readings()
        # A `Watch` writes the reading of a step after its row, so only the last row may still lack readings.
        last_step = (self.curve.last_step or 0) if self._watched.has_any else None
        readings = self._readings.take(is_last=ending is not None, last_step=last_step)
        report = Report(
            pack_id=self.pack.pack_id,
            member_steps=self.curve.steps_done,
            steps_in_hand=0 if ending is not None else self.curve.steps_done,
            seconds=time.perf_counter() - started,
            traces={self.member.trial_id: trace} if trace else {},
            telemetry={self.member.trial_id: readings} if readings else {},
            finished=tuple(self._finished),
            ending=ending,
            environment=self.environment,
            at_a_time=self.at_a_time,
            is_from_start=not self._has_reported,
            num_risen=self.monitor.num_risen if ending is None else 0,
        )
        self._finished, self.environment, self._has_reported = [], {}, True
        return report

    def close(self) -> None:
        """Leave no process running."""
        self._close_children()
        self.launcher.close()

    def _close_children(self) -> None:
        for child in self._children:
            child.close()

    def _start(self) -> None:
        config, launch = self.member.config, self.launch
        values = {name: value for name, value in config.items() if name not in GIVEN and not are_rules(name, value)}
        own = {"workers": config["workers"]} if "workers" in config else {}
        given = {"steps": self.pack.steps, "seed": self.member.seed, "folder": str(self.folder.path), **own}

        def filled(text: str) -> str:
            names = {"trial": self.member.trial_id, "config": str(self.folder.settings)}
            return render(text, {"workers": 1} | values | given | names)

        is_resumed = self._resume(filled)
        self.monitor.compare_with(self.pack.rung_thresholds)
        self.folder.prepare(keep=is_resumed)
        atomic_write(self.folder.settings, json.dumps(self._settings(values | given), indent=1))
        is_function = "python" in config
        metrics = MetricsConfig(**config["metrics"]) if "metrics" in config else None
        if metrics is not None and metrics.file is not None:
            metrics = metrics.model_copy(update={"file": os.path.join(launch.folder, filled(metrics.file))})
        self._source = Source(
            metrics,
            self.folder,
            after=self.curve.last_step,
            keeps_points=launch.checkpoint is not None,
            is_function=is_function,
            skips_existing=self.skips_existing,
        )
        if is_function:
            command = [*OWN_PYTHON, "-m", FUNCTION, config["python"]]
        else:
            words = [filled(word) for word in config["command"]]
            command = command_of([*words, *(self._resume_arguments(filled) if is_resumed else ())])
        environment = {
            "PYTHONUNBUFFERED": "1",  # otherwise a script's lines arrive only when its buffer is full
            "OMP_NUM_THREADS": str(self.pack.cpus),
            "SWEEP_TRIAL": str(self.folder.settings),
            **{name: filled(text) for name, text in config.get("environment", {}).items()},
        }
        for rank, variables in enumerate(self.launcher.environments(launch.workers, is_elastic=bool(launch.sizes))):
            log = self.folder.output(rank)
            self._children.append(self.launcher.start(rank, command, launch.folder, {**environment, **variables}, log))
        self.environment = {
            **describe_process(),
            "device": "cuda" if launch.gpus_per_worker else "cpu",
            "command": " ".join(command),
        }

    def _resume(self, filled: Callable[[str], str]) -> bool:
        """Read the curve of an earlier attempt if the trainer has a checkpoint; returns whether there is one."""
        if self._checkpoint(filled) is None:
            return False
        self._take(recorded_points(self.folder))
        self._add_readings(recorded_readings(self.folder))
        self.curve.resume()
        return self.curve.last_step is not None

    def _checkpoint(self, filled: Callable[[str], str]) -> str | None:
        """Return the newest checkpoint of an earlier attempt, or None."""
        return max(self.checkpoints(filled), key=changed_at, default=None)

    def checkpoints(self, filled: Callable[[str], str]) -> list[str]:
        """Return the trainer's checkpoints in its folder; several if the sweep file has a glob."""
        pattern, folder = self.launch.checkpoint, self.launch.folder
        return [] if pattern is None else trainer_checkpoints(filled(pattern), folder, str(self.folder.path))

    def _resume_arguments(self, filled: Callable[[str], str]) -> list[str]:
        """Return the arguments for resuming; {checkpoint} is the path of the newest checkpoint."""
        path = (self._checkpoint(filled) or "").replace("{", "{{").replace("}", "}}")
        return [filled(text.replace("{checkpoint}", path)) for text in self.launch.resume_arguments]

    def _settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings for the trainer's process and a `Watch` in it."""
        return {
            "trial_id": self.member.trial_id,
            "config": dict(values),
            "seed": self.member.seed,
            "steps": self.pack.steps,
            "stopping": dict(self.pack.stopping),
            "is_audited": self.is_audited,
            "rows": str(self.folder.rows),
            "telemetry": str(self.folder.telemetry),
            "control": rules_of(self.member.config),
            "folder": str(self.folder.path),
        }

    def _poll(self) -> bool:
        """Process output for a short time; returns whether there was a loss."""
        points = self.source.read(self._children[0], self.poll_s)
        for child in self._children[1:]:
            child.read()
        self._take(points)
        return bool(points)

    def _take(self, points: Iterable[Point]) -> None:
        """Monitor points until a verdict ends the run."""
        for point in points:
            if self.is_over:
                return
            if self.curve.add(point):
                row = {**point.others, "loss": point.loss, "grad_norm": point.grad_norm}
                is_lost = self.monitor.update_single(point.step, row) or self.curve.goes_on
                # Nothing is stopped while it is in question whether these are the training's losses.
                self.is_over = is_lost and (self._source is None or self.source.question is None)

    def _take_readings(self) -> None:
        """Take validation losses and telemetry read since the last call."""
        if self._source is not None:
            self._add_readings(self._source.take_readings())
            self._readings.add(self._watched.take())

    def _add_readings(self, readings: Sequence[Reading]) -> None:
        self._readings.add(readings)
        for reading in readings:
            if VALIDATION in reading.values:
                self._validations.add(reading.step, reading.values[VALIDATION])
            if SCORE in reading.values:
                self._scores.add(reading.step, reading.values[SCORE])
        self.is_over |= self._scores.plateau_step is not None and not self.is_audited

    def _has_ended(self) -> bool:
        """Whether all processes have ended, or one ended such that the others would wait for it forever."""
        codes = [child.returncode() for child in self._children]
        if all(code is not None for code in codes):
            return True
        if all(code in (None, 0) for code in codes):
            return False
        # If a rank is killed after the last step, the others may be about to end; before it, one may be the cause.
        self._failed_at = self._failed_at or time.monotonic()
        return time.monotonic() - self._failed_at > (self.launch.grace_s if self._is_complete else _CAUSE_S)

    @property
    def _is_complete(self) -> bool:
        """Whether it has reported every step."""
        return self.curve.steps_done >= self.pack.steps

    def _wait_for_end(self, started: float, grace_s: float, *, is_informed: bool = False) -> Iterator[Report]:
        """Wait for the processes to end: by themselves if they are informed, otherwise by SIGTERM, then SIGKILL."""
        began = time.monotonic()
        asked = not is_informed
        if asked:
            self._terminate()
        last_report = began
        while time.monotonic() - began < grace_s * (1 if asked else 2):
            if all(child.returncode() is not None for child in self._children):
                return
            self._poll()  # its output no longer counts, but a full pipe would block it
            if not asked and time.monotonic() - began >= grace_s:
                asked = True
                self._terminate()
            if time.monotonic() - last_report >= self.launch.report_s:
                last_report = time.monotonic()
                yield self.report(started)

    def _terminate(self) -> None:
        for child in self._children:
            child.terminate()

    def _hung(self, started: float) -> Report:
        silence = f"no loss for {self.launch.silence_s:g} s (resources.stall_timeout_s)"
        if self.curve.last_step is None:
            return self._failed(started, f"{silence}; {self.source.note}", is_hung=True)
        cause = self._with_output(f"{silence} after step {self.curve.last_step}: it hangs")
        return self.report(started, Lost(cause, is_hung=True))

    def _last_report(self, started: float) -> Report:
        """Report the result, or the reason for its absence."""
        codes = [child.returncode() for child in self._children]
        failed = first_to_fail(codes)
        if failed is not None and self._is_complete and (codes[0] == 0 or aborted(self._children[0].last_lines())):
            # Libraries of collectives may abort at exit, after the training has ended.
            failed = None
        record = self.monitor.record()
        diverged = None if self.is_over else self._own_verdict(codes, failed or 0, record)
        is_judged = self.curve.last_step is not None and (failed is None or not record.is_finite)
        has_result = self.is_over or is_judged or diverged is not None
        if has_result and not self.is_over and self.source.only_repeats:
            where = f"no step beyond {self.curve.last_step}"
            return self._failed(started, f"it resumed, but printed {where}: steps must go on from the checkpoint")
        if has_result and (question := self.source.question) is not None:
            return self._failed(started, question)
        if has_result and rules_of(self.member.config) and not self.source.uses_watch:
            return self._failed(started, "rules of `control` act in a trainer that reports to orchestrator.Watch only")
        if has_result:
            validation = math.nan if self.is_pruned else self.source.validation_loss
            # A trial whose losses were in question at a rung has trained on.
            progress = replace(self.monitor.rung_progress(), is_pruned=self.is_pruned)
            self._take_readings()
            result = member_result(
                self.member.trial_id,
                record,
                self.stopping,
                self.curve.steps_done,
                validation,
                progress,
                self._validations,
                has_score=self._scores.final is not None,
                diverged=diverged,
            )
            read = read_text(self.curve, record.num_steps, self.pack.steps, self.source.note)
            result = replace(
                result,
                is_audited=self.is_audited,
                score=None if self.is_pruned else self._scores.final,
                initial_score=self._scores.initial(self.pack.steps),
                plateau_step=self._scores.plateau_step,
                fired=recorded_firings(self.folder) if self.source.uses_watch else (),
                reason="; ".join(filter(None, [result.reason, self._scores.plateau_text, read])),
                # Runs that break at once have equal curves by chance.
                curve_digest=self.curve.digest if record.num_steps >= ENOUGH_LOSSES else None,
            )
            self._finished.append(result)
            return self.report(started, Completed())
        if failed is None:
            where = f"{self.source.note}; say under metrics what it is called, or which file has it"
            return self._failed(started, f"it ended with exit code 0 and without a loss; {where}")
        code = codes[failed]
        assert code is not None
        who = f"rank {failed} " if self.launch.workers > 1 else "it "
        lines = self._last_lines(failed)
        cause = f"{who}{how_failed(code, lines)}"
        if signal_from_outside(code) is not None:
            return self.report(started, Lost(self._with_output(cause, failed)))
        return self._failed(started, f"{cause}{question_of(lines)}", failed)

    def _own_verdict(self, codes: Sequence[int | None], rank: int, record: MemberRecord) -> str | None:
        has_diverged = judge(record, self.stopping).outcome == "diverged"
        losses = Losses(self.curve.first_loss, self.curve.last_loss, has_diverged, self._is_complete)
        return own_verdict(codes[rank], losses, self._children[rank].last_lines(), self.launch.diverged_if)

    def _failed(self, started: float, cause: str, rank: int = 0, *, is_hung: bool = False) -> Report:
        return self.report(started, Failed(self._with_output(cause, rank), is_hung=is_hung))

    def _with_output(self, cause: str, rank: int = 0) -> str:
        """Return the last output of a process, with ``cause`` as the last line."""
        return "\n".join([*self._last_lines(rank), cause])

    def _last_lines(self, rank: int) -> list[str]:
        return self._children[rank].last_lines()[-_SHOWN_LINES:] if self._children else []
