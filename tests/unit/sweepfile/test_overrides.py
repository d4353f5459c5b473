from pathlib import Path

import pytest
from sweep_cases import sweep_of

from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.driver.planning import refining_sweep
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.overrides import Overrides, parse_set, refined
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import Document, parse_document

BODY = """
name: coarse
objective: quadratic
steps: 40
seeds: [0, 1]
axes:
  lr: {log: [0.1, 30.0], num: 5}
  beta1: {linear: [0.0, 0.6], num: 3}
fixed: {optimizer: sgd}
resources: {pack: 8}
tracking: {enabled: false}
"""


def refined_document(body: str, along: str | None = None) -> Document:
    return refined(parse_document(body, "coarse.yaml"), along, 30, 40, 1.3)


def refined_data(body: str, along: str | None = None) -> dict:
    return refined_document(body, along).data


def refine(folder: Path, num_more: int, factor: float = 1.01, *sets: str, name: str | None = None) -> Sweep:
    return refining_sweep(folder, None, num_more, factor, Overrides(sets=sets, name=name), False)


def test_a_refined_file_keeps_comment_and_axes_and_its_numbers_become_ranges() -> None:
    comment = "# What moves the edge? Two lines,\n# and no more.\n"
    body = comment + BODY.lstrip().replace("{linear: [0.0, 0.6], num: 3}", "{values: [0.9, 0.99, 0.9999]}")
    listed = "  eps: {log: [1.0e-8, 1.0], num: 1}\n  clip: {values: [0.1, 1.0, null]}\n"
    body = body.replace("fixed: {optimizer: sgd}", listed + "fixed: {optimizer: adamw}")
    document = refined_document(body)
    assert document.data["axes"] == parse_document(body, "").data["axes"]
    search = {"method": "edge", "along": "lr", "trials": 70, "precision": 1.3, "refines": 30}
    assert document.data["search"] == search
    sweep = build_sweep(document)
    assert sweep.text.startswith(comment + "name: coarse\n")
    assert build_sweep(parse_document(sweep.text, "sweep.yaml")).text == sweep.text
    found = [(axis.scale, axis.ends, axis.values, len(axis.refined)) for axis in sweep.axes]
    assert found == [
        ("log", (0.1, 30.0), (), 5),
        ("log1m", (0.9, 0.9999), (), 3),
        ("values", None, (1e-8,), 0),
        ("values", None, (0.1, 1.0, None), 0),
    ]


def test_seeds_that_were_added_are_all_at_hand_and_a_sample_goes() -> None:
    body = BODY.replace("seeds: [0, 1]", "seeds: {start: 1, up_to: 4, where: disagreement}")
    assert refined_data(body)["seeds"] == [0, 1, 2, 3]
    assert "sample" not in refined_data(BODY + "sample: {method: random, num: 5}\n")


def test_a_search_for_the_edge_keeps_its_other_settings() -> None:
    body = BODY.replace(", num: 5", "").replace(", num: 3", "")
    body += "search: {method: edge, along: beta1, trials: 9, seed: 7, level: 0.9}\n"
    search = refined_data(body)["search"]
    own = {"method": "edge", "along": "beta1", "seed": 7, "level": 0.9}
    assert search == {**own, "trials": 70, "precision": 1.3, "refines": 30}


@pytest.mark.parametrize(
    ("body", "along", "message"),
    [
        (BODY, "beta2", "'beta2' is not an axis of numbers"),
        (BODY.replace("{log: [0.1, 30.0], num: 5}", "{values: [0.1]}"), "lr", "'lr' is not an axis of numbers"),
        (BODY.replace("num: 5", "num: 1"), "lr", "'lr' is not an axis of numbers"),
        ("name: a\nobjective: quadratic\nsteps: 5\n", None, "no axis has at least two numbers"),
    ],
)
def test_without_an_axis_of_numbers_there_is_no_edge_to_look_for(body: str, along: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        refined_data(body, along)


def test_a_refined_grid_keeps_its_trials_and_adds_as_many_as_it_may(train, rows, tmp_path) -> None:
    train(sweep_of("", BODY))
    before = {row.trial_id for row in rows("coarse")}
    assert len(before) == 30
    assert train(refine(tmp_path / "coarse", 12)).trained == 12
    assert before < {row.trial_id for row in rows("coarse")}
    assert len(rows("coarse")) == 42
    assert train(refine(tmp_path / "coarse", 1)).trained == 1, "a refinement that has ended is followed by another"
    train(sweep_of("", BODY))
    assert {row.trial_id for row in rows("coarse")} == before, "the grid is a grid again"
    with LedgerReader(tmp_path / "coarse" / LEDGER) as ledger:
        assert len(ledger.trials(removed=True)) == 43


def test_an_interrupted_refinement_goes_on_with_what_is_left_of_it(train, rows, tmp_path) -> None:
    train(sweep_of("", BODY))
    assert train(refine(tmp_path / "coarse", 20, 1.01, "budget.trials=44")).trained == 14
    with pytest.raises(InputError, match="trials of the sweep have no result yet"):
        refine(tmp_path / "coarse", 1)
    assert train(refine(tmp_path / "coarse", 20, 1.01, "budget.trials=null")).trained == 6
    assert len(rows("coarse")) == 50


@pytest.mark.slow
def test_another_refinement_than_the_interrupted_one_is_as_large_as_it_says(train, rows, tmp_path) -> None:
    train(sweep_of("", BODY))
    train(refine(tmp_path / "coarse", 20, 1.01, "budget.trials=44"))
    assert train(refine(tmp_path / "coarse", 10, 1.01, "budget.trials=null")).trained == 10
    assert len(rows("coarse")) == 54


def test_refining_ends_before_its_budget_when_the_edges_are_precise_enough(train, tmp_path) -> None:
    train(sweep_of("", BODY))
    assert train(refine(tmp_path / "coarse", 100, 100.0)).trained < 100
    assert train(refine(tmp_path / "coarse", 100, 100.0)).trained == 0


def test_trials_of_a_grid_that_wait_are_among_those_that_may_be_trained(train, rows, tmp_path) -> None:
    train(build_sweep(parse_document(BODY, "coarse.yaml"), Overrides(sets=("budget.trials=20",))))
    with pytest.raises(InputError, match="10 trials of the sweep have no result yet"):
        refine(tmp_path / "coarse", 9)
    assert train(refine(tmp_path / "coarse", 12, 1.01, "budget.trials=null")).trained == 12
    assert len(rows("coarse")) == 32


def test_trials_at_a_time_are_a_part_of_the_refinement_not_of_the_grid(train, tmp_path) -> None:
    train(sweep_of("", BODY))
    assert refine(tmp_path / "coarse", 40).max_concurrent == 8
    assert refine(tmp_path / "coarse", 160).max_concurrent == 20


def test_how_many_edges_rows_have_is_judged_by_the_whole_grid(train, tmp_path) -> None:
    train(sweep_of("", BODY))
    assert refine(tmp_path / "coarse", 40).num_initial == 15


def test_a_renamed_folder_is_refined_by_its_own_name_alone(train, rows, tmp_path) -> None:
    train(sweep_of("", BODY))
    (tmp_path / "coarse").rename(tmp_path / "fine")
    with pytest.raises(InputError, match=r"(?s)name: the sweep in it is called coarse.*say --name fine"):
        refine(tmp_path / "fine", 12)
    with pytest.raises(InputError, match="the sweep in it is called other"):
        refine(tmp_path / "fine", 12, name="other")
    assert train(refine(tmp_path / "fine", 12, name="fine")).trained == 12
    assert len(rows("fine")) == 42


def test_results_of_other_settings_are_no_beginning(train, tmp_path) -> None:
    train(sweep_of("", BODY))
    with pytest.raises(InputError, match="has no trial to begin with"):
        refine(tmp_path / "coarse", 12, 1.1, "steps=41")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\n\n"', "\n\n"),
        (r"\n\n", r"\n\n"),  # which the field itself reads as line breaks
        ("'it''s'", "it's"),
        ('"0.1"', "0.1"),
        ('"python" "t.py"', '"python" "t.py"'),  # a command, not one word in quotes
    ],
)
def test_a_value_in_quotes_is_the_text_in_them(text: str, value: str) -> None:
    assert parse_set(f"fixed.separator={text}") == (("fixed", "separator"), value)
