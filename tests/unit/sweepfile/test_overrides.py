from __future__ import annotations

import pytest
from sweep_cases import sweep_of

from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.driver.planning import refining_sweep
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.overrides import Overrides, refined
from orchestrator.sweepfile.strict_yaml import parse_document

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


def refined_data(body: str, along: str | None = None) -> dict:
    return refined(parse_document(body, "coarse.yaml"), along, 40, 1.3).data


def test_ranges_lose_their_numbers_and_lists_become_ranges_on_the_scale_that_they_suggest() -> None:
    body = BODY.replace("{linear: [0.0, 0.6], num: 3}", "{values: [0.9, 0.99, 0.9999]}")
    body = body.replace("fixed:", "  clip: {values: [0.1, 1.0, null]}\n  optimizer: {values: [sgd, adamw]}\nfixed:")
    data = refined_data(body)
    assert data["axes"] == {
        "lr": {"log": [0.1, 30.0]},
        "beta1": {"log1m": [0.9, 0.9999]},
        "clip": {"values": [0.1, 1.0, None]},
        "optimizer": {"values": ["sgd", "adamw"]},
    }
    assert data["search"] == {"method": "edge", "along": "lr", "trials": 40, "precision": 1.3}


def test_seeds_that_were_added_are_all_at_hand_and_a_sample_goes() -> None:
    body = BODY.replace("seeds: [0, 1]", "seeds: {start: 1, up_to: 4, where: disagreement}")
    assert refined_data(body)["seeds"] == [0, 1, 2, 3]
    assert "sample" not in refined_data(BODY + "sample: {method: random, num: 5}\n")


def test_a_search_for_the_edge_keeps_its_other_settings() -> None:
    body = BODY.replace(", num: 5", "").replace(", num: 3", "")
    body += "search: {method: edge, along: beta1, trials: 9, seed: 7, level: 0.9}\n"
    search = refined_data(body)["search"]
    assert search == {"method": "edge", "along": "beta1", "trials": 40, "precision": 1.3, "seed": 7, "level": 0.9}


@pytest.mark.parametrize(
    ("body", "along", "message"),
    [
        (BODY, "beta2", "'beta2' is not an axis of numbers"),
        (BODY.replace("{log: [0.1, 30.0], num: 5}", "{values: [0.1]}"), "lr", "'lr' is not an axis of numbers"),
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
    sweep = refining_sweep(tmp_path / "coarse", None, 12, 1.01, Overrides(), False)
    assert train(sweep).trained == 12
    assert before < {row.trial_id for row in rows("coarse")}
    assert len(rows("coarse")) == 42
    train(sweep_of("", BODY))
    assert {row.trial_id for row in rows("coarse")} == before, "the grid is a grid again"
    with LedgerReader(tmp_path / "coarse" / LEDGER) as ledger:
        assert len(ledger.trials(removed=True)) == 42


def test_refining_ends_before_its_budget_when_the_edges_are_precise_enough(train, tmp_path) -> None:
    train(sweep_of("", BODY))
    sweep = refining_sweep(tmp_path / "coarse", None, 100, 100.0, Overrides(), False)
    assert train(sweep).trained < 100
    again = refining_sweep(tmp_path / "coarse", None, 100, 100.0, Overrides(), False)
    assert train(again).trained == 0


def test_results_of_other_settings_are_no_beginning(train, tmp_path) -> None:
    train(sweep_of("", BODY))
    with pytest.raises(InputError, match="has no trial to begin with"):
        refining_sweep(tmp_path / "coarse", None, 12, 1.1, Overrides(sets=("steps=41",)), False)
