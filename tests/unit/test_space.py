from __future__ import annotations

from itertools import pairwise

import pytest
from sweep_cases import sweep_of

from orchestrator.space import Axis, format_value, trial_id


def ids(body: str) -> list[str]:
    return [trial.trial_id for trial in sweep_of(body).trials]


def test_the_identity_of_a_trial_is_pinned() -> None:
    # A change here makes every user's finished trials new ones: think twice, and say so in CHANGELOG.md.
    assert trial_id("quadratic", {"lr": 0.1, "clip": None}, 3, {"window": 50}) == "5dcf6cec515f4966"


def test_the_same_settings_are_the_same_trial_however_they_are_written() -> None:
    written = [
        "fixed: {lr: 1.0, clip: null}\n",
        "fixed: {lr: 1}\n",
        "fixed: {lr: 1e0}\nresources: {pack: 3}\ntracking: {every: 5}\n",
        "axes: {lr: {values: [1]}}\n",
        "axes: {lr: {values: [1.0]}, beta1: {values: [0.9]}}\n",
        "axes: {beta1: {values: [0.9]}, lr: {values: [1.0]}}\n",
    ]
    assert len({tuple(ids(body)) for body in written}) == 1


@pytest.mark.parametrize(
    "body", ["fixed: {lr: 0.2}\n", "seeds: [1]\n", "stopping: {window: 60}\n", "fixed: {clip: 9}\n"]
)
def test_whatever_can_change_a_result_makes_another_trial(body: str) -> None:
    assert ids(body) != ids("")


def test_names_are_what_a_person_would_call_them() -> None:
    trial = sweep_of("axes: {beta2: {values: [0.999]}, eps: {values: [1e-8]}, clip: {values: [null]}}\n").trials[0]
    assert trial.name == "beta2=0.999 eps=1e-8 clip=none seed=0"
    assert [format_value(value) for value in (True, "cosine", 3)] == ["true", "cosine", "3"]


@pytest.mark.parametrize(
    ("axis", "middle"),
    [
        (Axis("x", "linear", (), (0.0, 10.0)), 5.0),
        (Axis("x", "log", (), (1e-4, 1e-2)), 1e-3),
        (Axis("x", "log1m", (), (0.9, 0.999)), 0.99),
        (Axis("x", "values", ("a", "b", "c")), "b"),
        (Axis("x", "log", (), (1, 100), is_integer=True), 10),
    ],
)
def test_the_middle_of_an_axis_is_the_middle_of_its_scale(axis: Axis, middle) -> None:
    assert axis.at(0.5) == (pytest.approx(middle) if isinstance(middle, float) else middle)


def test_places_on_an_axis_are_even_where_its_values_are() -> None:
    for axis in (
        Axis("x", "log", (), (1e-6, 1.0)),
        Axis("x", "log1m", (), (0.5, 0.999)),
        Axis("x", "linear", (), (0, 1)),
    ):
        places = [axis.position(value) for value in axis.grid(5)]
        gaps = [high - low for low, high in pairwise(places)]
        assert max(gaps) == pytest.approx(min(gaps))
