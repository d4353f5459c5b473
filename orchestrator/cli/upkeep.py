"""Commands that show results and look after them: page, report, ui, export, sync and gc."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.base.files import sweep_folder
from orchestrator.cli.options import RESULTS, NameArgument, PortOption, ResultsOption, finish, sweep_names


def sync_command(
    name: NameArgument,
    results: ResultsOption = RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow tracking URI instead of the sweep's")] = None,
    to: Annotated[list[str] | None, typer.Option(help="a tracker instead of those in tracking.to; repeatable")] = None,
) -> None:
    """Write a sweep's missing results to its trackers: MLflow, TensorBoard, Weights & Biases.

    For example `sweep sync lr_warmup --to tensorboard`.
    """
    from orchestrator.api.exporting import sync

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
    from orchestrator.api.cleaning import gc

    finish(gc(sweep_folder(name, results), exports, dry_run))


def report_command(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Write a sweep's map, picture and self-contained HTML report again.

    For example `sweep report lr_warmup`; `sweep page lr_warmup` serves the same page while the sweep runs.
    """
    from orchestrator.api.exporting import report

    finish(report(sweep_folder(name, results)))


def ui_command(
    results: ResultsOption = RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="the MLflow store to show")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port on 127.0.0.1")] = 5000,
) -> None:
    """Compare sweeps on MLflow's pages, served on this machine.

    For example `sweep ui --port 5001`.
    """
    from orchestrator.api.serving import ui

    finish(ui(results, tracking_uri, port))


def page_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="name or results folder of a sweep", autocompletion=sweep_names),
    ] = None,
    results: ResultsOption = RESULTS,
    port: PortOption = None,
    open_: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
) -> None:
    """Serve the page of a sweep on this machine, up to date while it trains; without NAME a list of all sweeps.

    For example `sweep page lr_warmup --open`.
    """
    from orchestrator.api.serving import page

    folder: Path | None = sweep_folder(name, results).absolute() if name else None
    finish(page(folder.parent if folder else results, folder.name if folder else None, port, open_))


export_command = typer.Typer(
    help="Write a sweep's map to a file, or the sweep for another product. For example `sweep export heatmap fit`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _heatmap() -> None:
    from orchestrator import answers
    from orchestrator.cli.asking import command_of

    export_command.command("heatmap")(command_of(answers.query_class("map")))


_heatmap()


@export_command.command("optuna")
def export_optuna(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Write results/NAME/optuna.db: the sweep as an Optuna study, for optuna-dashboard.

    For example `sweep export optuna fit`. Each call makes the file anew from the ledger.
    """
    from orchestrator.api.exporting import export_optuna as exported

    finish(exported(sweep_folder(name, results)))
