"""Commands that look after results and show them: audit, sync, doctor, gc, page and ui."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.base.files import STANDARD_OUTPUT, sweep_folder
from orchestrator.cli.completion import sweep_names
from orchestrator.cli.options import RESULTS, JsonOption, NameArgument, PortOption, ResultsOption

if TYPE_CHECKING:
    from orchestrator.commands.printing import Answer

upkeep = typer.Typer()


def finish(answer: Answer, json_file: Path | None = None) -> NoReturn:
    """Print the answer of a command and exit with its code; with `--json -` standard output has the JSON alone."""
    from orchestrator.commands.printing import show

    raise typer.Exit(show(answer, sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout))


@upkeep.command()
def audit(name: NameArgument, results: ResultsOption = RESULTS) -> None:
    """Show what early stopping saved in a sweep, and how often it was wrong (stopping.audit).

    For example `sweep audit lr_warmup`.
    """
    from orchestrator.commands.audit import audit as command

    finish(command(sweep_folder(name, results)))


@upkeep.command()
def sync(
    name: NameArgument,
    results: ResultsOption = RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow tracking URI instead of the sweep's")] = None,
    to: Annotated[list[str] | None, typer.Option(help="a tracker instead of those of tracking.to; repeatable")] = None,
) -> None:
    """Write a sweep's missing results to its trackers: MLflow, TensorBoard, Weights & Biases.

    For example `sweep sync lr_warmup --to tensorboard`.
    """
    from orchestrator.commands.sync import sync as command

    finish(command(sweep_folder(name, results), tracking_uri, to or ()))


@upkeep.command()
def doctor(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="name or results folder of a sweep", autocompletion=sweep_names),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit with 3 on warnings too, not only on faults")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="repair what can be repaired")] = False,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Check the environment, and a sweep's ledger and files.

    For example `sweep doctor lr_warmup --strict`.
    """
    from orchestrator.commands.doctor import doctor as command

    finish(command(sweep_folder(name, results) if name else None, results, strict, fix, json_), json_)


@upkeep.command()
def gc(
    name: NameArgument,
    exports: Annotated[bool, typer.Option("--exports", help="also maps, pictures and the report")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")] = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Delete files that can be made again or are no longer needed; never a result.

    For example `sweep gc lr_warmup --dry-run`.
    """
    from orchestrator.commands.gc import gc as command

    finish(command(sweep_folder(name, results), exports, dry_run))


@upkeep.command()
def ui(
    results: ResultsOption = RESULTS,
    tracking_uri: Annotated[str | None, typer.Option(help="the MLflow store to show")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port on 127.0.0.1")] = 5000,
) -> None:
    """Serve MLflow's pages on this machine, to compare sweeps.

    For example `sweep ui --port 5001`.
    """
    from orchestrator.commands.ui import ui as command

    finish(command(results, tracking_uri, port))


@upkeep.command()
def page(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="name or results folder of a sweep")] = None,
    results: ResultsOption = RESULTS,
    port: PortOption = None,
    open_: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
) -> None:
    """Serve the page of a sweep on this machine, up to date while it trains; without NAME a list of all sweeps.

    For example `sweep page lr_warmup --open`.
    """
    from orchestrator.commands.page import page as command

    folder = sweep_folder(name, results).absolute() if name else None
    finish(command(folder.parent if folder else results, folder.name if folder else None, port, open_))
