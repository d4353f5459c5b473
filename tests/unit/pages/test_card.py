"""The bar of outcomes at the top of a page."""

import re
from importlib.resources import files

import pytest
from diagnosis_cases import row_of

from orchestrator.base.trial_result import TrialResult
from orchestrator.pages.card import bar_html

STYLE = (files("orchestrator.pages") / "page" / "page.css").read_text()
ENDED = {
    "stable": row_of("stable"),
    "collapsed": row_of("stable", collapsed_step=40),
    "spiked": row_of("spiked", 100),
    "stalled": row_of("stalled", 0),
    "diverged": row_of("diverged", 100),
    "pruned": row_of("pruned"),
}


def kinds(*rows: TrialResult) -> list[str]:
    """The kinds of the parts of the bar, from left to right."""
    return re.findall(r'<span class="part-(\w+)"', bar_html(rows))


@pytest.mark.parametrize("name", ENDED)
def test_each_outcome_has_a_part_of_its_own_colour(name: str) -> None:
    assert kinds(ENDED[name]) == [name]
    assert re.search(rf"\.part-{name}\b[^{{]*{{ background: ", STYLE)


def test_parts_stand_from_stable_to_worse_and_trials_without_a_result_last() -> None:
    waiting = row_of(None, status="planned")
    assert kinds(waiting, *reversed(ENDED.values())) == [*ENDED, "waiting"]
