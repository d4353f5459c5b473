"""Remedies that do nothing are not named, and remedies that do are: the rates that docs/remedies.md states."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from diagnosis_cases import row_of
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, fisher_exact, norm

from orchestrator.base.intervals import exact_interval, fisher
from orchestrator.causes.remedies.remedy import Remedy
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.causes.remedies.results import Remedies
from orchestrator.causes.remedies.tally import Tally
from orchestrator.causes.remedies.training import fresh_forks

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
    shared: float = 0.0,
) -> Remedies:
    """The forks of a trial whose replicates are stable with a probability of the remedy and the fork step.

    With ``gated``, remedies that fail with the trial's own data are not tried with other data, as in `sweep remedies`.
    A replicate of a remedy has a part of its luck that all its fork steps have: ``shared`` of the variance.
    """

    def forked(remedy: Remedy) -> Iterator[Tally]:
        num = REPLICATES if remedy.entries else REPLICATES - 1
        luck = rng.standard_normal(num)
        for step in STEPS:
            fate = math.sqrt(shared) * luck + math.sqrt(1 - shared) * rng.standard_normal(num)
            stable = norm.cdf(fate) < p_stable(remedy, step)
            kept = stable[:1] if gated and remedy.entries and not stable[0] else stable
            yield tally(remedy, step, int(kept.sum()), len(kept))

    return Remedies(
        sweep="case",
        trial=row_of("diverged", 300),
        onset=300,
        cause=None,
        stable_cells=(),
        neighbours=(),
        control=row_of(control),
        tallies=tuple(each for remedy in NAMES for each in forked(remedy)),
        unchanged=tuple(forked(Remedy())),
        num_tried=NUM_REMEDIES,
    )


def with_fresh_data(
    rng: np.random.Generator, found: Remedies, p_stable: Callable[[Remedy, int], float], *, gated: bool = False
) -> Remedies:
    """The forks, and those with fresh data that the commands train until nothing is named without them."""
    while True:
        trained = {(each.name, each.fork_step) for each in (*found.fresh, *found.fresh_other_data)}
        more: dict[tuple[str, int], list[Remedy]] = {}
        for fork in fresh_forks(found, RemedyRequest(each_cell=gated)):
            if (fork.remedy.name, fork.step) not in trained:
                more.setdefault((fork.remedy.name, fork.step), []).append(fork.remedy)
        if not more:
            return found
        for (_, step), (remedy, *rest) in more.items():
            saved = int(rng.binomial(len(rest) + 1, p_stable(remedy, step)))
            kind = "fresh" if remedy.entries else "fresh_other_data"
            fresh = replace(tally(remedy, step, saved, len(rest) + 1), is_fresh=True)
            found = replace(found, **{kind: (*getattr(found, kind), fresh)})


def named_at_random(
    num: int, p_stable: Callable[[Remedy, int], float], *, gated: bool = False, shared: float = 0.0
) -> Iterator[set[str]]:
    """The remedies that are named in each of some cases."""
    rng = np.random.default_rng(38)
    for _ in range(num):
        found = tried_at_random(rng, p_stable, gated=gated, shared=shared)
        found = with_fresh_data(rng, found, p_stable, gated=gated)
        shown = (found.shown,) if gated else (found.shown, found.best)
        yield {each.name for each in shown if each is not None}


def share_named(num: int, *arguments, **options) -> float:
    return sum(map(bool, named_at_random(num, *arguments, **options))) / num


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.0, 0.9])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("p_stable", [0.2, 0.3, 0.5, 0.9])
def test_a_remedy_that_does_nothing_is_named_in_at_most_five_per_cent(
    p_stable: float, gated: bool, shared: float
) -> None:
    assert share_named(200, lambda remedy, step: p_stable, gated=gated, shared=shared) <= 0.05


@pytest.mark.slow
def test_nor_where_later_forks_are_lost_more_often() -> None:
    assert share_named(400, lambda remedy, step: 0.95 - 0.9 * step / 300, shared=0.5) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p_alone", "p_saved", "gated", "least"),
    [
        (0.05, 0.95, False, 0.98),
        (0.2, 0.95, False, 0.85),
        (0.05, 0.7, False, 0.5),
        (0.05, 0.95, True, 0.95),
        (0.2, 0.95, True, 0.75),
    ],
)
def test_a_planted_remedy_is_found(p_alone: float, p_saved: float, gated: bool, least: float) -> None:
    named = named_at_random(200, lambda remedy, step: p_saved if remedy == PLANTED else p_alone, gated=gated)
    assert np.mean([names == {PLANTED.name} for names in named]) >= least


def test_what_fresh_data_does_not_repeat_is_not_named() -> None:
    rng = np.random.default_rng(38)
    lucky = tried_at_random(rng, lambda remedy, step: 1.0 if remedy == PLANTED else 0.0)
    assert lucky.cheapest is not None
    found = with_fresh_data(rng, lucky, lambda remedy, step: 0.3)
    assert (found.helpful, found.cheapest, found.best, found.best_partial) == (frozenset(), None, None, None)
    assert {each.fork_step for each in found.fresh} == {*STEPS}, "each step of the lucky remedy is tried again"


def test_from_a_step_where_most_runs_survive_alone_no_remedy_is_named_but_from_another() -> None:
    rng = np.random.default_rng(38)
    found = tried_at_random(rng, lambda remedy, step: 1.0 if remedy == PLANTED else 0.0)
    found = with_fresh_data(rng, found, lambda remedy, step: 1.0 if remedy == PLANTED or step == 300 else 0.0)
    assert found.cheapest is not None
    assert (found.cheapest.name, found.cheapest.fork_step) == (PLANTED.name, 290)
    assert (found.last_helpful_step, found.too_late_step) == (290, 300)


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
