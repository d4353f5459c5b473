"""What `--help` shows of each command."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from orchestrator.cli import app

COMMAND = typer.main.get_command(app)


def commands(group: Any = COMMAND, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


@pytest.mark.parametrize(("words", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in commands()])
def test_each_command_has_an_example_of_itself_and_examples_can_be_parsed(words, command) -> None:
    examples = re.findall(r"`(sweep [^`]*)`", re.sub(r"\s+", " ", command.help))
    begin = ("sweep", *words)
    assert [example for example in examples if tuple(example.split()[: len(begin)]) == begin]
    for example in examples:
        _, *arguments = shlex.split(example)
        found = COMMAND
        while hasattr(found, "commands"):
            found = found.commands[arguments.pop(0)]
        found.make_context(example, arguments)


def shown() -> Iterator[tuple[str, Any]]:
    """Every command and every group of commands, by name."""
    todo: list[tuple[str, Any]] = [("sweep", COMMAND)]
    while todo:
        name, command = todo.pop()
        yield name, command
        todo += [(f"{name} {word}", each) for word, each in getattr(command, "commands", {}).items()]


@pytest.mark.parametrize(("name", "command"), [pytest.param(*one, id=one[0]) for one in shown()])
def test_flags_are_shown_without_a_type(name, command, capsys) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"], prog_name=name)
    text = capsys.readouterr().out
    assert "--help" in text
    assert "<bool>" not in text
    assert "BOOLEAN" not in text
