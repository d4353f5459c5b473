"""Remedies that do nothing are not named, and remedies that do are: the rates that docs/remedies.md states."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from diagnosis_cases import row_of
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, fisher_exact

from orchestrator.base.intervals import exact_interval, fisher
from orchestrator.causes.remedies.remedy import Remedy
from orchestrator.causes.remedies.results import Remedies, Tally

PAGE = Path(__file__).parents[4] / "docs" / "remedies.md"
NUM_REMEDIES, REPLICATES, STEPS = 16, 3, (0, 100, 250, 290, 300)
NAMES = [Remedy(({"at": 0, "set": {"lr": f"x0.{k + 10}"}},)) for k in range(NUM_REMEDIES)]
PLANTED = NAMES[3]


def tally(remedy: Remedy, step: int, saved: int, tried: int) -> Tally:
    return Tally(
        remedy=remedy, fork_step=step, tried=tried, saved=saved, recovered=0, final_loss=1.0, own_loss=None,
        spent_steps=0, different=tried, own_passed=None, outcomes={}, is_fresh=False,
    )  # fmt: skip


def tried_at_random(
    rng: np.random.Generator,
    p_stable: Callable[[Remedy, int], float],
    control: str = "diverged",
    *,
    gated: bool = False,
) -> Remedies:
    """The forks of a trial whose replicates are stable with a probability of the remedy and the fork step.

    With ``gated``, remedies that fail with the trial's own data are not tried with other data, as in `sweep remedies`.
    """

    def forked(remedy: Remedy, step: int) -> Tally:
        stable = rng.random(REPLICATES if remedy.entries else REPLICATES - 1) < p_stable(remedy, step)
        kept = stable[:1] if gated and remedy.entries and not stable[0] else stable
        return tally(remedy, step, int(kept.sum()), len(kept))

    return Remedies(
        sweep="case",
        trial=row_of("diverged", 300),
        onset=300,
        cause=None,
        stable_cells=(),
        neighbours=(),
        control=row_of(control),
        tallies=tuple(forked(remedy, step) for step in STEPS for remedy in NAMES),
        unchanged=tuple(forked(Remedy(), step) for step in STEPS),
        num_tried=NUM_REMEDIES,
    )


def share_named(num: int, *arguments, **options) -> float:
    rng = np.random.default_rng(38)
    found = (tried_at_random(rng, *arguments, **options) for _ in range(num))
    return sum(bool(one.helpful) for one in found) / num


@pytest.mark.slow
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("p_stable", [0.2, 0.3, 0.5, 0.9])
def test_a_remedy_that_does_nothing_is_named_in_at_most_five_per_cent(p_stable: float, gated: bool) -> None:
    assert share_named(400, lambda remedy, step: p_stable, gated=gated) <= 0.05


@pytest.mark.slow
def test_nor_where_later_forks_are_lost_more_often() -> None:
    assert share_named(400, lambda remedy, step: 0.95 - 0.9 * step / 300) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p_alone", "p_saved", "gated", "least"),
    [
        (0.05, 0.95, False, 0.98),
        (0.2, 0.95, False, 0.85),
        (0.05, 0.7, False, 0.6),
        (0.05, 0.95, True, 0.95),
        (0.2, 0.95, True, 0.8),
    ],
)
def test_a_planted_remedy_is_found(p_alone: float, p_saved: float, gated: bool, least: float) -> None:
    rng, named = np.random.default_rng(38), []
    for _ in range(200):
        found = tried_at_random(rng, lambda remedy, step: p_saved if remedy == PLANTED else p_alone, gated=gated)
        named.append(PLANTED.name in found.helpful)
    assert np.mean(named) >= least


def test_nothing_is_named_where_the_control_is_stable() -> None:
    rng = np.random.default_rng(38)
    found = tried_at_random(rng, lambda remedy, step: 1.0 if remedy == PLANTED else 0.0, "stable")
    assert (found.helpful, found.cheapest, found.best, found.best_partial) == (frozenset(), None, None, None)
    found = tried_at_random(rng, lambda remedy, step: 1.0 if remedy == PLANTED else 0.0)
    assert found.cheapest is not None
    assert (found.cheapest.name, found.cheapest.fork_step) == (PLANTED.name, 300)
    assert found.too_late_step is found.last_helpful_step is None, "fresh replicates decide it"


def test_the_page_says_how_many_of_the_forks_with_other_data_may_end_well() -> None:
    rows = dict(re.findall(r"^\| (\d+) replicates? \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert {*rows} == {"3", "5", "10"}
    for replicates, cells in rows.items():
        said = cells.split(" | ")
        assert said == [most_that_may_end_well(num_steps, int(replicates)) for num_steps in (1, 2, 3, 5)]


def most_that_may_end_well(num_steps: int, replicates: int) -> str:
    """Of the forks with other data, if a remedy that saves all is to be named of 17; the control is lost."""
    others = num_steps * (replicates - 1) + 1
    for most in reversed(range(others)):
        saved = [min(replicates - 1, max(0, most - step * (replicates - 1))) for step in range(num_steps)]
        found = replace(
            tried_at_random(np.random.default_rng(0), lambda remedy, step: 0.0),
            tallies=tuple(tally(PLANTED, step, replicates, replicates) for step in range(num_steps)),
            unchanged=tuple(tally(Remedy(), step, saved[step], replicates - 1) for step in range(num_steps)),
            num_tried=17,
        )
        if found.helpful:
            return f"{most} of {others}"
    return "never"


@given(*(st.integers(0, 20) for _ in range(4)))
def test_the_exact_test_and_interval_are_those_of_scipy(hits: int, misses: int, other: int, other_misses: int) -> None:
    num, other_num = hits + misses, other + other_misses
    expected = fisher_exact([[hits, misses], [other, other_misses]], "greater").pvalue
    assert fisher(hits, num, other, other_num) == pytest.approx(expected)
    if num:
        assert exact_interval(hits, num) == pytest.approx(tuple(binomtest(hits, num).proportion_ci()))
