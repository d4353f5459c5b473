"""Commands around training: init, run, watch and objectives."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import sweep_folder
from orchestrator.cli.options import (
    RESULTS,
    AllowImportOption,
    AxisOption,
    DropOption,
    FileArgument,
    PortOption,
    ResultsOption,
    SeedsOption,
    SetOption,
    StepsOption,
    SweepNameOption,
    finish,
)

_refine = partial(typer.Option, rich_help_panel="Refine the edge of a sweep that was trained")
_where = partial(typer.Option, rich_help_panel="Where it runs")
_FACTOR, _MORE_TRIALS = 1.2, 64  # of --refine
_OBJECTS_BETWEEN_SEARCHES = 20_000  # for garbage, while a log is watched


def init_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the new sweep; writes NAME.yaml")],
    objective: Annotated[str | None, typer.Option(help="what to train; gpt by default")] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", "--trainer", help="your own script instead: `python train.py --lr={lr} --seed={seed}`"
        ),
    ] = None,
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    shipped: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SWEEP|FILE",
            help="copy a sweep that ships, such as lr_warmup, or fix what a config.json or .yaml of yours has",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--for", metavar="SIZE=N,...", help="small models that predict one of width=4096,steps=100000"),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="adamw: search rate, warmup, beta2 and clip, around the values of --from")
    ] = None,
    goal: Annotated[
        str | None, typer.Option(help="safe: search the edge over the ranges of --axis, for a setting far from it")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="budget of --for, --preset and --goal; 60 by default")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="the file to write instead")] = None,
) -> None:
    """Write a commented sweep file as a starting point.

    For example `sweep init mine --axis lr=log:1e-3,1,7 --steps 200`, or `sweep init mine --from lr_warmup`. `sweep init
    proxies --for width=4096,depth=32` plans small models whose edges predict that of a large one. `sweep init mine
    --preset adamw --from config.json` searches rate, warmup, beta2 and clip within 60 trials.
    """
    from orchestrator.api.sweep_files import init, overrides

    changes = overrides(axis, drop, set_, seeds, steps)
    finish(init(name, objective, command, changes, output, shipped, target, trials, preset, goal))


def run_command(
    file: FileArgument,
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    name: SweepNameOption = None,
    refine: Annotated[bool, _refine("--refine", help="add trials where the edge is uncertain, by a search")] = False,
    factor: Annotated[
        float | None, _refine(min=1.001, help="stop when the edge is known within this factor; 1.2 by default")
    ] = None,
    trials: Annotated[
        int | None, _refine(min=1, max=100_000, help="train at most this many more trials; 64 by default")
    ] = None,
    along: Annotated[
        str | None, _refine(metavar="AXIS", help="the axis of the edge; the one of sweep boundary by default")
    ] = None,
    results: ResultsOption = RESULTS,
    executor: Annotated[str, _where(help="ray, slurm, inline (in this process), or auto: inline or ray")] = "ray",
    address: Annotated[str | None, _where(help="a running Ray cluster; a private one otherwise")] = None,
    cpus: Annotated[int | None, _where(help="CPU cores of one pack")] = None,
    gpus: Annotated[float | None, _where(help="GPUs of one pack, may be a fraction")] = None,
    pack: Annotated[str | None, _where(help="members of one pack: auto or a number")] = None,
    parallel: Annotated[int | None, _where(help="packs trained at a time")] = None,
    slurm: Annotated[
        list[str],
        _where(
            "--slurm",
            metavar="KEY=VALUE",
            help="for jobs: time=MINUTES, partition=..., account=...; cluster=local runs jobs on this machine",
        ),
    ] = [],  # noqa: B006
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow tracking URI")] = None,
    retry_errored: Annotated[bool, typer.Option("--retry-errored", help="train errored trials again")] = False,
    allow_import: AllowImportOption = False,
    notify_test: Annotated[
        bool, typer.Option("--notify-test", help="send a test message through notify.url_from, and train nothing")
    ] = False,
    page: Annotated[bool, typer.Option("--page", help="serve the sweep's page during the run")] = False,
    port: PortOption = None,
) -> None:
    """Train the missing trials of a sweep, then write its map, picture and report.

    For example `sweep run lr_warmup`, which ships, or `sweep run mine.yaml --seeds 0,1 --page`. Running a sweep again
    trains only what is missing. `sweep run lr_warmup --refine --trials 40` then finds its edge more precisely.
    """
    from orchestrator.api.running import refining_lines, run_lines
    from orchestrator.api.sweep_files import overrides, read_sweep

    options = {
        "resources.cpus": cpus,
        "resources.gpus": gpus,
        "resources.pack": pack,
        "resources.parallel": parallel,
        "tracking.uri": tracking_uri,
    }
    sets = [*set_, *(f"{key}={value}" for key, value in options.items() if value is not None)]
    changes = overrides(axis, drop, sets, seeds, steps, name)
    for option, value in {"--factor": factor, "--trials": trials, "--along": along}.items():
        if value is not None and not refine:
            raise InputError(Problem(option, str(value), "is an option of --refine", "add --refine, or leave it out"))
    if port is not None and not page:
        raise InputError(Problem("--port", str(port), "is the port of a page that is not served", "add --page"))
    how: dict[str, Any] = {
        "address": address,
        "slurm": slurm,
        "allow_import": allow_import,
        "retry_errored": retry_errored,
        "notify_test": notify_test,
        "page": page,
        "port": port,
    }
    if refine:
        num_more, within = trials or _MORE_TRIALS, factor or _FACTOR
        finish(refining_lines(sweep_folder(file, results), along, num_more, within, changes, executor, **how))
    finish(run_lines(read_sweep(file, results, changes, allow_import), results, executor, **how))


_log = partial(typer.Option, rich_help_panel="How the log is read")
_alarm = partial(typer.Option, rich_help_panel="Alarms: spike, lost, nan, warning, stalled")
_beside = partial(typer.Option, rich_help_panel="Compare with a sweep")


def watch_command(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="a log, a folder with TensorBoard event files or other logs, trainer_state.json, a CSV; - for a pipe",
        ),
    ],
    steps: Annotated[
        int | None, typer.Option(min=1, help="steps of the whole run: says the time left, and ends")
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="from one line to the next")] = 60.0,
    json_: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="append reports and alarms as JSON lines; - for standard output"),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="serve a page with the run's curves and alarms")] = False,
    on: Annotated[str, _alarm(metavar="KINDS", help="those that --notify sends")] = "spike,lost,nan,stalled",
    notify: Annotated[
        str | None, _alarm(metavar="NAME", help="the environment variable with a URL of Apprise, or the URL itself")
    ] = None,
    command: Annotated[
        str | None,
        _alarm("--run", metavar="COMMAND", help="run at an alarm; the variable SWEEP_ALARM says which"),
    ] = None,
    run_on: Annotated[str, _alarm(metavar="KINDS", help="alarms that --run is for")] = "lost",
    exit_on: Annotated[str, _alarm(metavar="KINDS", help="end with exit code 5 at such an alarm")] = "",
    stalled_after: Annotated[
        float, _alarm(min=1, metavar="SECONDS", help="without growth until the log counts as stalled")
    ] = 600.0,
    beside: Annotated[
        str | None, _beside(metavar="SWEEP", help="say where the run lies on its map, and what saved such runs")
    ] = None,
    set_: Annotated[
        list[str],
        _beside(
            "--set",
            metavar="NAME=VALUE",
            help="a setting of the run: width=2048; or a detector's: stopping.window=100",
        ),
    ] = [],  # noqa: B006
    results: ResultsOption = RESULTS,
    step: Annotated[str | None, _log(metavar="NAME", help="the column of steps")] = None,
    loss: Annotated[str | None, _log(metavar="NAME", help="the column of training losses")] = None,
    grad_norm: Annotated[str | None, _log(metavar="NAME", help="the column of gradient norms")] = None,
    pattern: Annotated[
        str | None, _log(metavar="REGEX", help=r"named groups: `it (?P<step>\d+) L=(?P<loss>\S+)`")
    ] = None,
    format_: Annotated[str, _log("--format", help="text, json, csv or tensorboard, if auto guesses wrong")] = "auto",
) -> None:
    """Follow the log of a run that is going on: one line a minute, and an alarm when it leaves its trend or is lost.

    For example `sweep watch train.log --steps 20000`, or `sweep watch runs/big --notify NOTIFY_URL --exit-on lost`. It
    judges as `sweep replay train.log` does, and goes on when the log is rotated or truncated, or the run restarts from
    a checkpoint. Each spike is one alarm. `sweep watch train.log --run 'scancel 123'` cancels a job that is lost, and
    `sweep watch train.log --beside lr_width --set width=2048` says how far the edge is. The newest log of a folder is
    followed. Stop it with Ctrl-C.
    """
    from orchestrator.answers._options import log_metrics
    from orchestrator.answers.replay import stopping_of
    from orchestrator.api.watching import WatchOptions, kinds_of, watch
    from orchestrator.logs.columns import Columns

    of_detector = [text for text in set_ if text.startswith("stopping.")]
    settings = tuple(text for text in set_ if text not in of_detector)
    if settings and beside is None:
        remedy = "add --beside SWEEP, or set a key of the detector: stopping.window=100"
        raise InputError(
            Problem(f"--set {settings[0]}", "", "is a setting of the run, which no sweep is compared with", remedy)
        )
    options = WatchOptions(
        columns=Columns(step, loss, grad_norm),
        metrics=log_metrics(pattern, format_, loss),
        stopping=stopping_of(of_detector),
        steps=steps,
        every_s=every,
        stalled_s=stalled_after,
        notify=notify,
        on=kinds_of(on, "--on"),
        command=command,
        command_on=kinds_of(run_on, "--run-on"),
        exit_on=kinds_of(exit_on, "--exit-on"),
        beside=beside,
        settings=settings,
        json_file=json_,
        page=page,
        results=results,
    )
    # Of the thousands of points that arrive together none is garbage: looking for some took a fifth of the time.
    gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
    finish(watch(path, options), json_)


def objectives_command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="only this objective")] = None,
    match: Annotated[
        str | None, typer.Option(metavar="TEXT", help="only fields with this in their name or meaning")
    ] = None,
) -> None:
    """List the objectives and their fields, with unit, default and domain.

    For example `sweep objectives gpt --match lr`.
    """
    from orchestrator.api.sweep_files import objectives

    finish(objectives(name, match))
