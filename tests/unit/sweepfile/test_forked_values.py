"""What a fork passes to a custom trainer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sweepfile.entries import fork_step, forked_values, is_of_fork, without_fork

OWN = {"lr": 0.003, "layers": 4, "optimizer": "adam", "clip": None, "data_seed": 7, "fused": True}


def changed(**entry: Any) -> dict[str, Any]:
    return forked_values(OWN, [{"at": 30, **entry}])


@given(st.dictionaries(st.sampled_from(sorted(OWN)), st.floats(allow_nan=False), max_size=3), st.integers(0, 10**9))
def test_without_changes_a_fork_gets_the_values_of_the_trial(values: dict[str, float], step: int) -> None:
    assert forked_values(values, [{"at": step}]) == values
    assert forked_values(values, []) == values


def test_a_change_replaces_its_value_and_no_other() -> None:
    assert changed(set={"lr": 0.5}) == {**OWN, "lr": 0.5}
    assert changed(set={"clip": 1.0}) == {**OWN, "clip": 1.0}
    assert forked_values(OWN, [{"at": 3, "set": {"lr": 0.1}}, {"at": 3, "set": {"layers": 2.0}}]) == {
        **OWN, "lr": 0.1, "layers": 2,
    }  # fmt: skip


def test_a_factor_multiplies_as_on_paper() -> None:
    assert changed(set={"lr": "x0.1"})["lr"] == 0.0003  # not 0.00030000000000000003
    assert 0.003 * 0.1 != 0.0003


def test_whole_numbers_stay_whole() -> None:
    value = changed(set={"layers": "x0.5"})["layers"]
    assert (value, type(value)) == (2, int)
    assert type(changed(set={"layers": 8.0})["layers"]) is int


def test_other_data_is_another_seed_of_the_data() -> None:
    assert [changed(data=k)["data_seed"] for k in (0, 1, 2)] == [7, 8, 9]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"set": {"rate": 1.0}},
            "rate is not a value of the trial, which has clip, data_seed, fused, layers, lr, optimizer",
        ),
        ({"set": {"optimizer": "x0.5"}}, "'adam', which cannot be multiplied"),
        ({"set": {"clip": "x0.5"}}, "None, which cannot be multiplied"),
        ({"set": {"fused": "x2"}}, "True, which cannot be multiplied"),
        ({"set": {"layers": "x0.3"}}, "the integer 4 in this trial, and would become 1.2"),
        ({"skip": 5}, "not change 'skip'"),
        ({"reset": "moments"}, "not change 'reset'"),
        ({"set": {"lr": "x0.5"}, "lasts": 20}, "not change 'lasts'"),
        ({"set": {"lr": "x0.5"}, "over": 20}, "not change 'over'"),
    ],
)
def test_what_a_trainer_that_is_resumed_cannot_do_is_refused(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        changed(**entry)


def test_a_way_back_is_refused_since_a_fork_is_resumed_once() -> None:
    with pytest.raises(ValueError, match="resumed once"):
        forked_values(OWN, [{"at": 30, "set": {"lr": "x0.5"}}, {"at": 50, "set": {"lr": "x2"}}])


def test_other_data_needs_a_seed_of_the_data() -> None:
    with pytest.raises(ValueError, match=r"needs a placeholder \{data_seed\}"):
        forked_values({"lr": 0.1}, [{"at": 30, "data": 1}])


def test_a_user_s_own_value_of_that_name_makes_no_fork() -> None:
    assert not is_of_fork({"interventions": "mine"})
    assert not is_of_fork({"lr": 0.1})
    assert is_of_fork({"interventions": []})
    assert without_fork({"lr": 0.1, "interventions": [], "checkpoints_for": [3]}) == {"lr": 0.1}
    assert (fork_step([]), fork_step([{"at": 30}])) == (0, 30)
