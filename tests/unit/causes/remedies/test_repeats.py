"""Whether two runs are the same, and what is said of it."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.causes.remedies.reading import difference
from orchestrator.causes.remedies.results import Difference

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
