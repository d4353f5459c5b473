"""`sweep replay`: judge logs and finished sweeps, without training."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from orchestrator.base.errors import EXIT_BAD_INPUT, EXIT_OK, InputError, Problem, printable
from orchestrator.base.files import (
    FROZEN_SWEEP,
    LEDGER,
    REPLAYS,
    atomic_write,
    check_no_links,
    check_output,
    storage_errors,
    write_output,
)
from orchestrator.commands.arguments import stopping_of
from orchestrator.commands.printing import Answer, written_json
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.norm_rises import NOTE
from orchestrator.ledger.reader import LedgerReader, check_has_curves, is_imported
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import find_logs, read_log
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import UNKNOWN, Replayed, ReplayedTrial, replay_logs, replay_sweep
from orchestrator.sweepfile.overrides import Overrides, parse_set
from orchestrator.sweepfile.spec import load_sections

MLFLOW_PREFIX = "mlflow:"
_EPISODES_SHOWN = 3
_LONGEST_NAME = 200  # characters of a file name, whose limit is 255 bytes
_CHANGES_SHOWN = 20
_UNCLEAR_SHOWN = 5
_RISES_SHOWN = 5


def replay(
    paths: Sequence[str],
    wanted: Columns,
    sets: Sequence[str],
    results: Path,
    json_file: Path | None,
    figures: Path | None,
    norm_rises: bool | None,
    told: MetricsConfig | None = None,
) -> Answer:
    """Judge logs and finished sweeps, and write ``json_file`` and pictures; the exit code is 2 where one is unreadable.

    Without ``figures``, a folder, there are no pictures. ``norm_rises`` turns notes on rising gradient norms on or off;
    by default they are off for logs with many steps a point. ``told`` has a pattern or a format of the logs. Raises
    InputError, also where a file cannot be written.
    """
    check_output(json_file, "--json")
    for text in sets:
        if parse_set(text)[0][:2] == ("stopping", "slow"):
            what = "a replay judges each run alone, and a slow one is slow beside others"
            raise InputError(Problem(f"--set {text}", "stopping.slow", what, "remove it"))
        if parse_set(text)[0] == ("stopping", "validation_patience"):
            what = "a replay judges training losses, not those of validations"
            raise InputError(Problem(f"--set {text}", "stopping.validation_patience", what, "remove it"))
    is_own = figures == results / REPLAYS
    if is_own:
        check_no_links(results / REPLAYS)
    elif figures is not None and not figures.is_dir():
        check_output(figures, "--figures")
    sweeps = [folder for path in paths if (folder := _sweep_folder(path, results))]
    others = [path for path in paths if not _sweep_folder(path, results)]
    found: list[dict[str, object]] = []
    for folder in sweeps:
        trials = _replay_sweep(folder, sets)
        yield from _sweep_answer(folder, trials)
        found += [{"sweep": folder.name, **_trial_json(trial)} for trial in trials]
    problems: list[InputError] = []
    notes: list[str] = []
    if others:
        config = stopping_of(sets)
        replayed = _with_progress(list(_read_all(others, wanted, results, problems, notes, told)), config, norm_rises)
        if replayed:
            yield from _logs_answer(replayed)
            found += [one.as_json() for one in replayed]
        if figures is not None and replayed:
            _write_pictures(replayed, figures, is_own)
            yield f"pictures: {figures}/"
    yield from written_json(json_file, found)
    yield from notes
    yield from (f"error: {error}" for error in problems)
    return EXIT_BAD_INPUT if problems else EXIT_OK


def _write_pictures(replayed: Sequence[Replayed], folder: Path, is_own: bool) -> None:
    """A picture of each log; a folder named by the user is created with the mode of the umask."""
    from orchestrator.render.traces import trace_figure

    if not is_own:
        with storage_errors(folder):
            folder.mkdir(exist_ok=True)
    write = atomic_write if is_own else write_output
    for one, name in zip(replayed, _picture_names(replayed), strict=True):
        write(folder / name, trace_figure(one))


def _sweep_folder(path: str, results: Path) -> Path | None:
    for folder in (Path(path), results / path):
        if os.path.isfile(folder / LEDGER):  # False for a name that is too long
            return folder
    return None


def _read_all(
    paths: Sequence[str],
    wanted: Columns,
    results: Path,
    problems: list[InputError],
    notes: list[str],
    told: MetricsConfig | None,
) -> Iterator[Log]:
    """The logs of all paths. Files in a folder that are not logs are counted; a named one is an error."""
    for path in paths:
        if path.startswith(MLFLOW_PREFIX):
            from orchestrator.mirrors.mlflow_store import read_run

            yield read_run(path.removeprefix(MLFLOW_PREFIX), results, wanted)
            continue
        is_folder = os.path.isdir(path)
        others: list[InputError] = []
        num_logs = 0
        for file in find_logs(Path(path)):
            try:
                yield read_log(file, wanted, told)
                num_logs += 1
            except InputError as error:
                (others if is_folder else problems).append(error)
        if is_folder and num_logs:
            unclear = [one for one in others if "--loss" in str(one)]
            notes.extend(f"left out: {one}" for one in unclear[:_UNCLEAR_SHOWN])
            if len(others) > len(unclear):
                notes.append(f"left out: {len(others) - len(unclear)} files in {path} that are not logs")
        elif is_folder:
            problems.append(
                InputError(Problem(path, "", f"none of its {len(others)} files is a log"), *map(str, others[:3]))
            )


def _with_progress(logs: Sequence[Log], config: StoppingConfig, norm_rises: bool | None) -> list[Replayed]:
    """Judge the logs a few at a time, to show progress."""
    console = Console()
    batches = _batches(sorted(logs, key=lambda log: len(log.step_N)))
    replayed: dict[str, Replayed] = {}
    shown = track(batches, "judging", console=console, transient=True, disable=not console.is_terminal)
    for batch in shown:
        replayed |= {one.log.name: one for one in replay_logs(batch, config, norm_rises)}
    return [replayed[log.name] for log in logs]


def _batches(logs: Sequence[Log], size: int = 32) -> list[Sequence[Log]]:
    return [logs[start : start + size] for start in range(0, len(logs), size)]


def _logs_answer(replayed: Sequence[Replayed]) -> Iterator[str | Table]:
    """A table with one line per log, the notes on them, and the columns used."""
    table = Table("log", "points", "outcome", "episodes", "would stop", "saves", box=None, pad_edge=False)
    for column in (1, 5):
        table.columns[column].justify = "right"
    for one, name in zip(replayed, _shown_names(replayed), strict=True):
        stop = "-" if one.record.lost_step is None else f"step {one.record.lost_step:,}"
        table.add_row(
            _escaped(name),
            f"{len(one.log.step_N):,}",
            one.result.outcome,
            _episodes_text(one),
            f"{stop} (wrong: it came back)" if one.is_wrong_stop else stop,
            f"{one.share_saved:.0%}" if one.record.lost_step is not None else "-",
        )
    yield table
    for one in replayed:
        yield from (f"note: {one.log.name}: {note}" for note in (*one.log.notes, *_notes_on(one)))
    columns = sorted(
        {(str(o.log.columns.step), str(o.log.columns.loss), str(o.log.columns.grad_norm)) for o in replayed}
    )
    for step, loss, norm in columns:
        yield f"columns: step={step} loss={loss} grad-norm={norm}"


def _notes_on(one: Replayed) -> Iterator[str]:
    """What the detector saw that is no verdict and no episode."""
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


def _episodes_text(one: Replayed) -> str:
    def shown(step: int | None) -> str:
        return "end" if step is None else f"{step:,}"

    episodes = one.record.episodes
    texts = [f"{shown(e.onset_step)} to {shown(e.recovery_step)}" for e in episodes[:_EPISODES_SHOWN]]
    if len(episodes) > _EPISODES_SHOWN:
        texts.append(f"{len(episodes) - _EPISODES_SHOWN} more")
    return f"{len(episodes)}: {', '.join(texts)}" if episodes else "none"


def _escaped(text: str) -> str:
    return printable(text).replace("[", r"\[")


def _picture_names(replayed: Sequence[Replayed]) -> list[str]:
    """A file name for each picture: that of the log, with as many folders before it as needed to be unique."""
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


def _replay_sweep(folder: Path, sets: Sequence[str]) -> list[ReplayedTrial]:
    for text in sets:
        if parse_set(text)[0][0] != "stopping":
            raise InputError(Problem(f"--set {text}", "", "changes the training", "replay changes only stopping.KEY"))
    if is_imported(folder):
        return _replay_imported(folder, sets)
    stopping = load_sections(folder / FROZEN_SWEEP, Overrides(sets=tuple(sets))).stopping
    with LedgerReader(folder / LEDGER) as ledger:
        # The value of null comes from the objective, and was recorded when the sweep was run.
        was = json.loads(ledger.facts()["stopping"])
        return replay_sweep(ledger, stopping.resolved(was["spike_rise"], was["gradient_patience"]))


def _replay_imported(folder: Path, sets: Sequence[str]) -> list[ReplayedTrial]:
    """Judge imported curves again. Raises InputError where there is none."""
    with LedgerReader(folder / LEDGER) as ledger:
        check_has_curves(ledger, "a replay judges curves")
        return replay_sweep(ledger, stopping_of(sets))


def _sweep_answer(folder: Path, trials: Sequence[ReplayedTrial]) -> Iterator[str | Table]:
    """The outcomes of a sweep that change under other settings."""
    changed = [trial for trial in trials if trial.is_changed]
    yield f"{folder.name}: {len(trials)} finished trials, {len(changed)} with another outcome"
    for (before, after), count in sorted(Counter((t.outcome, t.new_outcome) for t in changed).items()):
        yield f"  {before} -> {after}: {count}"
    trained, needed = sum(t.steps_done for t in trials), sum(t.new_steps_done for t in trials)
    yield f"member-steps: {trained:,} trained, {needed:,} until the new verdicts"
    if any(trial.new_outcome == UNKNOWN for trial in trials):
        yield "unknown: training was stopped before the new settings would have judged, or not every step was kept"
    if not changed:
        return
    table = Table("trial", "seed", "was", "is", "at step", "because", box=None, pad_edge=False)
    for trial in changed[:_CHANGES_SHOWN]:
        cell = trial.cell.name
        row = (cell, str(trial.seed), trial.outcome, trial.new_outcome, f"{trial.new_steps_done - 1:,}", trial.reason)
        table.add_row(*map(_escaped, row))
    yield table
    if len(changed) > _CHANGES_SHOWN:
        yield f"... and {len(changed) - _CHANGES_SHOWN} more; --json FILE writes all of them"


def _trial_json(trial: ReplayedTrial) -> dict[str, object]:
    return {
        "trial_id": trial.trial_id,
        "cell": dict(trial.cell),
        "seed": trial.seed,
        "outcome": trial.outcome,
        "new_outcome": trial.new_outcome,
        "steps_done": trial.steps_done,
        "new_steps_done": trial.new_steps_done,
        "reason": trial.reason,
    }
