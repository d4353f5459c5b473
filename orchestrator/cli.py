"""The command line: parse, call one function, turn errors into exit codes.

Heavy imports stand inside the commands, so that `sweep --help` and `sweep plan` are instant.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import __version__
from orchestrator.errors import EXIT_INTERRUPTED, InputError, Problem, SweepError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orchestrator.executors import Executor
    from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, refuse_import

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

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="sweep file, or the name or folder of a sweep")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="name or results folder of a sweep")]
ResultsOption = Annotated[Path, typer.Option("--results", metavar="DIR", help="where results folders are")]
AxisOption = Annotated[
    list[str],
    typer.Option(
        "--axis", metavar="NAME=SCALE:...", help="add or replace an axis: lr=log:1e-4,1e-1,7 or clip=values:none,1"
    ),
]
DropOption = Annotated[
    list[str], typer.Option("--drop", metavar="AXIS", help="leave this axis out; --set fixed.AXIS=VALUE fixes it")
]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="set any key of the file: fixed.batch_size=16")
]
SeedsOption = Annotated[str | None, typer.Option("--seeds", metavar="N,N,...", help="the seeds, e.g. 0,1,2")]
StepsOption = Annotated[int | None, typer.Option("--steps", help="length of each training run")]
XOption = Annotated[str | None, typer.Option("--x", help="axis to the right; the first by default")]
YOption = Annotated[str | None, typer.Option("--y", help="axis upwards; the second by default")]
WhereOption = Annotated[
    list[str], typer.Option("--where", metavar="AXIS=VALUE", help="only cells with this value of another axis")
]
ReduceOption = Annotated[
    str, typer.Option("--reduce", help="what stands for axes that are not shown: their worst, median or best cell")
]
LossOption = Annotated[str, typer.Option("--metric", help="final_loss, validation_loss or best_loss")]
AllowImportOption = Annotated[
    bool, typer.Option("--allow-import", help="import the Python code that the sweep file names")
]
SweepNameOption = Annotated[str | None, typer.Option("--name", help="name of the sweep")]

_RESULTS = Path("results")


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
    results: ResultsOption = _RESULTS,
    executor: Annotated[str, typer.Option(help="ray, slurm, or inline to train in this process")] = "ray",
    address: Annotated[str | None, typer.Option(help="a running Ray cluster; a private one otherwise")] = None,
    cpus: Annotated[int | None, typer.Option(help="CPU cores of one pack")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs of one pack, may be a fraction")] = None,
    pack: Annotated[str | None, typer.Option(help="members of one pack: auto or a number")] = None,
    parallel: Annotated[int | None, typer.Option(help="packs trained at a time")] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow tracking URI")] = None,
    retry_errored: Annotated[bool, typer.Option("--retry-errored", help="train errored trials again")] = False,
    allow_import: AllowImportOption = False,
    slurm: Annotated[
        list[str],
        typer.Option(
            "--slurm",
            metavar="KEY=VALUE",
            help="for jobs: time=MINUTES, partition=..., account=...; cluster=local tries it out",
        ),
    ] = [],  # noqa: B006
) -> None:
    """Train what a sweep still misses, then write its map, picture and report."""
    options = {
        "resources.cpus": cpus,
        "resources.gpus": gpus,
        "resources.pack": pack,
        "resources.parallel": parallel,
        "tracking.uri": tracking_uri,
    }
    sets = [*set_, *(f"{key}={value}" for key, value in options.items() if value is not None)]
    sweep = _load(file, results, _overrides(axis, drop, sets, seeds, steps, name), allow_import)
    refuse_import(sweep, allow_import)
    if executor not in ("ray", "inline", "slurm"):
        raise InputError(Problem("--executor", "", f"{executor!r} is unknown", "choose ray, slurm or inline"))
    from orchestrator.commands.run import drive

    folder = results / sweep.name
    raise typer.Exit(drive(sweep, results, lambda: _executor(executor, address, sweep, folder, slurm), retry_errored))


@app.command()
def plan(
    file: FileArgument,
    axis: AxisOption = [],  # noqa: B006
    drop: DropOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    seeds: SeedsOption = None,
    steps: StepsOption = None,
    name: SweepNameOption = None,
    results: ResultsOption = _RESULTS,
    allow_import: AllowImportOption = False,
) -> None:
    """Show what `run` would train: cells, packs, what exists already, how long it may take."""
    sweep = _load(file, results, _overrides(axis, drop, set_, seeds, steps, name), allow_import)
    from orchestrator.commands.run import plan_lines

    for line in plan_lines(sweep, results):
        typer.echo(printable(line))


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
    """Write a commented sweep file to start from."""
    from orchestrator.files import check_output, write_output
    from orchestrator.sweepfile.starter import starter_file

    text = starter_file(name, objective, _overrides(axis, drop, set_, seeds, steps, None))
    path = output or Path(f"{name}.yaml")
    if path.exists():
        raise InputError(Problem(str(path), "", "exists already", "choose another name, or --output FILE"))
    check_output(path)
    write_output(path, text)
    _print([f"wrote {path}; next: sweep plan {path}"])


@app.command()
def objectives() -> None:
    """List the objectives and every field with unit, default and domain."""
    from rich.console import Console
    from rich.table import Table

    from orchestrator.sweepfile.starter import objectives_with_rows

    console = Console(width=None if sys.stdout.isatty() else 120)
    for objective, rows in objectives_with_rows():
        title = f"{objective.name}: {objective.summary}"
        table = Table("field", "default", "unit", "domain", "meaning", title=title, title_justify="left", box=None)
        for row in rows:
            table.add_row(*(word.replace("[", r"\[") for word in row))
        console.print(table)
        console.print()


@app.command()
def status(name: NameArgument, results: ResultsOption = _RESULTS) -> None:
    """Say where a sweep stands: outcomes, failures, the map as text."""
    from orchestrator.commands.run import show_status
    from orchestrator.files import sweep_folder

    raise typer.Exit(show_status(sweep_folder(name, results)))


@export_app.command("heatmap")
def export_heatmap(
    name: NameArgument,
    x: XOption = None,
    y: YOption = None,
    metric: Annotated[
        str, typer.Option(help="second panel: final_loss, validation_loss, best_loss, onset_step, spike_score, ...")
    ] = "final_loss",
    format_: Annotated[
        str | None, typer.Option("--format", help="png, svg, pdf or csv; by default what --output ends in, or png")
    ] = None,
    where: WhereOption = [],  # noqa: B006
    reduce: ReduceOption = "worst",
    facet: Annotated[str | None, typer.Option(metavar="AXIS", help="one map for each value of this axis")] = None,
    output: Annotated[Path | None, typer.Option(help="the file to write instead")] = None,
    results: ResultsOption = _RESULTS,
) -> None:
    """Draw the stability map: fraction of stable seeds beside a panel of final loss."""
    from orchestrator.files import sweep_folder
    from orchestrator.pictures.exports import export_heatmap as export

    folder = sweep_folder(name, results)
    path = export(
        folder, format_, x=x, y=y, metric=metric, where=_conditions(where), reduce=reduce, facet=facet, output=output
    )
    _print([f"wrote {path}"])


@app.command()
def boundary(
    name: NameArgument,
    x: XOption = None,
    y: YOption = None,
    where: WhereOption = [],  # noqa: B006
    reduce: ReduceOption = "worst",
    results: ResultsOption = _RESULTS,
) -> None:
    """Say where the map turns from stable to not stable, row by row, with brackets."""
    from orchestrator.commands.answers import boundary_answer
    from orchestrator.files import sweep_folder

    _print(boundary_answer(sweep_folder(name, results), x, y, _conditions(where), reduce))


@app.command()
def recommend(
    name: NameArgument,
    margin: Annotated[float, typer.Option(help="how far from every edge, as a factor of each axis")] = 2.0,
    metric: LossOption = "final_loss",
    results: ResultsOption = _RESULTS,
) -> None:
    """Name the setting of lowest loss that is stable on all seeds and far enough from the edge, or none."""
    from orchestrator.commands.answers import recommendation_answer
    from orchestrator.files import sweep_folder

    _print(recommendation_answer(sweep_folder(name, results), margin, metric))


@app.command()
def sensitivity(
    name: NameArgument,
    axis: Annotated[str, typer.Option(help="the learning rate's axis")] = "lr",
    results: ResultsOption = _RESULTS,
) -> None:
    """Say what a wrong learning rate costs, for each setting of the other axes."""
    from orchestrator.commands.answers import sensitivity_answer
    from orchestrator.files import sweep_folder

    _print(sensitivity_answer(sweep_folder(name, results), axis))


@app.command()
def compare(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME NAME...", help="two sweeps or more; the first is the base")
    ],
    x: XOption = None,
    y: YOption = None,
    reduce: ReduceOption = "worst",
    output: Annotated[Path | None, typer.Option(help="the picture to write: .png, .svg or .pdf")] = None,
    results: ResultsOption = _RESULTS,
) -> None:
    """Say and draw what changed between sweeps on the cells that they share, and how sure that is."""
    from orchestrator.commands.answers import comparison_answer
    from orchestrator.files import sweep_folder

    _print(comparison_answer([sweep_folder(name, results) for name in names], x, y, reduce, output, results))


@app.command()
def report(name: NameArgument, results: ResultsOption = _RESULTS) -> None:
    """Write the sweep's map, picture and self-contained HTML report again."""
    from orchestrator.files import sweep_folder
    from orchestrator.pictures.exports import export_all

    for path in export_all(sweep_folder(name, results)):
        _print([f"wrote {path}"])


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
    json_: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write everything as JSON")] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="folder of the pictures; results/replay by default")
    ] = None,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="draw no pictures")] = False,
    results: ResultsOption = _RESULTS,
) -> None:
    """Judge training logs of any origin: outcomes, spikes, where they would have been stopped.

    Reads CSV and TSV, JSON lines, trainer_state.json, metrics.csv, TensorBoard event files and text with
    lines such as `step 10 loss 3.2`. Of a finished sweep it shows which outcomes another setting changes.
    """
    from orchestrator.commands.replay import replay as judge_logs
    from orchestrator.files import REPLAYS
    from orchestrator.logs.files import Columns

    folder = None if no_figures else figures or results / REPLAYS
    raise typer.Exit(judge_logs(paths, Columns(step, loss, grad_norm), set_, results, json_, folder))


@app.command()
def diagnose(
    name: NameArgument,
    trial: Annotated[
        str | None, typer.Option("--trial", metavar="ID", help="the trial with this id, or whose id alone begins so")
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(
            "--cell", metavar="AXIS=VALUE,...", help="the most typical trial of this cell: beta2=0.999,eps=1e-8"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the picture (.png, .svg, .pdf); results/NAME/diagnosis/ID.png")
    ] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="also write the diagnosis as JSON")
    ] = None,
    results: ResultsOption = _RESULTS,
) -> None:
    """Say why a trial became unstable, with the numbers, what it is not, and what to change.

    Without --trial and --cell it is the most typical trial that is not stable: the earliest of the commonest outcome.
    Where no cell tells whether a change would help, the small sweep that would tell is written beside the picture.
    """
    from orchestrator.commands.diagnose import diagnosis_answer
    from orchestrator.files import sweep_folder

    cells = _conditions(cell.split(","), "--cell") if cell is not None else {}
    _print(diagnosis_answer(sweep_folder(name, results), trial, cells, output, json_))


@app.command()
def explain(
    name: NameArgument,
    x: XOption = None,
    y: YOption = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the picture (.png, .svg, .pdf); results/NAME/explanation.png")
    ] = None,
    results: ResultsOption = _RESULTS,
) -> None:
    """Say which mechanism rules which part of the region that is not stable, and draw it on the map."""
    from orchestrator.commands.explain import explanation_answer
    from orchestrator.files import sweep_folder

    _print(explanation_answer(sweep_folder(name, results), x, y, output))


@app.command()
def audit(name: NameArgument, results: ResultsOption = _RESULTS) -> None:
    """Say what stopping early saved in a sweep, and how often it was wrong (stopping.audit)."""
    from orchestrator.commands.replay import show_audit
    from orchestrator.files import sweep_folder

    for line in show_audit(sweep_folder(name, results)):
        typer.echo(printable(line))


@app.command()
def sync(
    name: NameArgument,
    results: ResultsOption = _RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow tracking URI instead of the sweep's")] = None,
) -> None:
    """Write to MLflow what it misses of a sweep."""
    from orchestrator.commands.run import sync_sweep
    from orchestrator.files import sweep_folder

    _print([sync_sweep(sweep_folder(name, results), tracking_uri)])


@app.command()
def doctor(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="name or results folder of a sweep")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit with 3 on warnings too, not on faults alone")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="repair what can be repaired")] = False,
    results: ResultsOption = _RESULTS,
) -> None:
    """Look whether everything is as it should be: the environment, and a sweep's ledger and files."""
    from orchestrator.commands.run import show_findings
    from orchestrator.files import sweep_folder

    raise typer.Exit(show_findings(sweep_folder(name, results) if name else None, results, strict=strict, fix=fix))


@app.command()
def gc(
    name: NameArgument,
    exports: Annotated[bool, typer.Option("--exports", help="also maps, pictures and the report")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")] = False,
    results: ResultsOption = _RESULTS,
) -> None:
    """Remove what can be made again or nobody needs; never a result."""
    from orchestrator.commands.gc import clean
    from orchestrator.files import sweep_folder

    lines = list(clean(sweep_folder(name, results), exports=exports, is_rehearsal=dry_run))
    _print(lines or ["nothing to remove"])


@app.command()
def ui(
    results: ResultsOption = _RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="the MLflow store to show")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port on 127.0.0.1")] = 5000,
) -> None:
    """Serve MLflow's pages on this machine, to compare stability regions."""
    from orchestrator.commands.run import serve_ui

    raise typer.Exit(serve_ui(results, tracking_uri, port))


def main() -> None:
    """Entry point of the console script."""
    try:
        app(prog_name="sweep")
    except SweepError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(printable(line))


def _conditions(where: list[str], option: str = "--where") -> dict[str, str]:
    """`--where AXIS=VALUE` options, or those of another ``option``, as a mapping. Raises InputError."""
    conditions = {}
    for text in where:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(Problem(option, text, "is not AXIS=VALUE", "write e.g. clip=none"))
        conditions[key.strip()] = value.strip()
    return conditions


def _overrides(
    axes: list[str], drops: list[str], sets: list[str], seeds: str | None, steps: int | None, name: str | None
) -> Overrides:
    from orchestrator.sweepfile.overrides import Overrides

    return Overrides(tuple(axes), tuple(sets), seeds, steps, name, tuple(drops))


def _load(file: str, results: Path, overrides: Overrides, allow_import: bool) -> Sweep:
    """A sweep from a file, or from the folder where it was frozen."""
    from orchestrator.files import FROZEN_SWEEP
    from orchestrator.sweepfile.spec import load_sweep

    path = Path(file)
    for folder in (path, results / file):
        if not os.path.isfile(path) and os.path.isfile(folder / FROZEN_SWEEP):
            path = folder / FROZEN_SWEEP
    return load_sweep(path, overrides, allow_import=allow_import)


def _executor(kind: str, address: str | None, sweep: Sweep, folder: Path, slurm: list[str]) -> Callable[[], Executor]:
    """Load what trains packs, which takes seconds; returns what starts it."""
    if kind == "inline":
        from orchestrator.executors.inline import InlineExecutor

        return InlineExecutor
    resources = sweep.resources
    needs = {
        "cpus": resources.cpus,
        "gpus": resources.gpus_per_worker or resources.gpus,
        "parallel": None if resources.parallel == "auto" else resources.parallel,
        "workers": resources.workers,
    }
    if kind == "slurm":
        from orchestrator.executors.slurm import SlurmExecutor
        from orchestrator.executors.slurm_options import read_options

        options = read_options(slurm)
        return lambda: SlurmExecutor(folder, **needs, options=options)
    from orchestrator.executors.apart import ApartExecutor

    arguments = {**needs, "address": address}
    # A Ray without other nodes, as on a laptop's systems: then all of it listens on loopback alone.
    alone = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if address is None else {}
    return lambda: ApartExecutor("ray", "orchestrator.executors.ray_tune", "RayTuneExecutor", arguments, alone)


if __name__ == "__main__":
    main()
