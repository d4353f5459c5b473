"""Files of answers, and lines of commands that act."""

from pathlib import Path

import pytest

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED, InputError
from orchestrator.render.answer import output_ending
from orchestrator.render.text import show


@pytest.mark.parametrize(
    ("name", "ending"), [(None, ""), ("a.svg", "svg"), ("a.b.pdf", "pdf"), ("A.PNG", "png"), ("a.csv", "csv")]
)
def test_the_ending_of_a_file_is_its_format(tmp_path: Path, name: str | None, ending: str) -> None:
    assert output_ending(None if name is None else tmp_path / name) == ending


@pytest.mark.parametrize("name", ["a.jpg", "a", ".png"])
def test_an_ending_that_is_no_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"end it in \.txt, \.json, \.csv, .* or \.pdf"):
        output_ending(tmp_path / name)


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
