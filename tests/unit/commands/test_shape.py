"""One module a command, all of one shape."""

from __future__ import annotations

import importlib
import inspect
import keyword
from pathlib import Path

import click
import pytest
from typer.main import get_command

import orchestrator.commands
from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.cli import app
from orchestrator.commands.printing import show

HELPERS = {"__init__", "arguments", "forking", "live", "notebook_frame", "printing", "remedy_each_cell"}


def names_of(group: click.Group, prefix: str = "") -> list[str]:
    """Every command, those of subcommands as GROUP_COMMAND."""
    found = []
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        found += names_of(command, f"{prefix}{name}_") if inner else [f"{prefix}{name}"]
    return [f"{name}_" if keyword.iskeyword(name) else name for name in found]


COMMANDS = names_of(get_command(app))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_module_with_one_public_function_that_gives_an_answer(name: str) -> None:
    module = importlib.import_module(f"orchestrator.commands.{name}")
    functions = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
    }
    assert list(functions) == [name]
    assert inspect.isgeneratorfunction(functions[name])
    assert functions[name].__annotations__["return"] == "Answer"
    assert functions[name].__doc__
    assert module.__doc__.startswith(f"`sweep {name.rstrip('_').replace('_', ' ')}`: ")


def test_nothing_else_lies_among_the_commands() -> None:
    folder = Path(orchestrator.commands.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} == {*COMMANDS, *HELPERS}


def test_an_answer_is_printed_as_it_comes_without_what_would_steer_a_terminal(capsys) -> None:
    def answer():
        yield "one\x1b[2J"
        assert capsys.readouterr().out == "one\\x1b[2J\n"
        yield "two :smile: [bold]"
        return EXIT_SOME_FAILED

    assert show(answer()) == EXIT_SOME_FAILED
    assert capsys.readouterr().out == "two :smile: [bold]\n"


def test_what_a_command_holds_is_released_when_printing_ends_early(monkeypatch) -> None:
    released = []

    def answer():
        try:
            yield "one"
            return EXIT_OK
        finally:
            released.append(True)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.print", interrupted)
    with pytest.raises(KeyboardInterrupt):
        show(answer())
    assert released == [True]
