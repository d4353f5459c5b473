"""Arguments and options that several commands share, each with one meaning, and the options of a question."""

from __future__ import annotations

import glob
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args, get_origin

import typer

from orchestrator.base.files import STANDARD_OUTPUT, sweep_names
from orchestrator.base.query import Option, Query

if TYPE_CHECKING:
    from orchestrator.render.text import Lines

_ENDINGS = (".yaml", ".yml")


def names_from(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the sweeps in the folder of ``--results`` that begin with ``incomplete``."""
    names = sweep_names(Path(context.params.get("results") or "results"))
    return [name for name in names if name.startswith(incomplete)]


def sweep_files(context: typer.Context, incomplete: str) -> list[str]:
    """Sweep files and folders on the way to them, and names of sweeps."""
    return [*_paths(incomplete), *names_from(context, incomplete)]


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
    str, typer.Argument(metavar="NAME", help="name or results folder of a sweep", autocompletion=names_from)
]
NamesArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="names or results folders of sweeps", autocompletion=names_from),
]
OptionalNameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="name or results folder of a sweep", autocompletion=names_from)
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


# What the command of a question takes besides its options, by what it is asked of: name, annotation and default.
_ARGUMENTS: Mapping[str, tuple[tuple[str, Any, Any], ...]] = {
    "sweep": (("name", NameArgument, inspect.Parameter.empty),),
    "sweeps": (("names", NamesArgument, inspect.Parameter.empty),),
    "logs": (("paths", PathsArgument, inspect.Parameter.empty),),
    "machine": (("name", OptionalNameArgument, None),),
    "results": (),
    "file": (
        ("file", FileArgument, inspect.Parameter.empty),
        ("axis", AxisOption, []),
        ("drop", DropOption, []),
        ("set_", SetOption, []),
        ("seeds", SeedsOption, None),
        ("steps", StepsOption, None),
        ("name", SweepNameOption, None),
        ("allow_import", AllowImportOption, False),
    ),
}
_SHARED = (("output", OutputOption, None), ("json_", JsonOption, None), ("results", ResultsOption, RESULTS))


def command_of(query_class: type[Query[Any]]) -> Callable[..., None]:
    """Return the function of a question's command, with its signature and its help."""

    def command(**values: Any) -> None:
        from orchestrator.api.asking import asked

        given = {name: values.pop(name) for name, _, _ in (*_ARGUMENTS[query_class.subject], *_SHARED)}
        raise typer.Exit(asked(query_class.from_texts(values), given))

    options, types, defaults = query_class.options(), query_class.types(), query_class.defaults()
    own = [
        (name, Annotated[kind, _parameter(name, each)], [] if kind == list[str] else defaults[name])
        for name, each in options.items()
        for kind in (_typed(types[name]),)
    ]
    arguments = _ARGUMENTS[query_class.subject]
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, annotation, default in (*arguments, *own, *_SHARED)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = query_class.__doc__
    command.__name__ = query_class.query_name()
    return command


def _parameter(name: str, option: Option) -> Any:
    """The typer parameter of a field."""
    shown: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    shown |= {"min": option.minimum, "max": option.maximum, "rich_help_panel": option.panel}
    if option.is_argument:
        return typer.Argument(**shown)
    flag = option.flag or f"--{name.rstrip('_').replace('_', '-')}"
    flags = f"{flag}/{option.opposite}" if option.opposite else flag
    return typer.Option(flags, show_default=not option.opposite, **shown)


def _typed(kind: Any) -> Any:
    """The type that the command line reads for a field of the type ``kind``: a text, unless it is simpler."""
    members = [each for each in get_args(kind) if each is not type(None)] if isinstance(kind, UnionType) else [kind]
    (inner,) = members
    origin = get_origin(inner) or inner
    if inner in (str, int, float, bool, Path):
        return kind
    if inner == tuple[str, ...] or (origin in (dict, Mapping) and not isinstance(kind, UnionType)):
        return list[str]
    return str | None
