"""The answer of `sweep remedies`."""

from __future__ import annotations

from pathlib import Path

from remedy_cases import all_cells, answer, in_cell, three_cells

from orchestrator.answers.remedies import RemediesAnswer
from orchestrator.causes.remedies.results import CellRemedies


def answer_of(results: CellRemedies) -> RemediesAnswer:
    return RemediesAnswer.of(results, None, Path("results/case"))


def test_the_answer_has_a_summary_and_a_row_for_each_cell() -> None:
    assert answer_of(three_cells()).lines() == [
        "case: 3 of 5 known cells are not stable, 1 more unknown",
        "a remedy saves every replicate in 2 of 3 cells",
        "cells by the kind of their cheapest remedy: clip 1, skip 1",
        "cells that a kind saves from the same step: clip 1, skip 1, lr 1",
        "a lower learning rate saves 1 of 3 cells from the step of their cheapest remedy",
        "nothing saves 1 cell: lr=3 beta2=0",
        "in 1 of the 1 spiked cells that are saved the run ends lower if left alone",
        "the cheapest remedy of each cell: saved replicates, its fork step from the onset, and final loss:",
        "cell          outcome   onset  saved  fork  loss  remedy",
        "lr=1 beta2=0  diverged    100    3/3    +0     1  clip 0.3",
        "lr=2 beta2=0  spiked      100    3/3   -10     3  skip 5",
        "lr=3 beta2=0  diverged    100    1/3   -10     -  none; at most lr x0.5",
        "steps trained after the forks: 6,420",
        "table: results/case/remedies.csv",
        "`sweep remedy case --trial ID` tries more on one trial; the table has the ids",
    ]


def test_a_cell_without_a_fork_is_not_called_lost() -> None:
    line = next(line for line in answer_of(all_cells([in_cell(answer([]), 1)])).lines() if line.startswith("lr=1"))
    assert line.endswith("-     -     -  not tried: no such step or remedy in this run")


def test_json_and_table_have_the_same_rows() -> None:
    remedies = answer_of(three_cells())
    plain, table = remedies.to_plain(), remedies.frame()
    assert [cell["cheapest"] for cell in plain["cells"]] == ["clip 0.3", "skip 5", None]
    assert [cell["most"] for cell in plain["cells"]] == [None, None, "lr x0.5"]
    assert plain["cells"][0]["saves"] == ["clip 0.3", "lr x0.5"]
    assert plain["num_saved"] == 2
    assert plain["by_remedy"]["clip"] == {"cheapest": 1, "saves": 1}
    assert list(table["lr"]) == [1, 2, 3]
    assert list(table["saved"]) == [cell["saved"] for cell in plain["cells"]] == [3, 3, 1]
    assert table["saves"][0] == "clip 0.3; lr x0.5"
