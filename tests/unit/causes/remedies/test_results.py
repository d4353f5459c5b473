"""What forks come to: fractions, the cheapest remedy, from when on it is too late, and the diagnosis."""

from __future__ import annotations

from dataclasses import replace

from diagnosis_cases import row_of
from remedy_cases import CLIP, LOWER, SKIP, answer, forked

from orchestrator.answers.remedy import RemedyAnswer
from orchestrator.base.intervals import wilson
from orchestrator.causes.remedies.reading import different_facts, tallies
from orchestrator.causes.remedies.remedy import Remedy
from orchestrator.causes.remedies.training import best_pairs

ALL, NONE = ["stable"] * 3, ["diverged"] * 3


def test_replicates_of_a_remedy_and_a_step_are_counted_together() -> None:
    rows = [*forked(LOWER, 50, ["stable", "spiked", "diverged"], [1.0, 2.0, 0.0]), *forked(LOWER, 90, ALL)]
    first, second = tallies(rows)
    assert (first.tried, first.saved, first.recovered, first.final_loss, first.own_loss) == (3, 1, 1, 2.0, 1.0)
    assert (first.low, first.high) == wilson(1, 3)
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
    assert "no remedy saved more replicates than other data alone" in str(RemedyAnswer.of(some))


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
        *forked(LOWER, 50, ALL, [0.1] * 3),
        *forked(LOWER, 90, ALL, [2.0] * 3),
        *forked(CLIP, 90, ALL, [1.0] * 3),
        *forked(SKIP, 99, ["stable", "stable", "diverged"], [0.0] * 3),
    ]
    best = answer(rows).cheapest
    assert best is not None
    assert (best.remedy.name, best.fork_step) == ("clip 0.3", 90)
    assert answer(forked(SKIP, 99, NONE)).cheapest is None


def test_the_best_remedy_saves_all_with_the_lowest_loss_from_whatever_step() -> None:
    rows = [
        *forked(LOWER, 50, ALL, [0.1] * 3),
        *forked(CLIP, 90, ALL, [1.0] * 3),
        *forked(SKIP, 99, ["stable", "stable", "diverged"], [0.0] * 3),
    ]
    best = answer(rows).best
    assert best is not None
    assert (best.remedy.name, best.fork_step) == ("lr x0.5", 50)


def test_too_late_is_the_first_step_after_the_last_from_which_anything_helped() -> None:
    rows = [*forked(LOWER, 50, ALL), *forked(LOWER, 90, ["stable", *NONE[1:]]), *forked(LOWER, 100, NONE)]
    found = answer(rows)
    assert (found.last_helpful_step, found.too_late_step) == (90, 100)
    assert answer(forked(LOWER, 50, ALL)).too_late_step is None
    assert answer(forked(LOWER, 50, NONE)).last_helpful_step is None


def test_a_remedy_helps_only_where_it_saves_more_than_other_data_alone() -> None:
    alone = forked(Remedy(), 50, ["stable", "stable"])
    lucky = forked(SKIP, 50, ["diverged", "stable", "stable"])
    found = answer([*alone, *lucky, *forked(LOWER, 50, ALL)])
    helped = {one.remedy.name: found.helped(one) for one in found.tallies}
    assert helped == {"skip 5": False, "lr x0.5": True}, "the control and its two replicates save two of three as well"


def test_remedies_agree_with_the_diagnosis_or_contradict_it() -> None:
    lower_helps = [*forked(LOWER, 50, ALL), *forked(SKIP, 50, NONE)]
    skip_helps = [*forked(LOWER, 50, NONE), *forked(SKIP, 50, ALL)]
    assert answer(lower_helps, "over_the_threshold").agrees is True
    assert answer(skip_helps, "over_the_threshold").agrees is False
    assert answer(skip_helps, "bad_batch").agrees is True
    assert answer(forked(SKIP, 50, ALL), "over_the_threshold").agrees is None, "what it calls for was not tried"
    assert answer(forked(LOWER, 50, NONE), "over_the_threshold").agrees is None, "nothing helped"
    text = str(RemedyAnswer.of(answer(skip_helps, "over_the_threshold")))
    assert "CONTRADICT the diagnosis" in text
    assert "lr x0.5 did not help from any step" in " ".join(text.split())


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


def test_pairs_are_of_the_best_and_only_where_no_single_remedy_saves_all_before_the_onset() -> None:
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
    assert names[0] in {("lr x0.5 + skip 5", 50), ("skip 5 + lr x0.5", 50)}
    assert len(names) == 3
    assert {step for _, step in names} == {50}
