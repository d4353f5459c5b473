"""Whether two runs are the same, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from remedy_cases import LOWER, answer, forked

from orchestrator.causes.remedies.answer_text import remedies_json, remedies_lines, repeats_lines
from orchestrator.causes.remedies.repeats import Difference, Repeats, Resumed, difference

LOSSES = st.lists(st.floats(), min_size=1, max_size=20)


def curve(losses: list[float], first: int = 0) -> dict[str, np.ndarray]:
    return {"step": np.arange(first, first + len(losses)), "loss": np.array(losses)}


@given(LOSSES)
def test_a_run_repeats_itself_also_where_its_losses_are_not_finite(losses: list[float]) -> None:
    assert difference(curve(losses), curve(losses)) is None


@given(LOSSES, st.data())
def test_a_run_that_differs_at_a_step_differs_from_there_on(losses: list[float], data: st.DataObject) -> None:
    step = data.draw(st.integers(0, len(losses) - 1))
    other = [*losses[:step], 1.0 if losses[step] == 0 else 0.0, *losses[step + 1 :]]
    found = difference(curve(losses), curve(other))
    assert found is not None
    assert found.step == step
    assert not math.isnan(found.largest)


def test_only_steps_that_both_have_are_compared() -> None:
    assert difference(curve([1.0, 2.0, 3.0]), curve([2.0, 3.0, 9.0], first=1)) is None


def test_the_largest_difference_is_that_before_the_onset_where_every_difference_grows() -> None:
    first, second = curve([2.0, 2.0, 2.0, 2.0]), curve([2.0, 2.2, 2.0, 8.0])
    assert difference(first, second) == Difference(1, 3.0)
    assert difference(first, second, onset=3) == Difference(1, (2.2 - 2.0) / 2.0)
    assert difference(first, second, onset=1) == Difference(1, 0.0)


def custom(**changes):
    """The answer of a custom trainer's forks."""
    found = answer(forked(LOWER, 50, ["stable"]), **changes)
    return replace(found, trial=replace(found.trial, objective="command"))


def test_what_does_not_repeat_is_said_with_its_step_and_its_size() -> None:
    found = custom(
        control_repeats=False,
        control_difference=Difference(12, 0.031),
        repeats=Repeats((Resumed(50, None), Resumed(70, Difference(71, 0.5))), (("beta2 0.99", 50),)),
    )
    first, exact, inexact, idle = repeats_lines(found)
    assert "does NOT repeat the trial's losses: they differ from step 12 on, by up to 0.031 of the loss" in first
    assert exact.endswith("it repeats the trial bit for bit: from step 50")
    assert "resumed at step 70 and left alone, it does NOT repeat the trial: they differ from step 71 on" in inexact
    assert idle.startswith("beta2 0.99 had no effect from step 50")
    written = remedies_json(found)
    assert written["control_difference"] == {"step": 12, "largest": 0.031}
    assert written["resumed"] == [
        {"fork_step": 50, "differs": None},
        {"fork_step": 70, "differs": {"step": 71, "largest": 0.5}},
    ]
    assert written["without_effect"] == [{"name": "beta2 0.99", "fork_step": 50}]


def test_the_text_speaks_of_resuming_where_a_trainer_is_resumed_and_of_other_data_elsewhere() -> None:
    packed = answer(forked(LOWER, 50, ["diverged"]))
    assert "other data alone" in " ".join(remedies_lines(packed))
    resumed = " ".join(remedies_lines(replace(packed, trial=replace(packed.trial, objective="command"))))
    assert "being resumed alone" in resumed
    assert "other data" not in resumed
