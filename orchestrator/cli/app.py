"""The command line: parse, call one function of ``commands``, turn errors into exit codes.

Heavy imports are inside the commands, so that `sweep --help` and `sweep plan` are instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import REPLAYS, sweep_folder
from orchestrator.cli.answers import answers, exports
from orchestrator.cli.importing import importing
from orchestrator.cli.options import (
    RESULTS,
    AllowImportOption,
    AxisOption,
    DegradedOption,
    DropOption,
    FacetOption,
    FiguresOption,
    FileArgument,
    FormatOption,
    JsonOption,
    LevelMetricOption,
    LevelOption,
    LogFormatOption,
    LossColumnOption,
    LossOption,
    MetricOption,
    NameArgument,
    NormColumnOption,
    NormRisesOption,
    NotifyTestOption,
    PatternOption,
    PortOption,
    ReduceOption,
    ResultsOption,
    SeedsOption,
    SetOption,
    SlurmOption,
    StepColumnOption,
    StepsOption,
    SweepNameOption,
    WhereOption,
    XOption,
    YOption,
)
from orchestrator.cli.upkeep import finish, upkeep
from orchestrator.commands.arguments import conditions, overrides, read_sweep, told_metrics
from orchestrator.version import __version__

app = typer.Typer(
    help="Where in hyperparameter space is training stable, how far is the edge, and what moves it?",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all trials finished, 2 bad input, 3 some errored, 4 storage or Ray failed, 130 Ctrl-C.",
)
export_app = typer.Typer(help="Write a sweep's map, or all of it, to a file.", no_args_is_help=True)
app.add_typer(export_app, name="export")


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="show the version and exit")] = False,
) -> None:
    if version:
        typer.echo(f"sweep {__version__}")
        raise typer.Exit


@app.command()
def run(
    file: FileArgument,
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    name: SweepNameOption = None,
    results: ResultsOption = RESULTS,
    executor: Annotated[str, typer.Option(help="ray, slurm, or inline to train in this process")] = "ray",
    address: Annotated[str | None, typer.Option(help="a running Ray cluster; a private one otherwise")] = None,
    cpus: Annotated[int | None, typer.Option(help="CPU cores of one pack")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs of one pack, may be a fraction")] = None,
    pack: Annotated[str | None, typer.Option(help="members of one pack: auto or a number")] = None,
    parallel: Annotated[int | None, typer.Option(help="packs trained at a time")] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow tracking URI")] = None,
    retry_errored: Annotated[bool, typer.Option("--retry-errored", help="train errored trials again")] = False,
    allow_import: AllowImportOption = False,
    slurm: SlurmOption = [],  # noqa: B006
    notify_test: NotifyTestOption = False,
    page: Annotated[bool, typer.Option("--page", help="serve the sweep's page during the run")] = False,
    port: PortOption = None,
) -> None:
    """Train the missing trials of a sweep, then write its map, picture and report.

    For example `sweep run lr_warmup`, which ships, or `sweep run mine.yaml --seeds 0,1 --page`. Running a sweep again
    trains only what is missing.
    """
    from orchestrator.commands.run import run as command
    from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
    from orchestrator.sweepfile.spec import check_import

    options = {
        "resources.cpus": cpus,
        "resources.gpus": gpus,
        "resources.pack": pack,
        "resources.parallel": parallel,
        "tracking.uri": tracking_uri,
    }
    sets = [*set_, *(f"{key}={value}" for key, value in options.items() if value is not None)]
    sweep = read_sweep(file, results, overrides(axis, drop, sets, seeds, steps, name), allow_import)
    check_import(sweep, allow_import)
    load = executor_loader(executor, ExecutorOptions(results / sweep.name, sweep.resources, address, tuple(slurm)))
    if port is not None and not page:
        raise InputError(Problem("--port", str(port), "is the port of a page that is not served", "add --page"))
    finish(command(sweep, results, load, retry_errored, notify_test=notify_test, page=page, port=port))


@app.command()
def refine(
    name: NameArgument,
    factor: Annotated[float, typer.Option(min=1.001, help="stop when the edge is known within this factor")] = 1.2,
    trials: Annotated[int, typer.Option(min=1, max=100_000, help="train at most so many more")] = 64,
    along: Annotated[str | None, typer.Option(help="the axis along which the edge lies; by default the first")] = None,
    set_: SetOption = [],  # noqa: B006
    executor: Annotated[str, typer.Option(help="ray, slurm, or inline to train in this process")] = "ray",
    allow_import: AllowImportOption = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Find the edge of a trained sweep more precisely: a search adds trials where the edge is not known well.

    For example `sweep refine coarse --trials 40 --factor 1.3`; `sweep boundary coarse` then shows the edge.
    """
    from orchestrator.commands.refine import refine as command

    changes = overrides([], [], set_, None, None, None)
    finish(command(sweep_folder(name, results), along, trials, factor, changes, executor, allow_import))


@app.command()
def plan(
    file: FileArgument,
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    name: SweepNameOption = None,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
    allow_import: AllowImportOption = False,
) -> None:
    """Show what `run` would train: cells, packs, existing results, estimated time.

    For example `sweep plan mine.yaml --set resources.pack=8`.
    """
    from orchestrator.commands.plan import plan as command

    sweep = read_sweep(file, results, overrides(axis, drop, set_, seeds, steps, name), allow_import)
    finish(command(sweep, results, json_), json_)


@app.command()
def check(
    file: FileArgument,
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    losses: Annotated[int, typer.Option(min=1, help="losses after which the trial is ended")] = 20,
    seconds: Annotated[float, typer.Option(min=1, help="time after which it is ended in any case")] = 60.0,
    results: ResultsOption = RESULTS,
    allow_import: AllowImportOption = False,
) -> None:
    """Run one trial of a custom trainer for a moment and show what is read of its output.

    For example `sweep check mine.yaml --losses 50`.
    """
    from orchestrator.commands.check import check as command
    from orchestrator.sweepfile.spec import check_import

    sweep = read_sweep(file, results, overrides(axis, drop, set_), allow_import)
    check_import(sweep, allow_import)
    finish(command(sweep, losses, seconds))


@app.command()
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the new sweep; writes NAME.yaml")],
    objective: Annotated[str | None, typer.Option(help="what to train; gpt by default")] = None,
    command: Annotated[
        str | None, typer.Option(help="your own script instead: 'python train.py --lr={lr} --seed={seed}'")
    ] = None,
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    shipped: Annotated[
        str | None, typer.Option("--from", metavar="SWEEP", help="a copy of a sweep that ships, such as lr_warmup")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="the file to write instead")] = None,
) -> None:
    """Write a commented sweep file as a starting point.

    For example `sweep init mine --axis lr=log:1e-3,1,7 --steps 200`, or `sweep init mine --from lr_warmup`.
    """
    from orchestrator.commands.init import init as write

    finish(write(name, objective, command, overrides(axis, drop, set_, seeds, steps), output, shipped))


@app.command()
def objectives(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="only this objective")] = None,
    match: Annotated[
        str | None, typer.Option(metavar="TEXT", help="only fields with this in their name or meaning")
    ] = None,
) -> None:
    """List the objectives and their fields, with unit, default and domain.

    For example `sweep objectives gpt --match lr`.
    """
    from orchestrator.commands.objectives import objectives as command

    finish(command(name, match))


@app.command()
def status(
    name: NameArgument,
    watch: Annotated[bool, typer.Option("--watch", help="draw it again every two seconds until the run ends")] = False,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show the state of a sweep: outcomes, failures, the map as text.

    For example `sweep status lr_warmup --watch`.
    """
    from orchestrator.commands.status import status as command

    finish(command(sweep_folder(name, results), json_, watch=watch), json_)


@app.command("list")
def list_(json_: JsonOption = None, results: ResultsOption = RESULTS) -> None:
    """List the sweeps that were run: axes, outcomes, the stable share of the trials, and their age.

    For example `sweep list --results elsewhere`.
    """
    from orchestrator.commands.list import list as command

    finish(command(results, json_), json_)


@export_app.command("heatmap")
def export_heatmap(
    name: NameArgument,
    x: XOption = None,
    y: YOption = None,
    metric: MetricOption = "final_loss",
    format_: FormatOption = None,
    where: WhereOption = [],  # noqa: B006
    reduce: ReduceOption = "worst",
    facet: FacetOption = None,
    degraded: DegradedOption = False,
    output: Annotated[Path | None, typer.Option(help="the file to write instead")] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Draw the stability map: the fraction of stable seeds, and the final loss beside it.

    For example `sweep export heatmap lr_warmup --format svg`.
    """
    from orchestrator.commands.export_heatmap import export_heatmap as command

    folder = sweep_folder(name, results)
    finish(command(folder, format_, x, y, metric, conditions(where), reduce, facet, degraded, output))


@app.command()
def boundary(
    name: NameArgument,
    x: XOption = None,
    y: YOption = None,
    where: WhereOption = [],  # noqa: B006
    reduce: ReduceOption = "worst",
    degraded: DegradedOption = False,
    metric: LevelMetricOption = None,
    level: LevelOption = None,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show where the map turns from stable to not stable, row by row, with brackets.

    For example `sweep boundary lr_warmup --y warmup`, or `sweep boundary lr_warmup --metric edge_crossings --level 3`
    for where a metric passes a level.
    """
    from orchestrator.commands.boundary import boundary as command

    finish(command(sweep_folder(name, results), x, y, conditions(where), reduce, degraded, json_, metric, level), json_)


@app.command()
def recommend(
    name: NameArgument,
    margin: Annotated[float, typer.Option(help="how far from every edge, as a factor of each axis")] = 2.0,
    metric: LossOption = None,
    degraded: DegradedOption = False,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Recommend the setting with the lowest loss that is stable on all seeds and far enough from the edge.

    For example `sweep recommend lr_warmup --margin 3`.
    """
    from orchestrator.commands.recommend import recommend as command

    finish(command(sweep_folder(name, results), margin, metric, degraded, json_), json_)


@app.command()
def report(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Write the sweep's map, picture and self-contained HTML report again.

    For example `sweep report lr_warmup`; `sweep page lr_warmup` serves the same page while the sweep runs.
    """
    from orchestrator.commands.report import report as command

    finish(command(sweep_folder(name, results)))


@app.command()
def replay(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="logs, folders of logs, mlflow:RUN_ID, or finished sweeps"),
    ],
    step: StepColumnOption = None,
    loss: LossColumnOption = None,
    grad_norm: NormColumnOption = None,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="stopping.KEY=VALUE", help="judge with another setting")
    ] = [],  # noqa: B006
    json_: JsonOption = None,
    figures: FiguresOption = None,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="draw no pictures")] = False,
    norm_rises: NormRisesOption = None,
    pattern: PatternOption = None,
    format_: LogFormatOption = "auto",
    results: ResultsOption = RESULTS,
) -> None:
    """Judge training logs of any origin: outcomes, spikes, and where they would have been stopped.

    Reads CSV and TSV, JSON lines, trainer_state.json, metrics.csv, TensorBoard event files, and text with lines such as
    `step 10 loss 3.2`. For a finished sweep it shows which outcomes other settings change. For example `sweep replay
    train.log --loss lm_loss`, or `sweep replay lr_warmup --set stopping.window=30`.
    """
    from orchestrator.commands.replay import replay as command
    from orchestrator.logs.columns import Columns

    told = told_metrics(pattern, format_, loss)
    folder = None if no_figures else figures or results / REPLAYS
    finish(command(paths, Columns(step, loss, grad_norm), set_, results, json_, folder, norm_rises, told), json_)


export_app.add_typer(exports)
app.add_typer(answers)
app.add_typer(importing)
app.add_typer(upkeep)
