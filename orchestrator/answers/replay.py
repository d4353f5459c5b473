"""The verdicts of the detector on logs of any origin, and on finished sweeps under other settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import (
    format_option,
    grad_norm_option,
    log_metrics,
    loss_option,
    pattern_option,
    step_option,
)
from orchestrator.answers._replayed import EPISODES_SHOWN, log_blocks, picture_names, sweep_blocks
from orchestrator.base.errors import EXIT_ALARM, EXIT_BAD_INPUT, EXIT_OK, InputError, Problem
from orchestrator.base.files import (
    FROZEN_SWEEP,
    LEDGER,
    REPLAYS,
    check_no_links,
    check_output,
    storage_errors,
    sweep_folder,
)
from orchestrator.base.query import Query, Say, Subject, option, silent
from orchestrator.base.vocabulary import OUTCOMES, UNKNOWN
from orchestrator.base.words import count, listed, plural
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Figure, Line, picture_of

if TYPE_CHECKING:
    from orchestrator.causes.from_log import LogExplanation
    from orchestrator.causes.remedies.saved import SavedRuns
    from orchestrator.detection.config import StoppingConfig
    from orchestrator.logs.tables import Log
    from orchestrator.maps.replay import Replayed, ReplayedTrial

MLFLOW_PREFIX = "mlflow:"
_UNCLEAR_SHOWN = 5
_BATCH = 32  # logs that are judged at a time
_EXPLAINED = 3  # logs in the text


def outcomes_of(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the outcomes in lists with commas. Raises InputError for another word."""
    words = tuple(dict.fromkeys(word.strip() for text in texts for word in text.split(",") if word.strip()))
    known = (*OUTCOMES, UNKNOWN)
    if wrong := [word for word in words if word not in known]:
        remedy = f"one or several of {', '.join(known)}, with commas"
        raise InputError(Problem(f"--fail-on {','.join(texts)}", "", f"{wrong[0]!r} is not an outcome", remedy))
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuery(Query["tuple[Sequence[str], Path]"]):
    """Judge training logs of any origin: outcomes, spikes, and where they would have been stopped.

    Reads CSV and TSV, JSON lines, trainer_state.json, metrics.csv, TensorBoard event files, and text with lines such as
    `step 10 loss 3.2`. Of a run that left its trend it says the likely cause, what is not known, and what to do. For a
    finished sweep it shows which outcomes other settings change. For example `sweep replay train.log --loss lm_loss`,
    or `sweep replay lr_warmup --set stopping.window=30`. In CI, `sweep replay runs --fail-on diverged` ends with 5.
    """

    panel: ClassVar[str] = "upkeep"
    subject: ClassVar[Subject] = "logs"

    step: str | None = step_option()
    loss: str | None = loss_option()
    grad_norm: str | None = grad_norm_option()
    set_: tuple[str, ...] = option((), "judge with another setting; repeatable", metavar="stopping.KEY=VALUE")
    figures: Path | None = option(None, "folder of the pictures; results/replay by default", metavar="DIR")
    no_figures: bool = option(False, "draw no pictures")
    norm_rises: bool | None = option(
        None,
        "note where the gradient norm rises by half; by default for logs with at most ten steps a point",
        opposite="--no-norm-rises",
    )
    faint: bool = option(False, "list the faint episodes too, which count for nothing")
    fail_on: tuple[str, ...] = option(
        (), "end with exit code 5 if an outcome is one of these", metavar="spiked,diverged,...", read=outcomes_of
    )
    beside: str | None = option(None, "say what became of such runs in this sweep", metavar="SWEEP")
    pattern: str | None = pattern_option()
    format: str = format_option()

    def ask(self, subject: tuple[Sequence[str], Path], say: Say = silent) -> ReplayAnswer:
        """Return the verdict on each log, and the trials of each sweep under the settings."""
        from orchestrator.causes.from_log import explain_log
        from orchestrator.logs.columns import Columns

        paths, results = subject
        self._check()
        folder = None if self.no_figures else self.figures or results / REPLAYS
        is_own = folder == results / REPLAYS
        if is_own:
            check_no_links(results / REPLAYS)
        elif folder is not None and not folder.is_dir():
            check_output(folder, "--figures")
        sweeps = [found for path in paths if (found := _sweep_folder(path, results))]
        others = [path for path in paths if not _sweep_folder(path, results)]
        replayed_sweeps = [(found.name, tuple(_replay_sweep(found, self.set_))) for found in sweeps]
        reading = _Reading(
            Columns(self.step, self.loss, self.grad_norm), results, log_metrics(self.pattern, self.format, self.loss)
        )
        logs: tuple[Replayed, ...] = ()
        if others:
            config = stopping_of(self.set_)
            logs = tuple(_judged(list(reading.logs(others)), config, self.norm_rises))
        if folder is not None and not is_own and logs:
            with storage_errors(folder):
                folder.mkdir(exist_ok=True)
        runs = None if self.beside is None else _runs_of(sweep_folder(self.beside, results))
        return ReplayAnswer(
            tuple(replayed_sweeps),
            logs,
            tuple(reading.notes),
            tuple(map(str, reading.problems)),
            folder,
            self.faint,
            self.fail_on,
            tuple(explain_log(one, runs) for one in logs),
        )

    def _check(self) -> None:
        from orchestrator.sweepfile.overrides import parse_set

        for text in self.set_:
            key = parse_set(text)[0]
            if key[:2] == ("stopping", "slow"):
                what = "a replay judges each run alone, and a slow one is slow compared with others"
                raise InputError(Problem(f"--set {text}", "stopping.slow", what, "remove it"))
            if key == ("stopping", "validation_patience"):
                what = "a replay judges training losses, not validation losses"
                raise InputError(Problem(f"--set {text}", "stopping.validation_patience", what, "remove it"))


def _runs_of(folder: Path) -> SavedRuns:
    from orchestrator.causes.remedies.saved import saved_runs
    from orchestrator.ledger.reader import LedgerReader
    from orchestrator.maps.table import read_table

    with LedgerReader(folder / LEDGER) as ledger:
        return saved_runs(read_table(ledger))


class _Reading:
    """The logs at paths. Files in a folder that are not logs are counted; a named one is a problem."""

    def __init__(self, columns: Any, results: Path, metrics: Any) -> None:
        self._columns, self._results, self._metrics = columns, results, metrics
        self.problems: list[InputError] = []
        self.notes: list[str] = []

    def logs(self, paths: Sequence[str]) -> Iterator[Log]:
        """Yield the logs at ``paths``."""
        from orchestrator.logs.files import find_logs, read_logs

        for path in paths:
            if path.startswith(MLFLOW_PREFIX):
                from orchestrator.mirrors.mlflow_store import read_run

                yield read_run(path.removeprefix(MLFLOW_PREFIX), self._results, self._columns)
                continue
            is_folder = os.path.isdir(path)
            others: list[InputError] = []
            num_logs = 0
            for file in find_logs(Path(path)):
                try:
                    yield from read_logs(file, self._columns, self._metrics)
                    num_logs += 1
                except InputError as error:
                    (others if is_folder else self.problems).append(error)
            if is_folder:
                self._note(path, num_logs, others)

    def _note(self, path: str, num_logs: int, others: Sequence[InputError]) -> None:
        if not num_logs:
            what = f"none of its {len(others)} files is" if others[1:] else "its only file is not"
            problem = Problem(path, "", f"{what} a log")
            self.problems.append(InputError(problem, *map(str, others[:3])))
            return
        unclear = [error for error in others if "--loss" in str(error)]
        self.notes += [f"left out: {error}" for error in unclear[:_UNCLEAR_SHOWN]]
        if len(others) > len(unclear):
            num = len(others) - len(unclear)
            what = plural(num, "is not a log", "are not logs")
            self.notes.append(f"left out: {count(num, 'file')} in {path} that {what}")


def _sweep_folder(path: str, results: Path) -> Path | None:
    for folder in (Path(path), results / path):
        if os.path.isfile(folder / LEDGER):  # False for a name that is too long
            return folder
    return None


def _judged(logs: Sequence[Log], config: StoppingConfig, norm_rises: bool | None) -> list[Replayed]:
    """Judge the logs a few at a time, to show progress."""
    from rich.console import Console
    from rich.progress import track

    from orchestrator.maps.replay import replay_logs

    console = Console()
    by_length = sorted(logs, key=lambda log: len(log.step_N))
    batches = [by_length[start : start + _BATCH] for start in range(0, len(logs), _BATCH)]
    replayed: dict[str, Replayed] = {}
    for batch in track(batches, "judging", console=console, transient=True, disable=not console.is_terminal):
        replayed |= {one.log.name: one for one in replay_logs(batch, config, norm_rises)}
    return [replayed[log.name] for log in logs]


def _replay_sweep(folder: Path, sets: Sequence[str]) -> list[ReplayedTrial]:
    from orchestrator.ledger.reader import LedgerReader, check_has_curves, is_imported
    from orchestrator.maps.replay import replay_sweep
    from orchestrator.sweepfile.overrides import Overrides, parse_set
    from orchestrator.sweepfile.spec import load_sections

    for text in sets:
        if parse_set(text)[0][0] != "stopping":
            raise InputError(Problem(f"--set {text}", "", "changes the training", "replay changes only stopping.KEY"))
    if is_imported(folder):
        with LedgerReader(folder / LEDGER) as ledger:
            check_has_curves(ledger.facts(), "a replay judges curves")
            return replay_sweep(ledger, stopping_of(sets))
    stopping = load_sections(folder / FROZEN_SWEEP, Overrides(sets=tuple(sets))).stopping
    with LedgerReader(folder / LEDGER) as ledger:
        # The value of null comes from the objective, and was recorded when the sweep was run.
        was = json.loads(ledger.facts()["stopping"])
        return replay_sweep(ledger, stopping.resolved(was["spike_rise"], was["gradient_patience"]))


def stopping_of(sets: Sequence[str]) -> StoppingConfig:
    """Return the detector's settings for logs, changed by `--set stopping.KEY=VALUE`. Raises InputError."""
    from pydantic import ValidationError

    from orchestrator.detection.config import StoppingConfig
    from orchestrator.sweepfile.overrides import parse_set

    changes = {}
    for text in sets:
        path, value = parse_set(text)
        if len(path) != 2 or path[0] != "stopping":
            raise InputError(Problem(f"--set {text}", "", "is not a key of stopping", "write e.g. stopping.window=100"))
        changes[path[1]] = value
    try:
        return StoppingConfig(**changes)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(str(part) for part in details["loc"])
        known = f"keys: {', '.join(StoppingConfig.model_fields)}" if details["type"] == "extra_forbidden" else ""
        raise InputError(Problem("--set", f"stopping.{key}", details["msg"], known)) from None


@dataclass(frozen=True, slots=True)
class ReplayAnswer(Answer):
    """Verdicts on logs, and the trials of sweeps under other settings."""

    sweeps: tuple[tuple[str, tuple[ReplayedTrial, ...]], ...]
    logs: tuple[Replayed, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    pictures: Path | None
    lists_faint: bool = False
    fail_on: tuple[str, ...] = ()
    explanations: tuple[LogExplanation | None, ...] = ()

    @property
    def exit_code(self) -> int:
        """The code for bad input if a log cannot be read, or the code of an outcome that was asked to fail."""
        return EXIT_BAD_INPUT if self.problems else EXIT_ALARM if self.failed else EXIT_OK

    @property
    def failed(self) -> list[str]:
        """The logs and trials with an outcome that was asked to fail."""
        trials = [(f"{name} {trial.trial_id}", trial.new_outcome) for name, trials in self.sweeps for trial in trials]
        judged = [*trials, *((one.log.name, one.result.outcome) for one in self.logs)]
        return [f"{name} is {outcome}" for name, outcome in judged if outcome in self.fail_on]

    def to_plain(self) -> Any:
        """Return an entry for each trial and each log."""
        from orchestrator.render.answer import to_plain

        trials = [{"sweep": name, **to_plain(trial)} for name, trials in self.sweeps for trial in trials]
        explained = zip(self.logs, self.explanations, strict=True)
        return [*trials, *({**to_plain(log.summary()), "explanation": to_plain(why)} for log, why in explained)]

    def blocks(self) -> Iterator[Block]:
        """Yield the outcomes that change in each sweep, and a row for each log."""
        for name, trials in self.sweeps:
            yield from sweep_blocks(name, trials)
        if self.logs:
            yield from log_blocks(self.logs, lists_faint=self.lists_faint)
            if self.pictures is not None:
                for one, name in zip(self.logs, picture_names(self.logs), strict=True):
                    yield Figure(
                        picture_of("traces:trace_figure", one),
                        f"loss of {one.log.name}",
                        self.pictures / name,
                        is_listed=False,
                    )
                yield Line(f"pictures: {self.pictures}/")
        yield from self._explained()
        yield from map(Line, self.notes)
        for problem in self.problems:
            yield Caution(problem, "error")
        if self.failed:
            yield Caution(listed(self.failed, EPISODES_SHOWN), "--fail-on")

    def _explained(self) -> Iterator[Block]:
        known = [why for why in self.explanations if why is not None]
        for why in known[:_EXPLAINED]:
            yield from (Line(text, indent) for text, indent in why.lines())
        if len(known) > _EXPLAINED:
            yield Line(f"{count(len(known) - _EXPLAINED, 'more log')} left their trend; --json FILE says why")
