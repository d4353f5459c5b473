"""Remedies have short names, and interventions give back the fork that they were made from."""

from __future__ import annotations

import pytest
from remedy_cases import CLIP, LOWER, SKIP

from orchestrator.causes.remedies.remedy import BATCH, NO_CHANGE, Fork, Remedy, fork_of

FOR_A_TIME = Remedy(({"at": 0, "set": {"lr": "x0.25"}}, {"at": 50, "set": {"lr": "x4"}, "over": 20}))
NAMES = {
    NO_CHANGE: Remedy(),
    "lr x0.5": LOWER,
    "skip 5": SKIP,
    "clip 0.3": CLIP,
    "clip none": Remedy(({"at": 0, "set": {"clip": None}},)),
    "eps x0.0001": Remedy(({"at": 0, "set": {"eps": "x1e-4"}},)),
    "eps 1e-6": Remedy(({"at": 0, "set": {"eps": 1e-6}},)),
    "lr x0.25 for 50": Remedy(({"at": 0, "set": {"lr": "x0.25"}, "lasts": 50},)),
    "lr x0.25 for 50, back over 20": FOR_A_TIME,
    "reset second moment": Remedy(({"at": 0, "reset": "second_moment"},)),
    "second moment x4": Remedy(({"at": 0, "rescale": 4.0},)),
    "lr x0.5 + skip 5": Remedy((*LOWER.entries, *SKIP.entries)),
}
OWN = [{"at": 30, "set": {"lr": "x0.5"}}, {"at": 120, "skip": 1}]


@pytest.mark.parametrize("name", NAMES)
def test_a_remedy_is_named_by_what_it_changes(name: str) -> None:
    assert NAMES[name].name == name


@pytest.mark.parametrize("remedy", NAMES.values(), ids=NAMES.keys())
@pytest.mark.parametrize("replicate", [0, 2])
@pytest.mark.parametrize("own", [[], OWN], ids=["alone", "beside its own"])
def test_interventions_give_back_the_fork_that_made_them(remedy: Remedy, replicate: int, own: list) -> None:
    fork = Fork(remedy, 30, replicate)
    found = fork_of(fork.interventions(own), own)
    assert found == (fork if remedy.entries or replicate else None)


def test_a_fork_keeps_the_trials_own_interventions_even_those_that_it_repeats() -> None:
    made = Fork(LOWER, 30, 0).interventions(OWN)
    assert made == [*OWN, {"at": 30, "set": {"lr": "x0.5"}}]
    assert fork_of(made, OWN) == Fork(LOWER, 30, 0)


def test_replicates_differ_from_the_fork_on_and_in_data_alone() -> None:
    zero, two = (Fork(FOR_A_TIME, 30, k).interventions() for k in (0, 2))
    assert two == [{**zero[0], "data": 2}, zero[1]]
    assert Fork(Remedy(), 30, 2).interventions() == [{"at": 30, "data": 2}]


def test_two_remedies_go_together_unless_they_change_the_same() -> None:
    pair = LOWER.combined_with(SKIP)
    assert pair is not None
    assert pair.name == "lr x0.5 + skip 5"
    assert LOWER.combined_with(FOR_A_TIME) is None


def test_a_remedy_amounts_to_moves_of_advice() -> None:
    config = {"lr": 0.01, "clip": None, "eps": 1e-8, "beta2": 0.99}
    assert LOWER.moves(config) == {("lr", "lower"), ("warmup", "raise")}
    assert FOR_A_TIME.moves(config) == {("lr", "lower"), ("warmup", "raise")}, "it returns, which raises nothing"
    assert SKIP.moves(config) == {(BATCH, "lower")}
    assert CLIP.moves(config) == {("clip", "lower")}, "no clipping is above all thresholds"
    assert Remedy(({"at": 0, "set": {"eps": 1e-6}},)).moves(config) == {("eps", "raise")}
    assert Remedy(({"at": 0, "set": {"beta2": 0.99}},)).moves(config) == set(), "it is 0.99 already"
