"""Arguments and options that several commands share, each with one meaning everywhere."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.base.files import LEDGER, STANDARD_OUTPUT

if TYPE_CHECKING:
    from orchestrator.render.text import Lines

_ENDINGS = (".yaml", ".yml")


def sweep_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the sweeps that have a ledger in the folder of ``--results``."""
    results = Path(context.params.get("results") or "results")
    names = sorted(path.parent.name for path in results.glob(f"*/{LEDGER}"))
    return [name for name in names if name.startswith(incomplete)]


def sweep_files(context: typer.Context, incomplete: str) -> list[str]:
    """Sweep files and folders on the way to them, and names of sweeps."""
    return [*_paths(incomplete), *sweep_names(context, incomplete)]


def _paths(incomplete: str) -> Iterator[str]:
    for name in sorted(glob.glob(f"{glob.escape(incomplete)}*")):
        if name.endswith(_ENDINGS):
            yield name
        elif Path(name).is_dir():
            yield f"{name}/"


RESULTS = Path("results")

FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="sweep file, name or folder of a sweep, or name of a sweep that ships",
        autocompletion=sweep_files,
    ),
]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="name or results folder of a sweep", autocompletion=sweep_names)
]
NamesArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="names or results folders of sweeps", autocompletion=sweep_names),
]
OptionalNameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="name or results folder of a sweep", autocompletion=sweep_names)
]
PathsArgument = Annotated[
    list[str], typer.Argument(metavar="PATH...", help="logs, folders of logs, mlflow:RUN_ID, or finished sweeps")
]
ResultsOption = Annotated[Path, typer.Option("--results", metavar="DIR", help="where results folders are")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FILE", help="write the answer to a file: .txt, .json, .csv, .html, .png, .svg or .pdf"
    ),
]
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="also write the whole answer as JSON; - for standard output"),
]
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
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="set any key of the sweep file: fixed.batch_size=16")
]
SeedsOption = Annotated[str | None, typer.Option("--seeds", metavar="N,N,...", help="the seeds, e.g. 0,1,2")]
StepsOption = Annotated[int | None, typer.Option("--steps", help="length of each training run")]
SweepNameOption = Annotated[str | None, typer.Option("--name", help="name of the sweep")]
AllowImportOption = Annotated[
    bool, typer.Option("--allow-import", help="import the Python code that the sweep file names")
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help="port of the page on 127.0.0.1; a free one by default"),
]


def finish(lines: Lines, json_file: Path | None = None) -> NoReturn:
    """Print the lines of a command that acts as they come, and exit with its code.

    With `--json -` standard output has the JSON alone, and the lines go to standard error.
    """
    from orchestrator.render.text import show

    raise typer.Exit(show(lines, sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout))
