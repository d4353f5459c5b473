"""`sweep import`: results that someone else made, as a sweep."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import RESULTS, JsonOption, ResultsOption
from orchestrator.cli.upkeep import finish
from orchestrator.commands.arguments import conditions

importing = typer.Typer()


@importing.command("import")
def import_(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="tables: CSV, TSV, JSON lines or Parquet")],
    name: Annotated[str, typer.Option("--name", help="name of the sweep that is made: results/NAME/")],
    x: Annotated[str, typer.Option("--x", metavar="[AXIS=]COLUMN", help="the first axis, e.g. lr=learning_rate")],
    y: Annotated[str | None, typer.Option("--y", metavar="[AXIS=]COLUMN", help="the second axis")] = None,
    axis: Annotated[list[str], typer.Option("--axis", metavar="[AXIS=]COLUMN", help="a further axis; repeatable")] = [],  # noqa: B006
    scale: Annotated[
        list[str],
        typer.Option("--scale", metavar="AXIS=SCALE", help="log, linear, log1m or values; found from the values"),
    ] = [],  # noqa: B006
    outcome: Annotated[
        str | None,
        typer.Option("--outcome", metavar="COLUMN", help="words (stable, diverged, ...) or final losses"),
    ] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", metavar="COLUMN", help="final losses, beside words in --outcome")
    ] = None,
    validation_loss: Annotated[
        str | None, typer.Option("--validation-loss", metavar="COLUMN", help="final losses on held-out data")
    ] = None,
    map_: Annotated[
        list[str],
        typer.Option("--map", metavar="OUTCOME=WORD,...", help="what words mean: diverged=nan,crashed; skip=OOM"),
    ] = [],  # noqa: B006
    diverged_above: Annotated[
        float | None, typer.Option("--diverged-above", metavar="LOSS", help="a final loss above this has diverged")
    ] = None,
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="COLUMN", help="seeds; else the rows of a cell are numbered")
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="COLUMN|NUMBER", help="length of the runs, if it is known")
    ] = None,
    where: Annotated[
        list[str], typer.Option("--where", metavar="COLUMN=VALUE", help="only rows with this value; repeatable")
    ] = [],  # noqa: B006
    scattered: Annotated[
        bool | None,
        typer.Option("--scattered/--grid", help="whether cells fill a grid; found from the cells", show_default=False),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="put these in the place of other imported results of this name")
    ] = False,
    json_: JsonOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Make a sweep of results that someone else trained: its map, edge, picture and report, marked as imported.

    For example `sweep import table.csv --name theirs --x lr --y warmup --outcome final_loss --diverged-above 7`, then
    `sweep boundary theirs`. Each row is a run; rows with equal axes are seeds of one cell. A final loss that is not
    finite is diverged; other words are not guessed: `--outcome status --map diverged=nan,crashed --map skip=OOM`.
    """
    from orchestrator.commands.import_ import import_ as command
    from orchestrator.importing.options import ImportOptions

    options = ImportOptions(
        x=x,
        y=y,
        axis=axis,
        scale=scale,
        scattered=scattered,
        seed=seed,
        steps=steps,
        where=conditions(where),
        outcome=outcome,
        loss=loss,
        validation_loss=validation_loss,
        map=map_,
        diverged_above=diverged_above,
    )
    finish(command(sources, name, options, results, json_, replaces=replace))
