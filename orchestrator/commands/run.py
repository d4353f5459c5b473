"""What the commands do: a run with its live view and mirror, the plan, the status, the pages."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from objectives.base import Way
from objectives.optimizers.libraries import problem_with
from objectives.training_config import PACKED_OPTIMIZERS
from orchestrator.driver.packing import make_packs, structure_of
from orchestrator.driver.runner import Summary, missing_trials, run_sweep
from orchestrator.errors import EXIT_OK, EXIT_SOME_FAILED, InputError, Problem, SweepError, printable
from orchestrator.executors import Executor
from orchestrator.files import FROZEN_SWEEP, LEDGER, is_locked, sweep_lock
from orchestrator.ledger.reader import LedgerReader
from orchestrator.processes import MARK, new_mark
from orchestrator.space import Trial
from orchestrator.sweepfile.own_trainer import OwnTrainer, refuse_what_is_not_there
from orchestrator.sweepfile.spec import Sweep, load_sections
from orchestrator.worker.ways import Choice, known_choice

if TYPE_CHECKING:
    from rich.console import Console

_STRUCTURES_SHOWN = 4


def drive(sweep: Sweep, results: Path, load_executor: Callable[[], Callable[[], Executor]], retry_errored: bool) -> int:
    """Run ``sweep`` with everything around it; returns the exit code."""
    from rich.console import Console

    from orchestrator.commands.live import LiveView
    from orchestrator.pictures.exports import are_current, existing_exports, export_all
    from orchestrator.tracking.background import BackgroundMirror

    refuse_what_is_not_there(sweep.objective)
    refuse_optimizers_of_no_use(sweep)
    console = Console()
    folder = results / sweep.name
    refuse_another_question(sweep, folder)
    mirror = BackgroundMirror(folder, sweep.tracking) if sweep.tracking.enabled else None
    observers = [LiveView(console), *([mirror] if mirror else [])]
    _say(console, f"{sweep.name}: {len(sweep.trials)} trials of {sweep.objective.name}, {sweep.steps} steps each")

    def announced() -> Executor:
        _say(console, "starting workers ...")
        start = load_executor()
        if mirror is not None:
            mirror.start()  # its first seconds of work fit into the wait for the workers
        return start()

    summary = run_sweep(sweep, folder, announced, observers, retry_errored=retry_errored)
    trained = f"trained for {summary.seconds:.0f} s" if summary.trained else "nothing to train: every trial has run"
    _say(console, trained)
    written = existing_exports(folder) if are_current(folder) else export_all(folder)
    warning = None
    if mirror is not None and not mirror.is_current():
        _say(console, "mirroring to MLflow ...")
        warning = mirror.finish([folder / FROZEN_SWEEP, *written])
    _show_end(console, sweep, folder, summary, written)
    if warning is not None:
        _say(console, f"warning: {warning}\n    remedy: `sweep sync {sweep.name}` writes what is missing")
    return summary.exit_code


def _show_end(console: Console, sweep: Sweep, folder: Path, summary: Summary, written: Sequence[Path]) -> None:
    """Outcomes, where everything is, and what to do next."""
    from orchestrator.tracking.mlflow import shown_uri, tracking_uri

    _say(console, "")
    with LedgerReader(folder / LEDGER) as ledger:
        _show_map(console, ledger.trials())
    _show_counts(console, summary.counts)
    for path in [*written, folder / LEDGER]:
        _say(console, f"{path.stem:>8}: {path}")
    if sweep.tracking.enabled:
        _say(console, f"{'mlflow':>8}: {shown_uri(tracking_uri(sweep.tracking, folder.parent))}  (sweep ui)")
    if summary.stopped_by is not None:
        _say(console, "stopped; the same command goes on with what is missing")
    if summary.counts["errored"]:
        _say(console, f"{summary.counts['errored']} trials errored: `sweep status {sweep.name}` says why")


def _show_counts(console: Console, counts: Counter[str]) -> None:
    _say(console, ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "no trials")


def _show_map(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    from orchestrator.commands.live import text_map

    if drawing := text_map(rows):
        console.print(drawing, soft_wrap=True)


def _say(console: Console, text: str) -> None:
    console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


def plan_lines(sweep: Sweep, results: Path) -> Iterator[str]:
    """The plan in lines: trials, what exists, packs, estimate."""
    from orchestrator.commands.live import format_seconds
    from orchestrator.space import format_value

    refuse_what_is_not_there(sweep.objective)
    refuse_optimizers_of_no_use(sweep)
    refuse_another_question(sweep, results / sweep.name)
    statuses: dict[str, tuple[str, int]] = {}
    removed, speed = 0, None
    path = results / sweep.name / LEDGER
    if path.is_file():
        with LedgerReader(path) as ledger:
            statuses = ledger.statuses(removed=True)
            speed = ledger.member_steps_per_second()
        wanted = {trial.trial_id for trial in sweep.trials}
        removed = sum(trial_id not in wanted for trial_id in statuses)
    missing = missing_trials(sweep, statuses)
    workers = planned_workers(sweep)
    packs = make_packs(sweep, missing, workers)
    num_cells = len({tuple(trial.cell.items()) for trial in sweep.trials})
    yield f"sweep:    {sweep.name} ({sweep.objective.name}, {sweep.steps} steps)"
    for axis in sweep.axes:
        shown = ", ".join(map(format_value, axis.values)) if axis.values else f"{axis.ends}"
        yield f"axis:     {axis.name} [{axis.scale}] {shown}"
    yield f"trials:   {num_cells} cells x {len(sweep.seeds)} seeds = {len(sweep.trials)}"
    existing = Counter(statuses[trial.trial_id][0] for trial in sweep.trials if trial.trial_id in statuses)
    yield "exists:   " + (", ".join(f"{count} {status}" for status, count in existing.items()) or "nothing yet")
    if removed:
        yield f"removed:  {removed} trials of the ledger are no longer in the sweep; they stay out of the map"
    sizes = Counter(len(pack.members) for pack in packs)
    shown = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items(), reverse=True))
    yield f"to train: {len(missing)} trials in {len(packs)} packs" + (f" ({shown} members)" if packs else "")
    choices = _known_choices(sweep, missing, workers)
    for choice in list(choices.values())[:_STRUCTURES_SHOWN]:
        yield f"way:      {choice.reason if choice else 'measured when the first pack starts, in a second or two'}"
    if len(choices) > _STRUCTURES_SHOWN:
        yield f"          ... and {len(choices) - _STRUCTURES_SHOWN} structures more"
    for name in library_optimizers(sweep, missing):
        yield f"          {name} is of a library, which trains one member at a time"
    yield f"workers:  {workers} packs at a time, {sweep.resources.cpus} CPU" + (
        f" and {sweep.resources.gpus:g} GPU each" if sweep.resources.gpus else " each"
    )
    if not missing:
        yield "time:     none, there is nothing to train"
        return
    speeds = [choice.member_steps_per_second if choice else None for choice in choices.values()]
    if speed is None and all(speeds):
        # Structures differ in speed; each has as many trials as the others, near enough.
        speed = len(speeds) / sum(1 / found for found in speeds if found)
    if speed is None:
        yield "time:     known once a first pack has been timed"
    else:
        seconds = len(missing) * sweep.steps / (speed * min(workers, len(packs)))
        yield f"time:     at most about {format_seconds(seconds)} (measured: {speed:,.0f} member-steps/s a worker)"


def _known_choices(sweep: Sweep, missing: Sequence[Trial], workers: int) -> dict[str, Choice | None]:
    """How packs of each structure will run on this machine; None where that is not measured yet."""
    if isinstance(sweep.objective, OwnTrainer):
        return {"": Choice(Way(1), f"each trial by itself: {sweep.objective.summary}")} if missing else {}
    alike: dict[str, list[Trial]] = {}
    for trial in missing:
        alike.setdefault(structure_of(sweep, trial), []).append(trial)
    choices: dict[str, Choice | None] = {}
    for structure, trials in alike.items():
        config = sweep.objective.config_class.model_validate(trials[0].config, strict=False)
        if sweep.resources.pack != "auto" and config.can_be_stacked:
            reason = f"{sweep.resources.pack} at a time, as resources.pack says"
            choices[structure] = Choice(Way(sweep.resources.pack), reason)
            continue
        if sweep.resources.gpus:
            choices[structure] = None  # the cache is on the GPU's machine
            continue
        steps_ahead = len(trials) * sweep.steps // workers
        choices[structure] = known_choice(
            sweep.objective, config, "cpu", sweep.resources.cpus, len(trials), steps_ahead
        )
    return choices


def library_optimizers(sweep: Sweep, trials: Sequence[Trial]) -> list[str]:
    """Optimizers of libraries that ``trials`` name, in order."""
    if isinstance(sweep.objective, OwnTrainer):
        return []
    return [n for n in dict.fromkeys(trial.config["optimizer"] for trial in trials) if n not in PACKED_OPTIMIZERS]


def refuse_optimizers_of_no_use(sweep: Sweep) -> None:
    """Raise InputError where a library is not on this machine, or its optimizer needs more than gradients."""
    found = {name: problem_with(name) for name in library_optimizers(sweep, sweep.trials)}
    if problems := [Problem("", "optimizer", *problem) for problem in found.values() if problem]:
        raise InputError(*problems)


def refuse_another_question(sweep: Sweep, folder: Path) -> None:
    """Raise InputError where ``folder`` holds results over an axis that ``sweep`` does not have.

    Its map, report and frozen file would take the place of theirs. A new axis, or other values, is more of the same.
    """
    if not (folder / LEDGER).is_file():
        return
    with LedgerReader(folder / LEDGER) as ledger:
        axes = [axis["name"] for axis in json.loads(ledger.facts().get("axes", "[]"))]
        has_results = any(status == "finished" for status, _ in ledger.statuses().values())
    if has_results and (gone := [name for name in axes if name not in sweep.axis_names]):
        over = " and ".join(axes)
        message = f"the results there are of a sweep over {over}, and this one has no axis {gone[0]}"
        remedy = f"say --name NEW_NAME, or keep the axis with one value: --axis {gone[0]}=values:VALUE"
        raise InputError(Problem(str(folder), f"axes.{gone[0]}", message, remedy))


def planned_workers(sweep: Sweep) -> int:
    """Packs at a time on this machine, as the executor would choose."""
    if sweep.resources.parallel != "auto":
        return sweep.resources.parallel
    return max(1, len(os.sched_getaffinity(0)) // (sweep.resources.cpus * sweep.resources.workers))


def show_status(folder: Path) -> int:
    """Print where a sweep stands; returns the exit code, 3 when trials errored or were lost."""
    from rich.console import Console

    console = Console()
    with LedgerReader(folder / LEDGER) as ledger:
        rows, facts = ledger.trials(), ledger.facts()
    _say(console, f"{facts.get('name', folder.name)}: {len(rows)} trials of {facts.get('objective', '')}")
    _show_counts(console, Counter(row["outcome"] or row["status"] for row in rows))
    _show_map(console, rows)
    if not is_locked(folder) and (left := sum(row["status"] == "running" for row in rows)):
        _say(console, f"{left} trials were in training when their driver died; `sweep run` goes on with them")
    failed = [row for row in rows if row["status"] in ("errored", "lost")]
    for row in failed[:5]:
        at = " ".join(f"{key}={value}" for key, value in row["cell"].items())
        _say(console, f"{row['status']} {row['trial_id']} ({at} seed={row['seed']}): {row['reason']}")
        if row["error"]:
            _say(console, "".join(f"    {line}\n" for line in row["error"].splitlines()[-6:]).rstrip())
    if len(failed) > 5:
        _say(console, f"... and {len(failed) - 5} more")
    return EXIT_SOME_FAILED if failed else EXIT_OK


def show_findings(folder: Path | None, results: Path, *, strict: bool, fix: bool) -> int:
    """Print what is found of the environment and the sweep in ``folder``; returns the exit code, 3 for faults."""
    from rich.console import Console

    from orchestrator.commands.doctor import examine_environment, examine_sweep, repair

    console = Console()
    findings = list(examine_environment(results))
    if folder is not None:
        findings += examine_sweep(folder)
    for finding in findings:
        _say(console, f"{finding.level:>7}: {finding.text}")
        if finding.remedy:
            _say(console, f"         remedy: {finding.remedy}")
    for line in repair(findings) if fix else ():
        _say(console, line)
    if not fix and any(finding.repair for finding in findings):
        _say(console, "`sweep doctor --fix` repairs what can be repaired")
    bad = ("fault", "warning") if strict else ("fault",)
    return EXIT_SOME_FAILED if any(finding.level in bad for finding in findings) else EXIT_OK


def sync_sweep(folder: Path, tracking_uri: str | None) -> str:
    """Write to MLflow what it misses of the sweep in ``folder``; returns what to say."""
    from orchestrator.pictures.exports import export_all
    from orchestrator.tracking.mlflow import Mirror, shown_uri

    tracking = load_sections(folder / FROZEN_SWEEP).tracking
    if tracking_uri is not None:
        tracking = tracking.model_copy(update={"uri": tracking_uri})
    with sweep_lock(folder):
        artifacts = [folder / FROZEN_SWEEP, *export_all(folder)]
        with Mirror(folder, tracking) as mirror:
            mirror.mirror_sweep(artifacts)
    return f"{len(mirror.run_of_trial)} trials are in MLflow at {shown_uri(mirror.uri)}"


def serve_ui(results: Path, uri: str | None, port: int) -> int:
    """Serve MLflow's pages on loopback until interrupted; returns the exit code."""
    from orchestrator.sweepfile.sections import TrackingConfig
    from orchestrator.tracking.mlflow import STORE, rehome, run_pages, server_command, tracking_uri

    store = tracking_uri(TrackingConfig(uri=uri), results)
    if uri is None:
        if not (results / STORE).is_file():
            raise InputError(Problem(str(results / STORE), "", "no MLflow store yet", "`sweep run FILE` makes one"))
        with contextlib.suppress(sqlite3.Error):  # MLflow says what is wrong with it
            rehome(results / STORE, results)
    address = f"http://127.0.0.1:{port}"
    print(f"MLflow at {address} (Ctrl-C ends it)", flush=True)
    try:
        marked = {**os.environ, MARK: new_mark()}
        command = server_command(store, results, port, sys.executable)
        server = subprocess.Popen(command, env=marked, umask=0o077)  # what it writes is for this user alone
    except OSError as error:
        raise SweepError(f"cannot start MLflow: {error}") from error
    with contextlib.suppress(KeyboardInterrupt):
        for page in run_pages(store, address):
            print(f"runs of {printable(page)}", flush=True)
        return server.wait()
    server.terminate()
    server.wait()
    return EXIT_OK
