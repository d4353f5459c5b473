"""The verdicts of the detector on logs of any origin, and on finished sweeps under other settings."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
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
from orchestrator.base.errors import EXIT_BAD_INPUT, EXIT_OK, InputError, Problem
from orchestrator.base.files import (
    FROZEN_SWEEP,
    LEDGER,
    REPLAYS,
    check_no_links,
    check_output,
    storage_errors,
)
from orchestrator.base.query import Query, Say, Subject, option, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Figure, Line, Table, picture_of

if TYPE_CHECKING:
    from orchestrator.detection.config import StoppingConfig
    from orchestrator.detection.episodes import Episode
    from orchestrator.logs.tables import Log
    from orchestrator.maps.replay import Replayed, ReplayedTrial

MLFLOW_PREFIX = "mlflow:"
_EPISODES_SHOWN = 3
_LONGEST_NAME = 200  # characters of a file name, whose limit is 255 bytes
_CHANGES_SHOWN = 20
_UNCLEAR_SHOWN = 5
_RISES_SHOWN = 5
_BATCH = 32  # logs that are judged at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuery(Query["tuple[Sequence[str], Path]"]):
    """Judge training logs of any origin: outcomes, spikes, and where they would have been stopped.

    Reads CSV and TSV, JSON lines, trainer_state.json, metrics.csv, TensorBoard event files, and text with lines such as
    `step 10 loss 3.2`. For a finished sweep it shows which outcomes other settings change. For example `sweep replay
    train.log --loss lm_loss`, or `sweep replay lr_warmup --set stopping.window=30`.
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
    pattern: str | None = pattern_option()
    format: str = format_option()

    def ask(self, subject: tuple[Sequence[str], Path], say: Say = silent) -> ReplayAnswer:
        """Return the verdict on each log, and the trials of each sweep under the settings."""
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
        return ReplayAnswer(
            tuple(replayed_sweeps), logs, tuple(reading.notes), tuple(map(str, reading.problems)), folder, self.faint
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
            problem = Problem(path, "", f"none of its {len(others)} files is a log")
            self.problems.append(InputError(problem, *map(str, others[:3])))
            return
        unclear = [error for error in others if "--loss" in str(error)]
        self.notes += [f"left out: {error}" for error in unclear[:_UNCLEAR_SHOWN]]
        if len(others) > len(unclear):
            self.notes.append(f"left out: {len(others) - len(unclear)} files in {path} that are not logs")


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

    @property
    def exit_code(self) -> int:
        """The code for bad input if a log cannot be read."""
        return EXIT_BAD_INPUT if self.problems else EXIT_OK

    def to_plain(self) -> Any:
        """Return an entry for each trial and each log."""
        from orchestrator.render.answer import to_plain

        trials = [{"sweep": name, **to_plain(trial)} for name, trials in self.sweeps for trial in trials]
        return [*trials, *(to_plain(log.summary()) for log in self.logs)]

    def blocks(self) -> Iterator[Block]:
        """Yield the outcomes that change in each sweep, and a row for each log."""
        for name, trials in self.sweeps:
            yield from _sweep_blocks(name, trials)
        if self.logs:
            yield from _log_blocks(self.logs, lists_faint=self.lists_faint)
            if self.pictures is not None:
                for one, name in zip(self.logs, _picture_names(self.logs), strict=True):
                    yield Figure(
                        picture_of("traces:trace_figure", one),
                        f"loss of {one.log.name}",
                        self.pictures / name,
                        is_listed=False,
                    )
                yield Line(f"pictures: {self.pictures}/")
        yield from map(Line, self.notes)
        for problem in self.problems:
            yield Caution(problem, "error")


def _log_blocks(replayed: Sequence[Replayed], *, lists_faint: bool) -> Iterator[Block]:
    rows = []
    for one, name in zip(replayed, _shown_names(replayed), strict=True):
        stop = "-" if one.record.lost_step is None else f"step {one.record.lost_step:,}"
        rows.append(
            (
                name,
                f"{len(one.log.step_N):,}",
                one.result.outcome,
                _listed(one.record.episodes),
                f"{stop} (wrong: it came back)" if one.is_wrong_stop else stop,
                f"{one.share_saved:.0%}" if one.record.lost_step is not None else "-",
            )
        )
    yield Table(("log", "points", "outcome", "episodes", "would stop", "saves"), tuple(rows), right=(1, 5))
    for one in replayed:
        if lists_faint:
            yield Line(f"faint episodes of {one.log.name}: {_listed(one.record.faint)}")
        for note in (*one.log.notes, *_notes_on(one)):
            yield Line(f"note: {one.log.name}: {note}")
    columns = {(str(o.log.columns.step), str(o.log.columns.loss), str(o.log.columns.grad_norm)) for o in replayed}
    for step, loss, norm in sorted(columns):
        yield Line(f"columns: step={step} loss={loss} grad-norm={norm}")


def _notes_on(one: Replayed) -> Iterator[str]:
    """What the detector saw that is neither a verdict nor an episode."""
    from orchestrator.detection.run_monitor import NOTE

    record = one.record
    if one.result.risen_share is not None:
        yield f"since step {record.risen_since_step:,} it has given up {record.risen_share:.0%} of what it had learned"
    if record.norm_rises:
        shown = [f"{step:,}" for step in record.norm_rises[:_RISES_SHOWN]]
        more = len(record.norm_rises) - _RISES_SHOWN
        yield f"{NOTE}, at step {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")


def _shown_names(replayed: Sequence[Replayed]) -> list[str]:
    """Names without their common folders."""
    parts = [Path(one.log.name).parts for one in replayed]
    shared = 0
    if len(parts) > 1:
        while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
            shared += 1
    return [str(Path(*p[shared:])) if shared else one.log.name for p, one in zip(parts, replayed, strict=True)]


def _listed(episodes: Sequence[Episode]) -> str:
    def shown(step: int | None) -> str:
        return "end" if step is None else f"{step:,}"

    texts = [f"{shown(e.onset_step)} to {shown(e.recovery_step)}" for e in episodes[:_EPISODES_SHOWN]]
    if len(episodes) > _EPISODES_SHOWN:
        texts.append(f"{len(episodes) - _EPISODES_SHOWN} more")
    return f"{len(episodes)}: {', '.join(texts)}" if episodes else "none"


def _picture_names(replayed: Sequence[Replayed]) -> list[str]:
    """A file name for each picture: the name of the log, after as many folders as make it unique."""
    names: list[str] = []
    for one in replayed:
        parts = [re.sub(r"[^\w.=-]+", "_", part) for part in Path(one.log.name).parts if part not in ("/", "..", ".")]
        for num in range(1, len(parts) + 1):
            name = _ending("__".join(parts[-num:])) + ".png"
            if name not in names:
                break
        names.append(name if name not in names else f"{name.removesuffix('.png')}_{len(names)}.png")
    return names


def _ending(name: str) -> str:
    """The end of ``name``, short enough for a file name."""
    return name.encode()[-_LONGEST_NAME:].decode(errors="ignore")


def _sweep_blocks(name: str, trials: Sequence[ReplayedTrial]) -> Iterator[Block]:
    """The outcomes of a sweep that change under other settings."""
    changed = [trial for trial in trials if trial.is_changed]
    yield Line(f"{name}: {len(trials)} finished trials, {len(changed)} with another outcome")
    for (before, after), count in sorted(Counter((t.outcome, t.new_outcome) for t in changed).items()):
        yield Line(f"{before} -> {after}: {count}", 1)
    trained, needed = sum(t.steps_done for t in trials), sum(t.new_steps_done for t in trials)
    yield Line(f"member-steps: {trained:,} trained, {needed:,} until the new verdicts")
    if any(trial.new_outcome == "unknown" for trial in trials):
        why = "training was stopped before the new settings would have judged, or not every step was kept"
        yield Line(f"unknown: {why}")
    if not changed:
        return
    rows = tuple(
        (
            trial.cell.name,
            str(trial.seed), trial.outcome, trial.new_outcome, f"{trial.new_steps_done - 1:,}", trial.reason,
        )
        for trial in changed[:_CHANGES_SHOWN]
    )  # fmt: skip
    yield Table(("trial", "seed", "was", "is", "at step", "because"), rows)
    if len(changed) > _CHANGES_SHOWN:
        yield Line(f"... and {len(changed) - _CHANGES_SHOWN} more; --json FILE writes them all")
