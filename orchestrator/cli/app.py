"""The command line: the commands that act, and one for each question, in panels with the most used ones first."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from orchestrator import answers
from orchestrator.base import __version__
from orchestrator.base.environment import missing_library_error
from orchestrator.base.errors import EXIT_INTERRUPTED, SweepError

# The panels of `sweep --help` with the order of their commands. A question that is not named here comes last.
PANELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "train": ("Train", ("init", "plan", "check", "run")),
    "look": ("Look at results", ("status", "list", "page", "report", "compare", "map", "data", "ui")),
    "choose": ("Choose a setting", ("boundary", "recommend", "locate", "front", "edge", "sensitivity", "importance")),
    "explain": ("Explain and save lost runs", ("explain", "diagnose", "remedy", "remedies", "warn", "survival")),
    "upkeep": (
        "Logs and upkeep",
        ("replay", "watch", "import", "export", "objectives", "audit", "doctor", "sync", "gc", "mcp"),
    ),
}
# The commands that act: the module that has the function of this name, and the panel.
ACTIONS: Mapping[str, tuple[str, str]] = {
    "init": ("orchestrator.cli.training", "train"),
    "watch": ("orchestrator.cli.training", "upkeep"),
    "run": ("orchestrator.cli.training", "train"),
    "page": ("orchestrator.cli.upkeep", "look"),
    "report": ("orchestrator.cli.upkeep", "look"),
    "ui": ("orchestrator.cli.upkeep", "look"),
    "import": ("orchestrator.cli.upkeep", "upkeep"),
    "export": ("orchestrator.cli.upkeep", "upkeep"),
    "objectives": ("orchestrator.cli.training", "upkeep"),
    "sync": ("orchestrator.cli.upkeep", "upkeep"),
    "gc": ("orchestrator.cli.upkeep", "upkeep"),
    "mcp": ("orchestrator.cli.upkeep", "upkeep"),
}


class Commands(Mapping[str, Any]):
    """The commands by name. The module of each is imported when it is asked for, so that each starts at once."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        known = [name for _, names in PANELS.values() for name in names]
        there = {*ACTIONS, *answers.names()}
        return iter([*(name for name in known if name in there), *sorted(there - {*known})])

    def __len__(self) -> int:
        return len({*ACTIONS, *answers.names()})

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _action(name) if name in ACTIONS else _question(name)
        return self._built[name]


def _question(name: str) -> Any:
    from orchestrator.cli.options import command_of

    if name not in answers.names():
        raise KeyError(name)
    query_class = answers.query_class(name)
    return single_command(name, command_of(query_class), PANELS[query_class.panel][0])


def _action(name: str) -> Any:
    module, panel = ACTIONS[name]
    function = getattr(importlib.import_module(module), f"{name}_command")
    if isinstance(function, typer.Typer):
        group = get_command(function)
        group.name, group.rich_help_panel = name, PANELS[panel][0]  # type: ignore[attr-defined]
        return group
    return single_command(name, function, PANELS[panel][0])


def single_command(name: str, function: Callable[..., None], panel: str | None = None) -> Any:
    """Return the command ``name`` that calls ``function``, whose annotations and docstring are its options and help."""
    one = typer.Typer(rich_markup_mode="markdown", add_completion=False, pretty_exceptions_enable=False)
    one.command(name, cls=PlainCommand, rich_help_panel=panel)(function)
    return get_command(one)


class _PlainFlags:
    """Show flags without a value, where Typer shows <bool>."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with the option for help."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return params


class PlainCommand(_PlainFlags, TyperCommand):
    """A command."""


class PlainGroup(_PlainFlags, TyperGroup):
    """A group of commands."""


class SweepGroup(PlainGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": {}})
        self.commands = Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, panel by panel."""
        return list(self.commands)


app = typer.Typer(
    cls=SweepGroup,
    help="Where in hyperparameter space is training stable, how far is the edge, and what moves it?",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all trials finished, 2 bad input, 3 some errored, 4 storage or Ray failed, "
    "5 --exit-on or --fail-on, 130 Ctrl-C.",
)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="show the version and exit")] = False,
) -> None:
    if version:
        typer.echo(f"sweep {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line, and end with its exit code."""
    try:
        app(prog_name="sweep")
    except SweepError as error:
        _end_with(error)
    except ModuleNotFoundError as error:
        if (told := missing_library_error(error)) is None:
            raise
        _end_with(told)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _end_with(error: SweepError) -> None:
    from orchestrator.render.text import print_text

    print_text(f"error: {error}", sys.stderr)
    sys.exit(error.exit_code)
