"""Lines of commands that act, printed as they come."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.render.text import show


def test_lines_are_printed_as_they_come_without_what_would_steer_a_terminal(capsys) -> None:
    def lines():
        yield "one\x1b[2J"
        assert capsys.readouterr().out == "one\\x1b[2J\n"
        yield "two :smile: [bold]"
        return EXIT_SOME_FAILED

    assert show(lines()) == EXIT_SOME_FAILED
    assert capsys.readouterr().out == "two :smile: [bold]\n"


def test_what_a_command_holds_is_released_when_printing_ends_early(monkeypatch) -> None:
    released = []

    def lines():
        try:
            yield "one"
            return EXIT_OK
        finally:
            released.append(True)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.print", interrupted)
    with pytest.raises(KeyboardInterrupt):
        show(lines())
    assert released == [True]
