"""What forks come to: fractions, the cheapest remedy, from when on it is too late, and the diagnosis."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis_cases import row_of
from hypothesis import given
from hypothesis import strategies as st
from remedy_cases import CLIP, LOST, LOWER, NINE, SKIP, TEN, answer, forked, fresh, others, three_cells
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.answers.remedy import RemedyAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.intervals import exact_interval
from orchestrator.causes.remedies.cells import KindCount, Region
from orchestrator.causes.remedies.reading import difference, different_facts, tallies, unstable_region
from orchestrator.causes.remedies.remedy import KINDS, Entry, Remedy
from orchestrator.causes.remedies.results import Difference
from orchestrator.causes.remedies.training import best_pairs
from orchestrator.ledger.reader import LedgerReader

ALL, NONE = ["stable"] * 3, ["diverged"] * 3


def test_replicates_of_a_remedy_and_a_step_are_counted_together() -> None:
    rows = [*forked(LOWER, 50, ["stable", "spiked", "diverged"], [1.0, 2.0, 0.0]), *forked(LOWER, 90, ALL)]
    first, second = tallies(rows)
    assert (first.tried, first.saved, first.recovered, first.final_loss, first.own_loss) == (3, 1, 1, 2.0, 1.0)
    assert (first.low, first.high) == exact_interval(1, 3)
    assert second.fork_step == 90
    assert second.saves_all
    assert first.spent_steps == 3 * 350, "of 400 steps each, those after the fork at 50"


def test_half_of_the_replicates_without_a_finite_loss_leave_no_median() -> None:
    (tally,) = tallies(forked(LOWER, 50, ["stable", "diverged"]))
    assert tally.final_loss is None


def test_a_fork_that_ends_above_its_first_loss_is_not_saved() -> None:
    rows = [replace(row, initial_loss=5.0, final_loss=last) for row in forked(LOWER, 50, ["stable"]) for last in (4, 6)]
    assert [tally.saved for row in rows for tally in tallies([row])] == [1, 0]


def test_what_saves_no_more_than_other_data_alone_is_not_named() -> None:
    alone = forked(Remedy(), 50, ["stable", "stable"])
    calm = replace(answer([]).trial, outcome="stable", final_loss=1.0)
    found = answer([*alone, *forked(SKIP, 50, ALL)], control=calm)
    assert found.cheapest is None
    assert found.best is None
    some = answer([*alone, *forked(SKIP, 50, ["stable", *NONE[1:]])])
    assert "none of 1 did better than other data alone by more than chance (the lowest p is 0.95)" in str(
        RemedyAnswer.of(some)
    )


def test_a_control_that_does_not_repeat_says_what_was_another() -> None:
    found = answer(forked(LOWER, 50, ALL), control_repeats=False, control_differs={"torch": ("2.1", "2.2")})
    text = str(RemedyAnswer.of(found))
    assert "does NOT repeat the trial's curve bit for bit: torch was 2.1 and is 2.2;" in text
    assert different_facts({"kernels": "default", "torch": "2.1", "pid": "7"}, {"kernels": "default", "pid": "8"}) == {}
    assert different_facts({}, {"kernels": "default"}) == {"kernels": ("not recorded", "default")}
    facts = {"kernels": "default", "torch": "2.1"}
    assert different_facts(facts, facts | {"torch": "2.2"}) == {"torch": ("2.1", "2.2")}


def test_a_fork_that_only_stands_still_is_not_saved() -> None:
    rows = [replace(row, learned_share=0.1) for row in forked(LOWER, 50, ALL)]
    assert tallies(rows)[0].saved == 0


def test_the_control_and_forks_without_a_result_do_not_count() -> None:
    assert tallies([row_of("diverged", 100), row_of(None, config={"interventions": [{"at": 5, "skip": 1}]})]) == []


def test_the_cheapest_remedy_saves_all_from_the_last_step_then_with_the_lowest_loss() -> None:
    rows = [
        *forked(LOWER, 50, TEN, [0.1] * 10),
        *forked(LOWER, 90, TEN, [2.0] * 10),
        *forked(CLIP, 90, TEN, [1.0] * 10),
        *forked(SKIP, 99, NINE, [0.0] * 10),
        *others(50, 90, 99),
    ]
    best = answer(rows).cheapest
    assert best is not None
    assert (best.remedy.name, best.fork_step) == ("clip 0.3", 90)
    assert answer(forked(SKIP, 99, NONE)).cheapest is None


def test_the_best_remedy_saves_all_with_the_lowest_loss_from_whatever_step() -> None:
    rows = [
        *forked(LOWER, 50, TEN, [0.1] * 10),
        *forked(CLIP, 90, TEN, [1.0] * 10),
        *forked(SKIP, 99, NINE, [0.0] * 10),
        *others(50, 90, 99),
    ]
    best = answer(rows).best
    assert best is not None
    assert (best.remedy.name, best.fork_step) == ("lr x0.5", 50)


def test_too_late_is_the_first_step_after_the_last_from_which_anything_helped() -> None:
    rows = [*forked(LOWER, 50, TEN), *forked(LOWER, 90, TEN), *forked(LOWER, 100, LOST), *others(50, 90, 100)]
    found = answer([*rows, *fresh(LOWER, 90, NINE)])
    assert (found.last_helpful_step, found.too_late_step) == (90, 100)
    assert "cheapest: lr x0.5 from step 90 (10 before the onset): saved 9 of 10 with fresh data (95 %" in " ".join(
        str(RemedyAnswer.of(found)).split()
    )
    for unproven in (answer(rows), answer([*rows, *fresh(LOWER, 90, LOST)])):
        assert (unproven.last_helpful_step, unproven.too_late_step) == (None, None)
        assert "too late" not in str(RemedyAnswer.of(unproven))
    assert answer(forked(LOWER, 50, ALL)).too_late_step is None
    assert answer(forked(LOWER, 50, NONE)).last_helpful_step is None


def test_a_remedy_helps_only_where_it_saves_more_than_other_data_alone() -> None:
    alone = forked(Remedy(), 50, TEN[:5] + LOST[:4])
    lucky = forked(SKIP, 50, TEN[:8] + LOST[:2])
    found = answer([*alone, *lucky, *forked(LOWER, 50, TEN)])
    helped = {one.remedy.name: found.helped(one) for one in found.tallies}
    assert helped == {"skip 5": False, "lr x0.5": True}, "8 and 10 of 10, where other data and the control save 5"


def test_remedies_agree_with_the_diagnosis_or_contradict_it() -> None:
    lower_helps = [*forked(LOWER, 50, ALL), *forked(SKIP, 50, NONE)]
    skip_helps = [*forked(LOWER, 50, NONE), *forked(SKIP, 50, ALL)]
    assert answer(lower_helps, "over_the_threshold").agrees is True
    assert answer(skip_helps, "over_the_threshold").agrees is False
    assert answer(skip_helps, "bad_batch").agrees is True
    assert answer(forked(SKIP, 50, ALL), "over_the_threshold").agrees is None, "what it calls for was not tried"
    assert answer(forked(LOWER, 50, NONE), "over_the_threshold").agrees is None, "nothing helped"
    text = str(RemedyAnswer.of(answer(skip_helps, "over_the_threshold")))
    assert "do NOT support the diagnosis" in text
    assert "lr x0.5 helped no more than chance, while skip 5 did" in " ".join(text.split())


def test_a_later_spike_does_not_hide_that_this_one_was_avoided() -> None:
    def own(onset: int | None, over: int | None = 110) -> bool | None:
        rows = [replace(row, onset_step=onset) for row in forked(SKIP, 99, ["spiked"])]
        return tallies(rows, over=over)[0].own_passed

    assert [own(99), own(110), own(111)] == [False, False, True]
    assert own(111, None) is None, "the trial never came back, so nothing is later"
    assert tallies(forked(SKIP, 99, ["stable"]), over=110)[0].own_passed is True
    rows = [replace(row, onset_step=200) for row in forked(SKIP, 99, ["spiked"])]
    found = answer(rows, "bad_batch")
    text = str(RemedyAnswer.of(found))
    assert "past this spike, though others follow: with the trial's own data skip 5 from step 99" in text


def test_replicates_that_repeat_each_other_are_said_to_be_one_run() -> None:
    alike, unlike = forked(LOWER, 50, ALL), forked(SKIP, 50, ALL, [1.0, 1.1, 1.2])
    assert not answer(alike).replicates_differ
    assert answer([*alike, *unlike]).replicates_differ
    assert "each count is of one run" in str(RemedyAnswer.of(answer(alike)))
    (cheapest,) = [line for line in RemedyAnswer.of(answer(alike)).lines() if line.startswith("cheapest: ")]
    assert "saved the one run, without a test against chance, final loss" in cheapest


def test_pairs_are_of_the_best_from_each_step_before_the_onset_where_no_single_remedy_is_named() -> None:
    some = ["stable", "diverged", "diverged"]
    rows = [
        *(row for one in (LOWER, SKIP, CLIP) for row in forked(one, 100, NONE)),
        *forked(SKIP, 50, some, [3.0] * 3),
        *forked(LOWER, 50, some),
        *forked(CLIP, 50, NONE),
        *forked(CLIP, 20, NONE),
        *forked(LOWER, 20, ALL),
    ]
    names = [(pair.name, step) for pair, step in best_pairs(answer(rows))]
    assert names[0] == ("lr x0.5 + skip 5", 20)
    assert len(names) == 6
    assert {step for _, step in names} == {20, 50}
    assert list(best_pairs(answer(forked(LOWER, 20, ALL)))) == []


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


ALL, SOME, NONE = ["stable"] * 3, ["stable", "diverged", "diverged"], ["diverged"] * 3
GRID = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5]}}\n"


def region(tmp_path: Path, states: dict[tuple[float, float], tuple[str, str]], **where: Any) -> Region:
    """The unstable region of a grid whose cells are stable but for those of ``states``, seed by seed."""
    sweep = sweep_of(GRID)
    labels = [states.get((round(t.cell["lr"], 3), t.cell["beta1"]), ("stable", "stable"))[t.seed] for t in sweep.trials]
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, labels)
    with LedgerReader(tmp_path / LEDGER) as ledger:
        return unstable_region(ledger, where)


def cells_of(found: Region) -> list[tuple[float, float, int]]:
    return [(round(row.cell["lr"], 3), row.cell["beta1"], row.seed) for row in found.trials]


def test_a_cell_with_one_unstable_seed_is_taken_and_a_cell_that_is_not_known_is_not(tmp_path: Path) -> None:
    states = {
        (1.0, 0.0): ("diverged", "diverged"),
        (0.1, 0.5): ("stable", "spiked"),
        (1.0, 0.5): ("planned", "diverged"),
    }
    found = region(tmp_path, states)
    assert cells_of(found) == [(0.1, 0.5, 1), (1.0, 0.0, 0)]
    assert (found.num_known, found.num_unknown) == (7, 1)


def test_the_trial_of_a_cell_is_that_of_its_commonest_outcome(tmp_path: Path) -> None:
    found = region(tmp_path, {(1.0, 0.0): ("spiked", "diverged")})
    assert [row.outcome for row in found.trials] == ["diverged"], "the worse in a tie, as a diagnosis chooses"


def test_degraded_cells_are_not_over_the_edge(tmp_path: Path) -> None:
    assert region(tmp_path, {(0.001, 0.0): ("degraded", "degraded")}).trials == ()


def test_conditions_narrow_the_cells(tmp_path: Path) -> None:
    states = {(1.0, 0.0): ("diverged", "diverged"), (1.0, 0.5): ("diverged", "diverged")}
    assert cells_of(region(tmp_path, states, beta1="0.5")) == [(1.0, 0.5, 0)]
    with LedgerReader(tmp_path / LEDGER) as ledger, pytest.raises(InputError, match="is not an axis"):
        unstable_region(ledger, {"beta2": "0.5"})


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([{"at": 0, "set": {"lr": "x0.25"}}, {"at": 50, "set": {"lr": "x4"}, "over": 50}], "lr"),
        ([{"at": 0, "set": {"zclip": 2.5}}], "clip"),
        ([{"at": 0, "rescale": 4.0}], "reset"),
        ([{"at": 0, "reset": "moments"}], "reset"),
        ([{"at": 0, "set": {"weight_decay": 0.0}}], "other"),
        ([{"at": 0, "set": {"lr": "x0.5"}}, {"at": 0, "skip": 5}], "other"),
        ([{"at": 0, "skip": 5}], "skip"),
    ],
)
def test_a_remedy_is_of_the_kind_of_what_it_changes(entries: list[Entry], kind: str) -> None:
    assert Remedy(tuple(entries)).kind == kind
    assert kind in KINDS


def test_each_kind_is_counted_where_it_is_the_cheapest_and_where_it_saves() -> None:
    three = three_cells()
    assert three.by_kind == {"clip": KindCount(1, 1), "skip": KindCount(1, 1), "lr": KindCount(0, 1)}
    assert [one.kind for one in three.cells] == ["clip", "skip", None]
    assert [one.is_saved_by_lower_lr for one in three.cells] == [True, False, False]
    assert [one.is_lower_alone(one.cheapest) for one in three.cells] == [False, True, False], (
        "only a spiked one ends at all"
    )


def test_a_higher_learning_rate_is_no_lower_one() -> None:
    higher = Remedy(({"at": 0, "set": {"lr": "x3"}},))
    found = answer(forked(higher, 50, ALL))
    assert (found.kind, found.is_saved_by_lower_lr) == ("lr", False)
