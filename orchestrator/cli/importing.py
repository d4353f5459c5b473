"""`sweep import`: results that someone else made, as a sweep."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.answers._logs import log_metrics, stopping_of
from orchestrator.base.query import conditions
from orchestrator.cli.options import RESULTS, JsonOption, ResultsOption, finish

PatternOption = Annotated[
    str | None,
    typer.Option("--pattern", metavar="REGEX", help=r"named groups: `it (?P<step>\d+) L=(?P<loss>\S+)`"),
]
LogFormatOption = Annotated[str, typer.Option("--format", help="text, json, csv or tensorboard, if auto guesses wrong")]
NormColumnOption = Annotated[
    str | None, typer.Option("--grad-norm", metavar="NAME", help="the column of gradient norms")
]


def import_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="tables (CSV, TSV, JSON lines, Parquet), folders of runs, mlflow:EXPERIMENT, or optuna:URL#STUDY",
        ),
    ],
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
        str | None,
        typer.Option(
            "--loss", metavar="COLUMN", help="losses: final ones beside words in --outcome, or of each --step"
        ),
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
    initial_loss: Annotated[
        str | None, typer.Option("--initial-loss", metavar="COLUMN|NUMBER", help="the loss before the training")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="COLUMN", help="steps, of a table with a loss in each row")
    ] = None,
    run: Annotated[
        list[str],
        typer.Option("--run", metavar="COLUMN", help="beside --step: what tells runs apart; else axes and seed"),
    ] = [],  # noqa: B006
    grad_norm: NormColumnOption = None,
    from_path: Annotated[
        str | None,
        typer.Option(
            "--from-path",
            metavar="REGEX",
            help="settings in paths of logs or names of runs: 'lr(?P<lr>[^_/]+)_'",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="NAME", help="the settings file beside each log; config.yaml and so on"),
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="NAME", help="the log of each run where it has several: metrics.csv")
    ] = None,
    pattern: PatternOption = None,
    format_: LogFormatOption = "auto",
    set_: Annotated[
        list[str], typer.Option("--set", metavar="stopping.KEY=VALUE", help="judge curves with another setting")
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

    Curves are judged by the detector, so that spikes are seen. They are read from a table with a loss in each row,
    `sweep import curves.csv --name theirs --x lr --step step --loss loss --run run_id`, or from a folder with a log and
    a settings file for each run, `sweep import runs/ --name theirs --x lr --y optimizer.beta2`, or from an experiment,
    `sweep import mlflow:theirs --name theirs --x lr`. The trials of optuna:sqlite:///theirs.db are rows of a table.
    """
    from orchestrator.api.importing import import_results
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
        initial_loss=initial_loss,
        step=step,
        run=run,
        grad_norm=grad_norm,
        from_path=from_path,
        config=config,
        log=log,
        told=log_metrics(pattern, format_, loss),
        stopping=stopping_of(set_) if set_ else None,
        validation_loss=validation_loss,
        map=map_,
        diverged_above=diverged_above,
    )
    finish(import_results(sources, name, options, results, json_, replaces=replace), json_)
