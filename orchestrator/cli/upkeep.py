"""Commands that show, import and look after results: page, report, ui, mcp, import, export, sync and gc."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.answers import query_class
from orchestrator.base.files import sweep_folder
from orchestrator.cli.app import PlainCommand, PlainGroup
from orchestrator.cli.options import (
    RESULTS,
    AllowImportOption,
    JsonOption,
    NameArgument,
    PortOption,
    ResultsOption,
    command_of,
    finish,
    names_from,
)


def sync_command(
    name: NameArgument,
    results: ResultsOption = RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow tracking URI instead of the sweep's")] = None,
    to: Annotated[list[str] | None, typer.Option(help="a tracker instead of those in tracking.to; repeatable")] = None,
) -> None:
    """Write a sweep's missing results to its trackers: MLflow, TensorBoard, Weights & Biases.

    For example `sweep sync lr_warmup --to tensorboard`.
    """
    from orchestrator.api.upkeep import sync

    finish(sync(sweep_folder(name, results), tracking_uri, to or ()))


def gc_command(
    name: NameArgument,
    exports: Annotated[bool, typer.Option("--exports", help="also maps, pictures and the report")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list what would be removed")] = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Delete files that can be made again or are no longer needed; never a result.

    For example `sweep gc lr_warmup --dry-run`.
    """
    from orchestrator.api.upkeep import gc

    finish(gc(sweep_folder(name, results), exports, dry_run))


def mcp_command(
    allow_run: Annotated[
        bool, typer.Option("--allow-run", help="also offer plan, run and remedy, which train within a budget")
    ] = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Answer an agent about the sweeps in the results: the questions as tools of the Model Context Protocol.

    A client starts it, and speaks with it on standard input and output: `sweep mcp --results results`. Without
    --allow-run it only reads.
    """
    from orchestrator.base.environment import check_installed

    check_installed("sweep mcp", "mcp")
    from orchestrator.api.agent_server import serve

    serve(results, allows_run=allow_run)


def report_command(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Write a sweep's map, picture and self-contained HTML report again.

    For example `sweep report lr_warmup`; `sweep page lr_warmup` serves the same page while the sweep runs.
    """
    from orchestrator.api.upkeep import report

    finish(report(sweep_folder(name, results)))


def ui_command(
    results: ResultsOption = RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="the MLflow store to show")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port on 127.0.0.1")] = 5000,
) -> None:
    """Compare sweeps on MLflow's pages, served on this machine.

    For example `sweep ui --port 5001`.
    """
    from orchestrator.api.upkeep import ui

    finish(ui(results, tracking_uri, port))


def page_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="name or results folder of a sweep", autocompletion=names_from),
    ] = None,
    results: ResultsOption = RESULTS,
    port: PortOption = None,
    open_: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
) -> None:
    """Serve the page of a sweep on this machine, up to date while it trains; without NAME a list of all sweeps.

    For example `sweep page lr_warmup --open`.
    """
    from orchestrator.api.upkeep import page

    folder: Path | None = sweep_folder(name, results).absolute() if name else None
    finish(page(folder.parent if folder else results, folder.name if folder else None, port, open_))


export_command = typer.Typer(
    cls=PlainGroup,
    help="Write a sweep's map to a file, or the sweep for another product. For example `sweep export heatmap fit`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


export_command.command("heatmap", cls=PlainCommand)(command_of(query_class("map")))


@export_command.command("optuna", cls=PlainCommand)
def export_optuna(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Write results/NAME/optuna.db: the sweep as an Optuna study, for optuna-dashboard.

    For example `sweep export optuna fit`. Each call makes the file anew from the ledger.
    """
    from orchestrator.api.upkeep import export_optuna as exported

    finish(exported(sweep_folder(name, results)))


@export_command.command("weights", cls=PlainCommand)
def export_weights(
    name: NameArgument,
    *,
    trial: Annotated[
        str | None,
        typer.Option(
            "--trial", metavar="ID", help="the trial's id, or an unambiguous prefix; by default the one of lowest loss"
        ),
    ] = None,
    step: Annotated[int | None, typer.Option("--step", min=1, help="after how many steps; the last by default")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="folder to write to, in place of one in the results")
    ] = None,
    allow_import: AllowImportOption = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Write a trial's weights as safetensors, with its configuration and a module in plain torch that loads them.

    For example `sweep export weights fit --trial 0b5c1f2a --step 200`. Its sweep file must have kept them: `keep`.
    """
    from orchestrator.api.export_weights import export_weights as exported

    finish(exported(sweep_folder(name, results), trial, step, output, allow_import=allow_import))


_MEANING, _LOGS, _RESULTS = "What the columns mean", "Reading logs", "Results"


def _text(flag: str, metavar: str, help_: str, panel: str) -> typer.models.OptionInfo:
    return typer.Option(flag, metavar=metavar, help=help_, rich_help_panel=panel)


def import_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="tables (CSV, TSV, JSON lines, Parquet), folders of runs, mlflow:EXPERIMENT, or optuna:URL#STUDY",
        ),
    ],
    *,
    axis: Annotated[
        list[str],
        _text("--axis", "NAME[=SCALE]", "column of a setting, e.g. lr=log; the first two are the map's axes", _MEANING),
    ] = [],  # noqa: B006
    merge: Annotated[
        list[str], _text("--merge", "AXIS", "take its values within half a percent for one; repeatable", _MEANING)
    ] = [],  # noqa: B006
    outcome: Annotated[
        str | None, _text("--outcome", "COLUMN", "labels (stable, diverged, ...) or final losses", _MEANING)
    ] = None,
    loss: Annotated[
        str | None,
        _text("--loss", "COLUMN", "final losses if --outcome has labels, per-step losses with --step", _MEANING),
    ] = None,
    seed: Annotated[
        str | None, _text("--seed", "COLUMN", "seeds; by default the rows of a cell are numbered", _MEANING)
    ] = None,
    map_: Annotated[
        list[str],
        _text("--map", "OUTCOME=LABEL,...", "meaning of labels: diverged=nan,crashed; skip=OOM", _MEANING),
    ] = [],  # noqa: B006
    diverged_above: Annotated[
        float | None, _text("--diverged-above", "LOSS", "a final loss above this has diverged", _MEANING)
    ] = None,
    maximize: Annotated[
        bool | None,
        typer.Option(
            "--maximize/--minimize",
            help="whether more of the values of --outcome or --loss is better: accuracy, F1, a return",
            show_default=False,
            rich_help_panel=_MEANING,
        ),
    ] = None,
    where: Annotated[
        list[str], _text("--where", "COLUMN=VALUE", "only rows with this value; repeatable", _MEANING)
    ] = [],  # noqa: B006
    mapping: Annotated[
        Path | None, _text("--mapping", "FILE", "YAML file with these and rarer options (docs/import.md)", _MEANING)
    ] = None,
    step: Annotated[str | None, _text("--step", "COLUMN", "steps, in a table with a loss in each row", _LOGS)] = None,
    run: Annotated[
        list[str],
        _text("--run", "COLUMN", "with --step: column that identifies a run; default: axes and seed", _LOGS),
    ] = [],  # noqa: B006
    from_path: Annotated[
        str | None,
        _text("--from-path", "REGEX", "settings in paths of logs or names of runs: `lr(?P<lr>[^_/]+)_`", _LOGS),
    ] = None,
    set_: Annotated[
        list[str], _text("--set", "stopping.KEY=VALUE", "judge curves with another setting of the detector", _LOGS)
    ] = [],  # noqa: B006
    name: Annotated[str, _text("--name", "NAME", "name of the new sweep: results/NAME/", _RESULTS)],
    replace: Annotated[
        bool, typer.Option("--replace", help="replace other imported results of this name", rich_help_panel=_RESULTS)
    ] = False,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Make a sweep of results that were trained elsewhere: its map, edge, figures and report, marked as imported.

    For example `sweep import table.csv --name theirs --axis lr --axis warmup --outcome loss --diverged-above 7`, then
    `sweep boundary theirs`. Each row is a run; rows with equal axes are seeds of one cell. A final loss that is not
    finite has diverged; other labels are not guessed: `--outcome status --map diverged=nan,crashed --map skip=OOM`.

    The detector judges curves, so spikes are seen. Curves come from a table with a loss in each row,
    `sweep import curves.csv --name theirs --axis lr --step step --loss loss --run run_id`, from a folder with a log and
    a settings file for each run, `sweep import runs/ --name theirs --axis lr --axis beta2`, or from an experiment,
    `sweep import mlflow:theirs --name theirs --axis lr`. The trials of optuna:sqlite:///theirs.db are rows of a table.

    A mapping file holds more, such as columns with other names: `axes: {lr: learning_rate}`. Options override it.
    """
    from orchestrator.api.importing import import_results
    from orchestrator.importing.options import import_options

    options = import_options(
        mapping,
        axis=axis,
        merge=merge,
        where=where,
        map=map_,
        set=set_,
        outcome=outcome,
        loss=loss,
        seed=seed,
        diverged_above=diverged_above,
        maximize=maximize,
        step=step,
        run=run,
        from_path=from_path,
    )
    finish(import_results(sources, name, options, results, json_, replaces=replace), json_)
