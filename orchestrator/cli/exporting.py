"""`sweep export`: the map as a picture, and the sweep in the form of another product."""

from __future__ import annotations

import typer

from orchestrator.base.files import sweep_folder
from orchestrator.cli.options import RESULTS, NameArgument, ResultsOption, finish

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
