"""`sweep import`: results that someone else made, as a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import RESULTS, JsonOption, ResultsOption, finish

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
        where=where,
        map=map_,
        set=set_,
        outcome=outcome,
        loss=loss,
        seed=seed,
        diverged_above=diverged_above,
        step=step,
        run=run,
        from_path=from_path,
    )
    finish(import_results(sources, name, options, results, json_, replaces=replace), json_)
