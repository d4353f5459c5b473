"""The command line: parse, call one function of ``commands``, turn errors into exit codes.

Heavy imports are inside the commands, so that `sweep --help` and `sweep plan` are instant.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator import __version__
from orchestrator.cli_options import (
    RESULTS,
    AllowImportOption,
    AxisOption,
    CellOption,
    DegradedOption,
    DropOption,
    FacetOption,
    FiguresOption,
    FileArgument,
    FormatOption,
    JsonOption,
    LossOption,
    MetricOption,
    NameArgument,
    NormRisesOption,
    ReduceOption,
    ResultsOption,
    SeedsOption,
    SetOption,
    SlurmOption,
    StepsOption,
    SweepNameOption,
    WhereOption,
    XOption,
    YOption,
)
from orchestrator.commands.arguments import conditions, overrides, read_sweep
from orchestrator.errors import EXIT_INTERRUPTED, SweepError, printable
from orchestrator.files import REPLAYS, sweep_folder

if TYPE_CHECKING:
    from orchestrator.commands.printing import Answer

app = typer.Typer(
    help="Where in hyperparameter space is training stable, how far is the edge, and what moves it?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all trials finished, 2 bad input, 3 some errored, 4 storage or Ray failed, 130 Ctrl-C.",
)
export_app = typer.Typer(help="Write a sweep's map to a file.", no_args_is_help=True)
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
) -> None:
    """Train the missing trials of a sweep, then write its map, picture and report."""
    from orchestrator.commands.run import run as command
    from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
    from orchestrator.sweepfile.spec import refuse_import

    options = {
        "resources.cpus": cpus,
        "resources.gpus": gpus,
        "resources.pack": pack,
        "resources.parallel": parallel,
        "tracking.uri": tracking_uri,
    }
    sets = [*set_, *(f"{key}={value}" for key, value in options.items() if value is not None)]
    sweep = read_sweep(file, results, overrides(axis, drop, sets, seeds, steps, name), allow_import)
    refuse_import(sweep, allow_import)
    load = executor_loader(executor, ExecutorOptions(results / sweep.name, sweep.resources, address, tuple(slurm)))
    _exit(command(sweep, results, load, retry_errored))


@app.command()
def plan(
    file: FileArgument,
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    name: SweepNameOption = None,
    results: ResultsOption = RESULTS,
    allow_import: AllowImportOption = False,
) -> None:
    """Show what `run` would train: cells, packs, existing results, estimated time."""
    from orchestrator.commands.plan import plan as command

    sweep = read_sweep(file, results, overrides(axis, drop, set_, seeds, steps, name), allow_import)
    _exit(command(sweep, results))


@app.command()
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the new sweep; writes NAME.yaml")],
    objective: Annotated[str, typer.Option(help="what to train")] = "gpt",
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    output: Annotated[Path | None, typer.Option(help="the file to write instead")] = None,
) -> None:
    """Write a commented sweep file as a starting point."""
    from orchestrator.commands.init import init as command

    _exit(command(name, objective, overrides(axis, drop, set_, seeds, steps), output))


@app.command()
def objectives() -> None:
    """List the objectives and their fields, with unit, default and domain."""
    from orchestrator.commands.objectives import objectives as command

    _exit(command())


@app.command()
def status(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Show the state of a sweep: outcomes, failures, the map as text."""
    from orchestrator.commands.status import status as command

    _exit(command(sweep_folder(name, results)))


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
    """Draw the stability map: the fraction of stable seeds, and the final loss beside it."""
    from orchestrator.commands.export_heatmap import export_heatmap as command

    folder = sweep_folder(name, results)
    _exit(command(folder, format_, x, y, metric, conditions(where), reduce, facet, degraded, output))


@app.command()
def boundary(
    name: NameArgument,
    x: XOption = None,
    y: YOption = None,
    where: WhereOption = [],  # noqa: B006
    reduce: ReduceOption = "worst",
    degraded: DegradedOption = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Show where the map turns from stable to not stable, row by row, with brackets."""
    from orchestrator.commands.boundary import boundary as command

    _exit(command(sweep_folder(name, results), x, y, conditions(where), reduce, degraded))


@app.command()
def recommend(
    name: NameArgument,
    margin: Annotated[float, typer.Option(help="how far from every edge, as a factor of each axis")] = 2.0,
    metric: LossOption = "final_loss",
    degraded: DegradedOption = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Recommend the setting with the lowest loss that is stable on all seeds and far enough from the edge."""
    from orchestrator.commands.recommend import recommend as command

    _exit(command(sweep_folder(name, results), margin, metric, degraded))


@app.command()
def sensitivity(
    name: NameArgument,
    axis: Annotated[str, typer.Option(help="the learning rate's axis")] = "lr",
    results: ResultsOption = RESULTS,
) -> None:
    """Show what a wrong learning rate costs, for each setting of the other axes."""
    from orchestrator.commands.sensitivity import sensitivity as command

    _exit(command(sweep_folder(name, results), axis))


@app.command()
def compare(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME NAME...", help="two sweeps or more; the first is the base")
    ],
    x: XOption = None,
    y: YOption = None,
    reduce: ReduceOption = "worst",
    degraded: DegradedOption = False,
    output: Annotated[Path | None, typer.Option(help="the picture to write: .png, .svg or .pdf")] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show in words and pictures how sweeps differ on their shared cells, and how certain that is."""
    from orchestrator.commands.compare import compare as command

    _exit(command([sweep_folder(name, results) for name in names], x, y, reduce, degraded, output, results))


@app.command()
def report(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Write the sweep's map, picture and self-contained HTML report again."""
    from orchestrator.commands.report import report as command

    _exit(command(sweep_folder(name, results)))


@app.command()
def replay(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="logs, folders of logs, mlflow:RUN_ID, or finished sweeps"),
    ],
    step: Annotated[str | None, typer.Option(metavar="NAME", help="the column of steps")] = None,
    loss: Annotated[str | None, typer.Option(metavar="NAME", help="the column of training losses")] = None,
    grad_norm: Annotated[str | None, typer.Option(metavar="NAME", help="the column of gradient norms")] = None,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="stopping.KEY=VALUE", help="judge with another setting")
    ] = [],  # noqa: B006
    json_: JsonOption = None,
    figures: FiguresOption = None,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="draw no pictures")] = False,
    norm_rises: NormRisesOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Judge training logs of any origin: outcomes, spikes, and where they would have been stopped.

    Reads CSV and TSV, JSON lines, trainer_state.json, metrics.csv, TensorBoard event files, and text with lines such as
    `step 10 loss 3.2`. For a finished sweep it shows which outcomes other settings change.
    """
    from orchestrator.commands.replay import replay as command
    from orchestrator.logs.columns import Columns

    folder = None if no_figures else figures or results / REPLAYS
    _exit(command(paths, Columns(step, loss, grad_norm), set_, results, json_, folder, norm_rises))


@app.command()
def diagnose(
    name: NameArgument,
    trial: Annotated[
        str | None, typer.Option("--trial", metavar="ID", help="the trial's id, or an unambiguous prefix of it")
    ] = None,
    cell: CellOption = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the picture (.png, .svg, .pdf); results/NAME/diagnosis/ID.png")
    ] = None,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show why a trial became unstable, with the numbers, the excluded causes, and what to change.

    Without --trial and --cell it diagnoses the most typical trial that is not stable: the one with the earliest onset
    of the most common outcome. Where no cell shows whether a change would help, a small sweep that tests it is written
    beside the picture.
    """
    from orchestrator.commands.diagnose import diagnose as command

    cells = conditions(cell.split(","), "--cell") if cell is not None else {}
    _exit(command(sweep_folder(name, results), trial, cells, output, json_))


@app.command()
def explain(
    name: NameArgument,
    x: XOption = None,
    y: YOption = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the picture (.png, .svg, .pdf); results/NAME/explanation.png")
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show which mechanism rules which part of the unstable region, and draw it on the map."""
    from orchestrator.commands.explain import explain as command

    _exit(command(sweep_folder(name, results), x, y, output))


@app.command()
def audit(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Show what early stopping saved in a sweep, and how often it was wrong (stopping.audit)."""
    from orchestrator.commands.audit import audit as command

    _exit(command(sweep_folder(name, results)))


@app.command()
def sync(
    name: NameArgument,
    results: ResultsOption = RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow tracking URI instead of the sweep's")] = None,
) -> None:
    """Write a sweep's missing results to MLflow."""
    from orchestrator.commands.sync import sync as command

    _exit(command(sweep_folder(name, results), tracking_uri))


@app.command()
def doctor(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="name or results folder of a sweep")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit with 3 on warnings too, not only on faults")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="repair what can be repaired")] = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Check the environment, and a sweep's ledger and files."""
    from orchestrator.commands.doctor import doctor as command

    _exit(command(sweep_folder(name, results) if name else None, results, strict, fix))


@app.command()
def gc(
    name: NameArgument,
    exports: Annotated[bool, typer.Option("--exports", help="also maps, pictures and the report")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")] = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Delete files that can be made again or are no longer needed; never a result."""
    from orchestrator.commands.gc import gc as command

    _exit(command(sweep_folder(name, results), exports, dry_run))


@app.command()
def ui(
    results: ResultsOption = RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="the MLflow store to show")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port on 127.0.0.1")] = 5000,
) -> None:
    """Serve MLflow's pages on this machine, to compare sweeps."""
    from orchestrator.commands.ui import ui as command

    _exit(command(results, tracking_uri, port))


def main() -> None:
    """Entry point of the console script."""
    try:
        app(prog_name="sweep")
    except SweepError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _exit(answer: Answer) -> NoReturn:
    """Print the answer of a command and exit with its code."""
    from orchestrator.commands.printing import show

    raise typer.Exit(show(answer))


if __name__ == "__main__":
    main()
