"""Commands that answer from the ledger of any sweep, grid or not: survival, importance and export optuna."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli_options import RESULTS, JsonOption, NameArgument, ResultsOption
from orchestrator.cli_upkeep import finish
from orchestrator.files import sweep_folder

answers = typer.Typer()
exports = typer.Typer()


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

    finish(command(sweep_folder(name, results), axis, until, json_))


@answers.command()
def importance(name: NameArgument, json_: JsonOption = None, results: ResultsOption = RESULTS) -> None:
    """Show which axis moves stability and which the loss, by PED-ANOVA and fANOVA, with the diverged runs in.

    For example `sweep importance fit --json importance.json`.
    """
    from orchestrator.commands.importance import importance as command

    finish(command(sweep_folder(name, results), json_))


@exports.command("optuna")
def export_optuna(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Write results/NAME/optuna.db: the sweep as an Optuna study, for optuna-dashboard.

    For example `sweep export optuna fit`. The file is made from the ledger, and again as a whole by every call.
    """
    from orchestrator.commands.export_optuna import export_optuna as command

    finish(command(sweep_folder(name, results)))
