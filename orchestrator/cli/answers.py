"""Commands that answer from the ledger of any sweep: diagnose, explain, compare, survival, importance and so on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.base.files import sweep_folder
from orchestrator.cli.completion import sweep_names
from orchestrator.cli.options import (
    RESULTS,
    AgainstOption,
    AllowImportOption,
    CellOption,
    DegradedOption,
    JsonOption,
    LogFormatOption,
    LossColumnOption,
    LossOption,
    MarginAlongOption,
    NameArgument,
    NormColumnOption,
    PatternOption,
    ReduceOption,
    ResultsOption,
    StepColumnOption,
    TargetOption,
    WhereOption,
    XOption,
    YOption,
)
from orchestrator.cli.upkeep import finish
from orchestrator.commands.arguments import cell_of, conditions, told_metrics

answers = typer.Typer()
exports = typer.Typer()


@answers.command()
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
    beside the picture. For example `sweep diagnose lr_warmup --cell lr=0.3,warmup=0`.
    """
    from orchestrator.commands.diagnose import diagnose as command

    cells = cell_of(cell)
    finish(command(sweep_folder(name, results), trial, cells, output, json_), json_)


@answers.command()
def remedy(
    name: NameArgument,
    trial: Annotated[
        str | None, typer.Option("--trial", metavar="ID", help="the trial's id, or an unambiguous prefix of it")
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(
            "--cell", metavar="AXIS=VALUE,...", help="the most typical trial of this cell; with --each-cell these cells"
        ),
    ] = None,
    each_cell: Annotated[
        bool, typer.Option("--each-cell", help="find the cheapest remedy of each cell of the map that is not stable")
    ] = False,
    at: Annotated[
        list[str],
        typer.Option(
            "--at", metavar="STEP", help="fork before this step: 100, -50 (before the onset), onset; may be repeated"
        ),
    ] = [],  # noqa: B006
    try_: Annotated[
        list[str],
        typer.Option(
            "--try", metavar="FIELD=VALUE,...", help="lr=x0.5,x0.25, lr=x0.25:50:20, skip=5, lr=x0.5+clip=1; repeatable"
        ),
    ] = [],  # noqa: B006
    replicates: Annotated[
        int, typer.Option(min=1, max=100, help="forks of each remedy: the first has the trial's data, others have not")
    ] = 3,
    pairs: Annotated[
        bool | None,
        typer.Option(
            "--pairs/--no-pairs",
            help="try two remedies at a time where no single one saves all; by default of one trial alone",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="the picture (.png, .svg, .pdf); results/NAME/remedies/ID/remedies.png, or results/NAME/remedies.png",
        ),
    ] = None,
    format_: Annotated[str | None, typer.Option("--format", help="of the picture: png, svg or pdf")] = None,
    executor: Annotated[str, typer.Option(help="inline to train in this process, ray or slurm")] = "inline",
    allow_import: AllowImportOption = False,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Fork a run that became unstable, try remedies on the forks, and show which of them save it, and from when on.

    Without --trial and --cell it takes the most typical trial that is not stable, as a diagnosis does; without --at and
    --try the usual steps and remedies. The same command trains nothing twice, and goes on where it was stopped.
    For example `sweep remedy lr_warmup --at -50 --try lr=x0.5 --try skip=5`.

    With --each-cell it takes such a trial of each unstable cell, and says which remedy is the cheapest there: it saves
    every replicate from the latest step on. So the steps are tried from the latest back, until something saves. Fewer
    remedies are usual then: the learning rate x0.5 and x0.1, beta1, beta2, eps, clip, 5 batches skipped, moments reset,
    and the values of the stable cells beside it. For example `sweep remedy lr_warmup --each-cell --cell warmup=10`.
    """
    from orchestrator.causes.remedies.request import RemedyRequest
    from orchestrator.commands.remedy import remedy as command

    cells = cell_of(cell)
    asked = RemedyRequest(
        tuple(try_), tuple(at), replicates, not each_cell if pairs is None else pairs, allow_import, each_cell
    )
    folder = sweep_folder(name, results)
    finish(command(folder, trial, cells, asked, executor, output, format_, json_), json_)


@answers.command()
def explain(
    name: NameArgument,
    x: XOption = None,
    y: YOption = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the picture (.png, .svg, .pdf); results/NAME/explanation.png")
    ] = None,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show which mechanism rules which part of the unstable region, and draw it on the map.

    For example `sweep explain lr_warmup`.
    """
    from orchestrator.commands.explain import explain as command

    finish(command(sweep_folder(name, results), x, y, output, json_), json_)


@answers.command()
def sensitivity(
    name: NameArgument,
    axis: Annotated[str, typer.Option(help="the learning rate's axis")] = "lr",
    range_: Annotated[
        str | None,
        typer.Option("--range", metavar="LOW:HIGH", help="the values that count, e.g. 1e-4:1e-1; all that were tried"),
    ] = None,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show what a wrong learning rate costs, for each setting of the other axes.

    For example `sweep sensitivity lr_warmup --range 1e-3:1e-1`.
    """
    from orchestrator.commands.sensitivity import sensitivity as command

    finish(command(sweep_folder(name, results), axis, range_, json_), json_)


@answers.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="two sweeps or more, the first is the base; or one, with --along",
            autocompletion=sweep_names,
        ),
    ],
    along: Annotated[
        str | None, typer.Option(metavar="AXIS", help="compare the values of an axis of one sweep")
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="VALUE", help="beside --along: the value to compare with; the first")
    ] = None,
    x: XOption = None,
    y: YOption = None,
    reduce: ReduceOption = "worst",
    degraded: DegradedOption = False,
    output: Annotated[Path | None, typer.Option(help="the picture to write: .png, .svg or .pdf")] = None,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show in words and pictures how sweeps differ in what all of them cover, and how certain that is.

    For example `sweep compare a b`, or the values of an axis of one sweep, `sweep compare a --along optimizer`.
    """
    from orchestrator.commands.compare import compare as command

    folders = [sweep_folder(name, results) for name in names]
    finish(command(folders, x, y, reduce, degraded, output, results, along, base, json_), json_)


@answers.command()
def survival(
    name: NameArgument,
    axis: Annotated[str | None, typer.Option(help="pool the cells of each value of this axis")] = None,
    until: Annotated[
        int | None,
        typer.Option(min=1, max=10**12, metavar="STEP", help="predict to this step; ten times the longest run"),
    ] = None,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show how long runs stay stable, what "stable so far" leaves open, and which cells would fail in longer runs.

    For example `sweep survival fit --until 3000`, or pooled along an axis `sweep survival fit --axis lr`.
    """
    from orchestrator.commands.survival import survival as command

    finish(command(sweep_folder(name, results), axis, until, json_), json_)


@answers.command()
def warn(name: NameArgument, json_: JsonOption = None, results: ResultsOption = RESULTS) -> None:
    """Show when telemetry would have warned of each instability, by how many steps, and the false alarms.

    For example `sweep warn fit --json warned.json`. A sweep with telemetry.curvature is warned of earlier.
    """
    from orchestrator.commands.warn import warn as command

    finish(command(sweep_folder(name, results), json_), json_)


@answers.command()
def importance(name: NameArgument, json_: JsonOption = None, results: ResultsOption = RESULTS) -> None:
    """Show which axis moves stability and which the loss, by PED-ANOVA and fANOVA, with the diverged runs in.

    For example `sweep importance fit --json importance.json`.
    """
    from orchestrator.commands.importance import importance as command

    finish(command(sweep_folder(name, results), json_), json_)


@answers.command()
def locate(
    name: NameArgument,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the run's settings: a YAML file with a line for each")
    ] = None,
    set_: Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE", help="a setting of the run: lr=3e-3")] = [],  # noqa: B006
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="the run's log, to be judged as by replay")] = None,
    step: StepColumnOption = None,
    loss: LossColumnOption = None,
    grad_norm: NormColumnOption = None,
    pattern: PatternOption = None,
    format_: LogFormatOption = "auto",
    degraded: DegradedOption = False,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show where one run lies on a sweep's map: inside stable territory or not, and the factor to every edge.

    For example `sweep locate fit --set lr=3e-3 --set beta2=0.95`, or `sweep locate fit --config mine.yaml --log
    train.log`. Settings in which the run differs from the sweep are told, and so are the nearest cells.
    """
    from orchestrator.commands.locate import locate as command
    from orchestrator.logs.columns import Columns

    told, columns = told_metrics(pattern, format_, loss), Columns(step, loss, grad_norm)
    finish(command(sweep_folder(name, results), config, set_, log, columns, told, degraded, json_), json_)


@answers.command()
def front(
    name: NameArgument,
    metric: LossOption = None,
    against: AgainstOption = "margin",
    along: MarginAlongOption = None,
    target: TargetOption = None,
    degraded: DegradedOption = False,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Show the settings that no other beats in both a low loss and a wide margin to the edge, or few steps.

    For example `sweep front fit`, or `sweep front fit --against steps`. Only cells that are stable on all seeds count.
    """
    from orchestrator.commands.front import front as command

    finish(command(sweep_folder(name, results), metric, against, along, target, degraded, json_), json_)


@exports.command("edge")
def export_edge(
    name: NameArgument,
    x: Annotated[str | None, typer.Option(help="the axis along which the edge lies; the first by default")] = None,
    y: Annotated[
        str | None, typer.Option(help="the axis that it is drawn against; by default the next one of numbers")
    ] = None,
    facet: Annotated[
        str | None,
        typer.Option(metavar="AXIS", help="a line for each value; by default a further axis of at most 8 values"),
    ] = None,
    where: WhereOption = [],  # noqa: B006
    degraded: DegradedOption = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write only this: a picture (.png, .svg, .pdf), or the table (.csv)"),
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Draw the edge along one axis against another: results/NAME/edge.png, and its numbers in edge.csv.

    For example `sweep export edge fit --x lr --y beta2`. On a grid bars show between which neighbours the edge lies.
    Where cells are scattered it is fitted, and a band shows its 95 % interval.
    """
    from orchestrator.commands.export_edge import export_edge as command

    finish(command(sweep_folder(name, results), x, y, facet, conditions(where), degraded, output))


@exports.command("front")
def export_front(
    name: NameArgument,
    metric: LossOption = None,
    against: AgainstOption = "margin",
    along: MarginAlongOption = None,
    target: TargetOption = None,
    degraded: DegradedOption = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write only this: a picture (.png, .svg, .pdf), or the table (.csv)"),
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Draw the front of `sweep front NAME` among all cells: results/NAME/front.png, and its numbers in front.csv.

    For example `sweep export front fit --against steps`.
    """
    from orchestrator.commands.export_front import export_front as command

    finish(command(sweep_folder(name, results), metric, against, along, target, degraded, output))


@exports.command("optuna")
def export_optuna(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Write results/NAME/optuna.db: the sweep as an Optuna study, for optuna-dashboard.

    For example `sweep export optuna fit`. The file is made from the ledger, and again as a whole by every call.
    """
    from orchestrator.commands.export_optuna import export_optuna as command

    finish(command(sweep_folder(name, results)))
