"""Text on a terminal of 80 columns."""

import io
import itertools

import pytest
from sweep_cases import trial_row

from orchestrator.api.sweep_files import objectives
from orchestrator.base.errors import InputError, Problem
from orchestrator.cli.app import _end_with
from orchestrator.render.blocks import Table
from orchestrator.render.text import print_text, show, table_lines
from orchestrator.render.text_map import text_map
from orchestrator.sweepfile.starter import objectives_with_rows

ADDRESS = "http://127.0.0.1:5000/" + "x" * 90


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_the_table_of_fields_has_whole_words_on_a_terminal(terminal: Terminal) -> None:
    assert show(objectives(), terminal) == 0
    assert max(map(len, terminal.getvalue().splitlines())) <= 80
    texts = [
        text for objective, rows in objectives_with_rows() for text in (objective.summary, *itertools.chain(*rows))
    ]
    assert set(" ".join(texts).split()) <= set(terminal.getvalue().split())


def test_lines_and_errors_break_between_words_and_addresses_stay_whole(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ", ".join(f"{i / 7:.4f}" for i in range(40))
    print_text(f"  axis: {values}", terminal)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert terminal.getvalue().split() == ["axis:", *values.split()]
    assert {line[:4] for line in lines[1:]} == {"    "}
    print_text(f"page at {ADDRESS}", terminal)
    assert terminal.getvalue().splitlines()[-1].strip() == ADDRESS
    monkeypatch.setattr("sys.stderr", terminal)
    with pytest.raises(SystemExit):
        _end_with(InputError(Problem("a.yaml:6", "key", "unknown key", f"known keys: {values}")))
    assert max(len(line) for line in terminal.getvalue().splitlines() if ADDRESS not in line) <= 80
    assert values.split()[-1] in terminal.getvalue().split()


def test_a_column_is_narrowed_to_its_longest_word_before_a_word_is_cut() -> None:
    row = ("effective_second_moment_half_life", "some words that go on and on " * 3, "0.00012345, 0.00023456")
    lines = list(table_lines(Table((), (row,)), 80))
    assert max(map(len, lines)) <= 80
    assert set(" ".join(row).split()) <= set(" ".join(lines).split())
    assert max(map(len, table_lines(Table((), (("w" * 60, "v" * 60),)), 80))) <= 80, "a word is cut if it must"


def test_what_is_written_below_a_map_breaks_between_words() -> None:
    axis = "learning_rate_of_the_head"
    outcomes = ["stable", "diverged", "spiked", "pruned"]
    rows = [trial_row(cell={axis: f"a long name with the number {outcome}"}, outcome=outcome) for outcome in outcomes]
    rows += [trial_row(cell={axis: f"a long name with the number {i}"}, status="errored") for i in range(3)]
    drawing = text_map(rows)
    assert max(map(len, drawing.plain.splitlines())) <= 80
