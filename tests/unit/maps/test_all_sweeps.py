from __future__ import annotations

from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.maps.all_sweeps import EdgeRange, all_sweeps
from orchestrator.pages.report import index_html
from orchestrator.sweepfile.strict_yaml import question_of

AXES = "axes: {lr: {log: [0.01, 1], num: 3}, beta1: {values: [0.0, 0.5]}}\n"


def listed(folder: Path, unstable: dict[float, float], question: str = ""):
    """A sweep whose rows, by beta1, are unstable from these learning rates on."""
    sweep = sweep_of(AXES)
    with ledger_at(folder / "case") as ledger:
        labels = [
            "diverged" if trial.cell["lr"] >= unstable[trial.cell["beta1"]] else "stable" for trial in sweep.trials
        ]
        map_ledger(ledger, sweep, labels)
    (folder / "case" / "sweep.yaml").write_text(question + sweep.text)
    (found,) = all_sweeps(folder)
    return found


def test_the_edge_of_a_list_goes_from_the_lowest_to_the_highest_row(tmp_path: Path) -> None:
    found = listed(tmp_path, {0.0: 0.05, 0.5: 0.5})
    assert found.edge == EdgeRange("lr", pytest.approx(10**-1.5), pytest.approx(10**-0.5))
    assert found.edge.text == "lr 0.0316 .. 0.316"


def test_trials_that_learned_too_little_are_counted_apart_from_stable_ones(tmp_path: Path) -> None:
    sweep = sweep_of(AXES)
    num = len(sweep.trials)
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep, ["degraded", *["stable"] * (num - 1)])
    (found,) = all_sweeps(tmp_path)
    assert found.outcomes == {"stable": num - 1, "degraded": 1}
    assert found.stable_share == (num - 1) / num


def test_where_all_is_stable_there_is_no_edge_and_where_rows_agree_it_is_one_number(tmp_path: Path) -> None:
    assert listed(tmp_path / "a", {0.0: 9, 0.5: 9}).edge is None
    assert listed(tmp_path / "b", {0.0: 0.5, 0.5: 0.5}).edge.text == "lr 0.316"


def test_the_question_of_the_sweep_file_is_listed(tmp_path: Path) -> None:
    found = listed(tmp_path, {0.0: 0.5, 0.5: 0.5}, "# Does <momentum> move the edge?\n")
    assert found.question == "Does <momentum> move the edge?"
    assert "Does &lt;momentum&gt; move the edge?" in index_html(tmp_path)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("# How far\n# is the edge? And why?\nname: a\n", "How far is the edge?"),
        ("# No question.\n#\n# Or is it?\nname: a\n", ""),
        ("name: a\n# What?\n", ""),
        ("", ""),
    ],
)
def test_a_question_is_the_first_one_of_the_first_comment_s_first_paragraph(text: str, question: str) -> None:
    assert question_of(text) == question


def test_a_sweep_keeps_its_question_in_the_file_that_it_was_run_with() -> None:
    body = "# What moves\n# the edge?\n#\n# More.\nname: case\nobjective: quadratic\nsteps: 20\n"
    sweep = sweep_of(AXES, body)
    assert sweep.text.startswith("# What moves the edge?\nname: case\n")
    assert sweep_of("", sweep.text).text == sweep.text
    assert [t.trial_id for t in sweep.trials] == [
        t.trial_id for t in sweep_of(AXES, body.partition("More.\n")[2]).trials
    ]
