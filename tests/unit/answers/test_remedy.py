"""The answer of `sweep remedy`."""

from dataclasses import replace
from pathlib import Path

import pytest
from diagnosis_cases import row_of
from remedy_cases import CLIP, LOWER, SKIP, TEN, all_cells, answer, forked, fresh, in_cell, three_cells

from orchestrator.answers.remedies import CellRow, RemediesAnswer
from orchestrator.answers.remedy import RemedyAnswer
from orchestrator.causes.remedies.cells import CellRemedies
from orchestrator.causes.remedies.remedy import Remedy
from orchestrator.causes.remedies.results import Cost, Difference, Ignored, Resumed, StableCell
from orchestrator.causes.remedies.snippets import snippet_of
from orchestrator.render.text import WIDTH

ALL, NONE = ["stable"] * 3, ["diverged"] * 3


def test_the_text_fits_eighty_columns_and_has_every_remedy_and_step() -> None:
    long = Remedy((*LOWER.entries, *SKIP.entries, *CLIP.entries))
    steps = [0, 10, 20, 30, 40, 50, 60]
    rows = [
        row for step in steps for one in (LOWER, long) for row in forked(one, step, ALL, [1.2345e-5, 1.2345e-5, 1.3e-5])
    ]
    found = answer(
        [*rows, *fresh(LOWER, 60, TEN), *forked(Remedy(), 0, ["stable", "diverged"])],
        "over_the_threshold",
        stable_cells=(StableCell("lr", 0.001, 1.0), StableCell("beta2", 0.99, None)),
        costs=(Cost("lr x0.5", 60, "stable", 1.5, 1.0, answer(rows).trial.trial_id),),
        neighbours=(answer(rows).trial,),
    )
    assert max(map(len, RemedyAnswer.of(found).lines(WIDTH))) <= WIDTH
    text = str(RemedyAnswer.of(found))
    assert all(f" {step}" in text for step in steps)
    assert "no change, other data" in text
    assert "1/2" in text
    assert "3/3 1.2e-5" in text
    assert "lr x0.5 from step 60: final loss 1.5 (+50.0%)" in text
    assert "cheapest: lr x0.5 from step 60 (40 before the onset): saved 10 of 10 with fresh data (95 %" in text


def test_the_json_has_each_remedy_and_the_cheapest() -> None:
    found = RemedyAnswer.of(answer([*forked(LOWER, 50, ALL), *forked(SKIP, 50, NONE)])).to_plain()
    assert found["control_repeats"] is True
    assert found["cheapest"] == "lr x0.5"
    assert found["remedies"][1]["outcomes"] == {"diverged": 3}
    one = found["remedies"][0]
    assert [each["snippet"] for each in found["remedies"]] == [snippet_of(LOWER, 50), snippet_of(SKIP, 50)]
    assert {name: one[name] for name in ("name", "fork_step", "tried", "saved", "final_loss")} == {
        "name": "lr x0.5",
        "fork_step": 50,
        "tried": 3,
        "saved": 3,
        "final_loss": 1.0,
    }
    nothing = RemedyAnswer.of(answer(forked(SKIP, 50, NONE)))
    assert (nothing.cheapest, nothing.snippet) == (None, None)


def test_the_named_remedy_comes_as_lines_of_torch_from_its_step() -> None:
    found = RemedyAnswer.of(answer([*forked(LOWER, 50, ALL), *forked(SKIP, 50, NONE)]))
    assert found.snippet == snippet_of(LOWER, 50)
    assert found.snippet.startswith("if step == 50:\n")
    text = str(found)
    assert "lr x0.5 in PyTorch, before `optimizer.step()`:" in text
    assert all(f"  {line}" in text for line in found.snippet.splitlines())


def test_a_trial_whose_router_collapsed_keeps_its_ending_and_its_step() -> None:
    found = answer(forked(LOWER, 20, ALL), onset=40)
    trial = row_of("stable", collapsed_step=40)
    found = replace(found, trial=trial, control=trial)
    control = RemedyAnswer.of(found).to_plain()["control"]
    assert (control["outcome"], control["onset_step"]) == ("collapsed", 40)
    cell = CellRow.of(found)
    assert (cell.outcome, cell.onset_step) == ("collapsed", 40)


def custom(**changes):
    """The answer of a custom trainer's forks."""
    found = answer(forked(LOWER, 50, ["stable"]), **changes)
    return replace(found, trial=replace(found.trial, objective="command"))


def test_what_does_not_repeat_is_said_with_its_step_and_its_size() -> None:
    found = custom(
        control_repeats=False,
        control_difference=Difference(12, 0.031),
        resumed=(Resumed(50, None), Resumed(70, Difference(71, 0.5))),
        without_effect=(Ignored("beta2 0.99", 50),),
    )
    text = str(RemedyAnswer.of(found))
    assert "does NOT repeat the trial's losses: they differ from step 12, by up to 0.031 of the loss" in text
    assert "control: 1 of 3 runs left alone had the trial's losses bit for bit: from step 50\n" in text
    assert "repeats the trial" not in text, "a coincidence shows no more than itself"
    assert "resumed: at step 70 and left alone, it does NOT repeat the trial: they differ from step 71" in text
    assert "beta2 0.99 had no effect from step 50" in text
    written = RemedyAnswer.of(found).to_plain()
    assert written["control_difference"] == {"step": 12, "largest": 0.031}
    assert written["resumed"] == [
        {"fork_step": 50, "differs": None},
        {"fork_step": 70, "differs": {"step": 71, "largest": 0.5}},
    ]
    assert written["without_effect"] == [{"name": "beta2 0.99", "fork_step": 50}]


def test_runs_of_a_custom_trainer_that_repeat_the_trial_are_counted() -> None:
    differs = Difference(51, 0.5)
    for resumed, count, starts in (
        ((), "1 of 1 run", "its seed"),
        ((Resumed(50, None), Resumed(70, None)), "3 of 3 runs", "its seed and steps 50, 70"),
        ((Resumed(50, differs),), "1 of 2 runs", "its seed"),
    ):
        text = " ".join(str(RemedyAnswer.of(custom(control_repeats=True, resumed=resumed))).split())
        assert f"control: {count} left alone had the trial's losses bit for bit: from {starts} " in text


def test_the_text_speaks_of_resuming_where_a_trainer_is_resumed_and_of_other_data_elsewhere() -> None:
    packed = answer(forked(LOWER, 50, ["stable"]))
    assert "other data alone" in str(RemedyAnswer.of(packed))
    resumed = str(RemedyAnswer.of(replace(packed, trial=replace(packed.trial, objective="command"))))
    assert "being resumed alone" in resumed
    assert "other data" not in resumed


def answer_of(results: CellRemedies) -> RemediesAnswer:
    return RemediesAnswer.of(results, None, Path("results/case"))


def test_the_answer_has_a_summary_and_a_row_for_each_cell() -> None:
    assert answer_of(three_cells()).lines() == [
        "case: 3 of 5 known cells are over the edge, 1 more unknown",
        "a remedy saves every replicate, and more than chance does, in 2 of 3 cells",
        "cells by the kind of their cheapest remedy: clip 1, skip 1",
        "cells that a kind saves: clip 1, skip 1, lr 1",
        "a lower learning rate saves 1 of 3 cells",
        "each was chosen among several, 3 in all, and is counted by replicates that chose nothing",
        "no remedy is named in 1 cell: lr=3 beta2=0",
        "in 1 of the 1 spiked cells that are saved the run ends lower if left alone",
        "the cheapest remedy of each cell: saved of fresh replicates, its fork step from the onset, and loss:",
        "cell          outcome   onset  saved  fork  loss  remedy",
        "lr=1 beta2=0  diverged    100    3/3    +0     1  clip 0.3",
        "lr=2 beta2=0  spiked      100   9/10   -10     3  skip 5",
        "lr=3 beta2=0  diverged    100   9/10   -10     1  none; at most lr x0.5",
        "steps trained after the forks: 24,310",
        "table: results/case/remedies.csv",
        "`sweep remedy case --trial ID` tries more on one trial; the table has the ids",
    ]


def test_what_named_remedies_do_to_stable_neighbours_is_counted_and_its_middle_change_of_the_loss() -> None:
    results, name = three_cells(), "clip 0.3"
    outcomes = [("stable", 1.1), ("stable", 1.3), ("spiked", None)]
    costs = tuple(Cost(name, 100, *of_one, 1.0, str(number)) for number, of_one in enumerate(outcomes))
    other = Cost("skip 5", 100, "spiked", 9.0, 1.0, "0")  # is not named there
    first = replace(results.cells[0], costs=(*costs, other))
    found = answer_of(replace(results, cells=(first, *results.cells[1:])))
    row = found.cells[0]
    assert (row.neighbours, row.neighbours_stable, row.neighbour_cost) == (3, 2, pytest.approx(0.2))
    text = "on 3 stable neighbours of these cells 2 stay stable with it, and the final loss changes by +20.0% in the"
    assert f"{text} median cell" in found.lines()


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
    assert list(table["saved"]) == [cell["saved"] for cell in plain["cells"]] == [3, 9, 9]
    assert table["saves"][0] == "clip 0.3; lr x0.5"
