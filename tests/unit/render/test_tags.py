"""What trackers show about remedies."""

from dataclasses import replace
from pathlib import Path

from remedy_cases import LOST, LOWER, SKIP, TEN, answer, forked, fresh, others
from sweep_cases import ids, ledger_at, record, sweep_of

from orchestrator.base.files import REMEDIES_PICTURE
from orchestrator.causes.remedies.reading import forks_folder
from orchestrator.render.tags import tags_of, trial_answers

NONE = ["diverged"] * 3


def test_trackers_get_the_cheapest_and_the_best_remedy_and_a_row_for_each(tmp_path: Path) -> None:
    rows = [
        *others(50),
        *forked(LOWER, 20, TEN, [0.5] * 10),
        *forked(LOWER, 50, TEN),
        *forked(SKIP, 50, LOST),
        *forked(SKIP, 90, LOST),
        *fresh(LOWER, 20, TEN, 0.6),
        *fresh(LOWER, 50, TEN, 1.1),
    ]
    found = answer(rows, "over_the_threshold")
    tags = tags_of(tmp_path, found)
    assert tags.tags == {
        "diagnosis": "step over the threshold from the start",
        "remedy.cheapest": "lr x0.5 from step 50",
        "remedy.best": "lr x0.5 from step 20",
        "remedy.agrees_with_diagnosis": "yes",
        "remedy.control_repeats": "yes",
    }
    assert tags.metrics == {
        "remedies_tried": 2,
        "remedies_helped": 1,
        "remedy_cheapest_step": 50,
        "remedy_cheapest_loss": 1.1,
        "remedy_best_step": 20,
        "remedy_best_loss": 0.6,
        "remedy_too_late_step": 90,
    }
    assert [(row["remedy"], row["fork_step"], row["saved"], row["helped"]) for row in tags.table] == [
        ("no change", 50, 0, False),
        ("lr x0.5", 20, 10, True),
        ("lr x0.5", 50, 10, True),
        ("skip 5", 50, 0, False),
        ("skip 5", 90, 0, False),
    ]
    assert tags.picture is None
    picture = forks_folder(tmp_path, found.trial.trial_id) / REMEDIES_PICTURE
    picture.parent.mkdir(parents=True)
    picture.touch()
    assert tags_of(tmp_path, found).picture == picture


def test_where_nothing_saves_there_are_no_numbers_of_what_does(tmp_path: Path) -> None:
    tags = tags_of(tmp_path, replace(answer(forked(SKIP, 50, NONE)), control_repeats=None))
    assert tags.metrics == {"remedies_tried": 1, "remedies_helped": 0}
    assert tags.tags["diagnosis"] == "no cause"
    assert tags.tags["remedy.cheapest"] == tags.tags["remedy.best"] == "none"
    assert tags.tags["remedy.control_repeats"] == "not known"


def test_the_typical_trial_of_an_unstable_cell_has_its_cause_where_no_remedy_was_tried(tmp_path: Path) -> None:
    sweep = sweep_of("seeds: [0, 1]\naxes: {lr: {values: [0.1, 3.0]}}\n")
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["stable", "stable", "diverged", "diverged"])
    (found,) = trial_answers(tmp_path)
    assert found.trial_id == ids(sweep)[2]
    assert found.tags.keys() == {"diagnosis"}
    assert not found.metrics
    assert not found.table
