"""Members that differ by later changes train as one until they fork, and nobody can tell from their results."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_cases import REPORT_EACH_UPDATE, assert_the_same, curve, interrupted, pack_with, results, whole
from tiers import examples, thinned

from objectives.base import OBJECTIVES, QuadraticConfig, RowSpec
from objectives.training.packed import PackedTrainer
from orchestrator.base.packs import Pack, Report
from orchestrator.worker import run as worker
from orchestrator.worker.members import Roster, families, first_difference, split_at
from orchestrator.worker.packed_run import Pace

Entries = Sequence[Mapping[str, Any]]

# A tree: forks at 0, 10, 20 and 25, one of which comes back; the control never changes.
TREE: list[Entries] = [
    [],
    [{"at": 20, "set": {"lr": "x0.5"}}],
    [{"at": 10, "set": {"lr": "x0.1"}, "over": 5, "lasts": 9}],
    [{"at": 10, "set": {"lr": "x0.1"}, "over": 5, "lasts": 9}, {"at": 25, "skip": 2}],
    [{"at": 20, "reset": "moments"}],
    [{"at": 20, "set": {"lr": "x0.5"}}, {"at": 39, "data": 1}],
    [{"at": 0, "set": {"clip": 0.1}}],
]


def pack_of(objective: str, width: int, *, seeds: Sequence[int] = (0,), steps: int = 40, lr: float = 1e-2) -> Pack:
    changes = [{"lr": lr, "interventions": tuple(entries)} for _ in seeds for entries in TREE]
    pack = pack_with(objective, changes, width, [seed for seed in seeds for _ in TREE], steps)
    return replace(pack, checkpoint_steps=7, validate_every=15)


ALONE: dict[str, tuple[dict, dict]] = {}  # by pack: several tests compare with the same


def without_sharing(pack: Pack) -> tuple[dict, dict]:
    """Each member in a pack of its own."""
    packs = [replace(pack, members=(member,), width=1) for member in pack.members]
    if repr(packs) not in ALONE:
        reports = [report for one in packs for report in worker.run_pack(one, pace=REPORT_EACH_UPDATE)]
        ALONE[repr(packs)] = whole(reports)
    return ALONE[repr(packs)]


@pytest.fixture
def rows_per_step(monkeypatch) -> list[int]:
    """How many rows the trainer had at each step of whatever is trained."""
    counts: list[int] = []
    step, observed = PackedTrainer.step, PackedTrainer.observed_step

    def counted(self):
        counts.append(self.num_members)
        return step(self)

    def counted_too(self, *arguments):
        counts.append(self.num_members)
        return observed(self, *arguments)

    monkeypatch.setattr(PackedTrainer, "step", counted)
    monkeypatch.setattr(PackedTrainer, "observed_step", counted_too)
    return counts


@pytest.mark.parametrize(
    ("objective", "update_steps"),
    thinned(
        [*((name, 7) for name in OBJECTIVES), ("quadratic", 1), ("quadratic", 50)],
        lambda case: case in (("gpt", 7), ("quadratic", 7)),
    ),
)
def test_results_and_curves_are_those_without_sharing_to_the_bit(objective: str, update_steps: int) -> None:
    pack = pack_of(objective, 14, seeds=(0, 1))
    found = whole(list(worker.run_pack(pack, pace=Pace(update_steps=update_steps, report_s=0.0))))
    assert_the_same(found, without_sharing(pack))
    assert {len(columns[0]) for columns in found[1].values()} == {40}


def test_readings_are_those_without_sharing_too() -> None:
    pack = pack_of("function_fit", 7)
    pack = replace(pack, telemetry=replace(pack.telemetry, every=3, curvature=6))
    together = list(worker.run_pack(pack, pace=REPORT_EACH_UPDATE))
    for member in pack.members:
        alone = list(worker.run_pack(replace(pack, members=(member,), width=1), pace=REPORT_EACH_UPDATE))
        found, expected = (readings_of(reports, member.trial_id) for reports in (together, alone))
        assert found == expected
        assert sum("lambda_max" in name for _, name in expected) == 7


def readings_of(reports: Sequence[Report], trial_id: str) -> dict[tuple[int, str], float]:
    """What was read of a trial, by step and name."""
    tables = [report.telemetry[trial_id] for report in reports if trial_id in report.telemetry]
    return {
        (int(step), name): float(value)
        for table in tables
        for name, values in table.items()
        for step, value in zip(table["step"], values, strict=True)
        if np.isfinite(value)
    }


def test_only_what_differs_is_trained(rows_per_step: list[int]) -> None:
    reports = list(worker.run_pack(pack_of("quadratic", 7)))
    expected = [2] * 10 + [3] * 10 + [5] * 5 + [6] * 14 + [7]
    assert rows_per_step == expected
    assert reports[-1].member_steps == sum(expected)
    assert len(results(reports)) == 7


@pytest.mark.parametrize("width", thinned([1, 2, 3, 5], lambda width: width == 3))
def test_in_rounds_there_are_never_more_rows_than_places_and_results_are_the_same(
    width: int, rows_per_step: list[int]
) -> None:
    pack = pack_of("quadratic", width, seeds=(0, 1))
    found = whole(list(worker.run_pack(pack, pace=REPORT_EACH_UPDATE)))
    assert max(rows_per_step) <= width
    assert_the_same(found, without_sharing(pack))


@pytest.mark.parametrize("num_reports", thinned([1, 2, 3, 4, 6, 9], lambda num: num in (2, 4)))
@pytest.mark.parametrize("objective", ["quadratic"])
def test_a_pack_that_dies_before_between_and_after_forks_goes_on_bit_for_bit(objective: str, num_reports: int) -> None:
    pack = pack_of(objective, 5, seeds=(0, 1))
    undisturbed = whole(list(worker.run_pack(pack, pace=Pace(update_steps=5, report_s=0.0))))
    before, going_on = interrupted(pack, num_reports)
    after = list(worker.run_pack(going_on, pace=REPORT_EACH_UPDATE))
    assert [report.error for report in after if report.error] == []
    assert_the_same(whole(before + after), undisturbed)


def test_a_member_that_forks_into_float64_or_waits_for_a_row_trains_as_it_does_alone() -> None:
    wide = ({"at": 10, "precision": "float64"},)
    changes = [{"interventions": ()}, {"interventions": wide}, {"lr": 3e-3, "interventions": wide}]
    pack = replace(pack_with("gpt", changes, 2, [0, 0, 0], 16), checkpoint_steps=7)
    expected = without_sharing(pack)
    assert_the_same(whole(list(worker.run_pack(pack, pace=REPORT_EACH_UPDATE))), expected)
    before, going_on = interrupted(pack, 1)
    assert_the_same(whole(before + list(worker.run_pack(going_on, pace=REPORT_EACH_UPDATE))), expected)
    own, plain = expected[1]["trial1"][1], expected[1]["trial0"][1]
    np.testing.assert_array_equal(own[:10], plain[:10])
    assert (own[10:] != plain[10:]).any()


def test_the_first_of_a_row_may_be_unwanted_when_the_pack_goes_on() -> None:
    pack = pack_of("function_fit", 7)
    before, going_on = interrupted(pack, 1)
    unwanted = {"trial0", "trial2"}
    after = list(worker.run_pack(replace(going_on, skip=going_on.skip | unwanted), pace=REPORT_EACH_UPDATE))
    found, expected = results(before + after), without_sharing(pack)[0]
    assert found == {trial_id: finished for trial_id, finished in expected.items() if trial_id not in unwanted}


def test_members_that_are_lost_before_they_fork_have_the_same_end(rows_per_step: list[int]) -> None:
    """Beyond the edge, with an intervention that comes too late."""
    entries = [[], [{"at": 150, "set": {"lr": "x0.1"}}], [{"at": 3, "set": {"lr": "x0.1"}}]]
    changes = [{"lr": 30.0, "noise": 0.0, "interventions": tuple(each)} for each in entries]
    reports = list(worker.run_pack(pack_with("quadratic", changes, 3, [0] * 3, 200)))
    found = results(reports)
    assert [found[f"trial{i}"].outcome for i in range(3)][:2] == ["diverged", "diverged"]
    assert replace(found["trial1"], trial_id="trial0") == found["trial0"]
    np.testing.assert_array_equal(curve(reports, "trial0"), curve(reports, "trial1"))
    assert max(rows_per_step) == 2


def test_an_audited_member_does_not_share_with_one_that_ends_at_its_verdict() -> None:
    changes = [{"lr": 8.0, "noise": 0.0, "interventions": ({"at": 80 + i, "skip": 1},)} for i in range(12)]
    pack = pack_with("quadratic", changes, 12, [0] * 12, 100)
    pack = replace(pack, stopping={**pack.stopping, "audit": 0.5})
    found = whole(list(worker.run_pack(pack)))
    assert len({finished.is_audited for finished in found[0].values()}) == 2
    assert_the_same(found, without_sharing(pack))


def test_members_of_other_seeds_or_settings_never_share(rows_per_step: list[int]) -> None:
    later = ({"at": 30, "skip": 1},)
    changes = [{"lr": lr, "interventions": each} for lr in (0.1, 0.2) for each in ((), later)]
    list(worker.run_pack(pack_with("quadratic", changes * 2, 8, [0] * 4 + [1] * 4)))
    assert rows_per_step == [4] * 30 + [8] * 10


def test_a_trainer_that_ignores_interventions_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(PackedTrainer, "takes_interventions", False)
    (report,) = worker.run_pack(pack_of("quadratic", 7))
    assert "QuadraticTrainer of quadratic takes no interventions" in str(report.error)


@pytest.mark.parametrize("field", ["ema", "merge_last"])
def test_a_trainer_without_losses_of_averages_is_refused_where_they_are_asked_for(monkeypatch, field: str) -> None:
    asking = pack_with("quadratic", [{field: {"ema": 0.9, "merge_last": 2}[field]}], 1, [0], 12)
    assert results(list(worker.run_pack(asking)))
    monkeypatch.delattr(PackedTrainer, "averaged_losses")
    (report,) = worker.run_pack(asking)
    assert f"QuadraticTrainer of quadratic takes no {field}" in str(report.error)
    assert results(list(worker.run_pack(pack_with("quadratic", [{}], 1, [0], 12)))), "without the field it trains"


# Rules of control.

LOSS = {"on": "loss", "above": 0.01, "do": ({"lr": "x0.5"},), "every": 3, "at_most": 2, "over": 3}
NORM = {"on": "grad_norm", "above": 0.01, "do": ({"clip_to_quantile": 0.5}, {"skip": 1}), "every": 4, "at_most": 2}
CONTROLLED: list[dict[str, Any]] = [
    {},
    {"control": ({**LOSS, "after": 10},)},
    {"control": ({**NORM, "after": 10},)},
    {"control": ({**NORM, "after": 25}, {**LOSS, "after": 30})},
    {"control": ({**LOSS, "after": 10},), "interventions": ({"at": 5, "skip": 2},)},
    {"control": ({**LOSS, "after": 10},), "interventions": ({"at": 30, "set": {"lr": "x0.5"}},)},
]


def controlled_pack(objective: str, width: int, seeds: Sequence[int] = (0,)) -> Pack:
    changes = [{"lr": 1e-2, **one} for _ in seeds for one in CONTROLLED]
    pack = pack_with(objective, changes, width, [seed for seed in seeds for _ in CONTROLLED])
    return replace(pack, checkpoint_steps=7, validate_every=15)


@pytest.mark.parametrize("objective", thinned(OBJECTIVES, lambda name: name in ("function_fit", "quadratic")))
def test_members_with_rules_have_the_results_and_firings_that_they_have_without_sharing(objective: str) -> None:
    pack = controlled_pack(objective, 12, (0, 1))
    found = whole(list(worker.run_pack(pack, pace=REPORT_EACH_UPDATE)))
    assert_the_same(found, without_sharing(pack))
    assert [len(found[0][f"trial{i}"].fired) for i in range(6)] == [0, 2, 2, 4, 2, 2]


def test_members_share_until_a_rule_reads_that_not_all_of_them_have(rows_per_step: list[int]) -> None:
    list(worker.run_pack(controlled_pack("quadratic", 6)))
    assert rows_per_step == [1] * 5 + [2] * 5 + [4] * 15 + [5] * 5 + [6] * 10


@pytest.mark.parametrize("width", thinned([1, 2, 4], lambda width: width == 2))
def test_in_rounds_rules_do_the_same(width: int) -> None:
    pack = controlled_pack("quadratic", width)
    found = whole(list(worker.run_pack(pack, pace=REPORT_EACH_UPDATE)))
    assert_the_same(found, without_sharing(pack))


@pytest.mark.parametrize("num_reports", thinned([1, 2, 3, 5], lambda num: num == 3))
def test_a_pack_with_rules_that_dies_goes_on_bit_for_bit(num_reports: int) -> None:
    pack = controlled_pack("function_fit", 5)
    undisturbed = whole(list(worker.run_pack(pack, pace=Pace(update_steps=5, report_s=0.0))))
    before, going_on = interrupted(pack, num_reports)
    after = list(worker.run_pack(going_on, pace=REPORT_EACH_UPDATE))
    assert [report.error for report in after if report.error] == []
    assert_the_same(whole(before + after), undisturbed)


def test_of_a_lost_member_what_rules_did_after_its_end_is_not_told() -> None:
    rule = {"on": "step", "above": 0, "do": ({"clip": 1e9},), "every": 1, "at_most": 1000}
    changes = [{"lr": 30.0, "noise": 0.0, "control": (rule,)}]
    (finished,) = results(list(worker.run_pack(pack_with("quadratic", changes, 1, [0], 300)))).values()
    assert finished.outcome == "diverged"
    assert [one["step"] for one in finished.fired] == list(range(1, finished.steps_done))


def test_a_trainer_that_does_not_know_control_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(PackedTrainer, "takes_control", False)
    (report,) = worker.run_pack(controlled_pack("quadratic", 6))
    assert "QuadraticTrainer of quadratic takes no control" in str(report.error)


# The rules by which members share.

ENTRIES = st.lists(
    st.sampled_from([{"at": at, "skip": skip} for at in (0, 3, 3, 7) for skip in (1, 2)]), max_size=3
)  # fmt: skip


def config(entries: Entries, rules: Entries = ()) -> QuadraticConfig:
    return QuadraticConfig(steps=10, interventions=tuple(entries), control=tuple(rules))


@settings(max_examples=examples(100))
@given(st.lists(ENTRIES, min_size=1, max_size=6))
def test_two_members_train_a_step_together_if_and_only_if_all_that_has_changed_is_the_same(lists) -> None:
    configs = [config(entries) for entries in lists]
    for step in range(10):
        parts = split_at(range(len(configs)), configs, step)
        place = {member: i for i, part in enumerate(parts) for member in part}
        for a, left in enumerate(configs):
            for b, right in enumerate(configs):
                past = [[e for e in one.interventions if e.at <= step] for one in (left, right)]
                assert (place[a] == place[b]) == (past[0] == past[1])
    fork = first_difference(configs)
    together = [step for step in range(10) if len(split_at(range(len(configs)), configs, step)) == 1]
    assert together == list(range(10 if fork is None else fork))


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 1), ENTRIES), min_size=1, max_size=8), st.integers(1, 5))
def test_every_member_trains_every_step_in_a_row_with_its_own_past(members, width: int) -> None:
    seeds, configs = [seed for seed, _ in members], [config(entries) for _, entries in members]
    roster, done = Roster(configs, seeds, width), []
    while roster.waiting:
        roster.admit()
        assert 0 < len(roster.everybody) <= width
        for step in range(10):
            roster.fork(dict.fromkeys(roster.everybody, step))
            for k, row in enumerate(roster.rows):
                pasts = {str([e for e in configs[m].interventions if e.at <= step]) for m in row}
                assert len(pasts) == len({seeds[m] for m in row}) == 1
                following = roster.next_fork(k)
                assert following is None or following > step
        done += roster.everybody
        roster.drop(roster.everybody)
    assert sorted(done) == list(range(len(members)))


RULES = st.sampled_from(
    [
        (),
        *(({"on": "step", "above": above, "do": {"skip": 1}, "after": after},) for above in (0, 1) for after in (0, 4)),
    ]
)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(ENTRIES, RULES), min_size=1, max_size=6))
def test_rules_keep_members_apart_from_the_first_step_that_they_read(members) -> None:
    configs = [config(*one) for one in members]
    for step in range(10):
        parts = split_at(range(len(configs)), configs, step)
        place = {member: i for i, part in enumerate(parts) for member in part}
        for a, left in enumerate(configs):
            for b, right in enumerate(configs):
                pasts = [
                    ([e for e in one.interventions if e.at <= step], [r for r in one.control if r.after <= step])
                    for one in (left, right)
                ]
                assert (place[a] == place[b]) == (pasts[0] == pasts[1])
        for part in parts:
            has_rules = [bool(configs[member].control) for member in part]
            assert has_rules == sorted(has_rules, reverse=True)
    fork = first_difference(configs)
    together = [step for step in range(10) if len(split_at(range(len(configs)), configs, step)) == 1]
    assert together == list(range(10 if fork is None else fork))


def test_without_interventions_each_member_is_a_family_of_its_own() -> None:
    assert families([config([])] * 3, [0, 0, 0], [None] * 3) == [0, 1, 2]
    some = [config([]), config([{"at": 3, "skip": 1}]), config([])]
    assert families(some, [0, 0, 1], [None] * 3) == [0, 0, 1]
    assert families(some, [0, 0, 0], [True, False, True]) == [0, 1, 0]


def plain_config(lr: float = 0.1) -> QuadraticConfig:
    return QuadraticConfig(steps=10, lr=lr)


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 2**9 - 1)), max_size=12),
    st.integers(1, 9),
    st.integers(1, 6),
)
def test_members_wait_in_line_train_in_a_row_of_their_own_or_are_gone(rounds, num_members: int, width: int) -> None:
    """Of each round: whether the pack is resumed, how many rows pad it, and a bit for each member that leaves."""
    configs, seeds = [plain_config(0.1 * (1 + m)) for m in range(num_members)], [m % 3 for m in range(num_members)]
    roster, gone, held_in = Roster(configs, seeds, width), set(), {}
    for is_resumed, num_padding, leaving_bits in itertools.chain(rounds, itertools.repeat((False, 0, 2**9 - 1))):
        if not roster.waiting and not roster.training:
            break
        training, waiting = list(roster.training), list(roster.waiting)
        roster.admit()
        num_new = min(width - len(training), len(waiting))
        assert roster.training == training + waiting[:num_new], "in the order in which they wait, and no place is free"
        if is_resumed:
            resumed = Roster(configs, seeds, width)
            resumed.load_state_dict(roster.state_dict())
            assert (resumed.training, resumed.waiting) == (roster.training, roster.waiting)
        num_rows = len(roster.training) + num_padding
        row_specs = roster.row_specs(num_rows)
        assert len(row_specs) == num_rows
        assert row_specs[: len(roster.training)] == [
            RowSpec(configs[m], seeds[m], held_in.get(m)) for m in roster.training
        ], "its state is where it was held"
        assert row_specs[len(roster.training) :] == [row_specs[0]] * (num_rows - len(roster.training)), "padded"
        held_in = {member: row for row, member in enumerate(roster.training)}
        leaving = {member for member in range(num_members) if leaving_bits >> member & 1}
        roster.drop(leaving)
        gone |= leaving
        assert set(roster.training) | set(roster.waiting) == set(range(num_members)) - gone
    assert gone == set(range(num_members))


def test_a_fresh_member_begins_in_the_row_that_one_left_and_the_others_keep_their_state() -> None:
    roster = Roster([plain_config(lr) for lr in (0.1, 0.2, 0.3)], [5, 6, 7], 2)
    roster.admit()
    assert roster.row_specs(2) == [RowSpec(plain_config(0.1), 5, None), RowSpec(plain_config(0.2), 6, None)]
    roster.drop([0])
    roster.admit()
    assert roster.row_specs(4) == [
        RowSpec(plain_config(0.2), 6, 1),
        RowSpec(plain_config(0.3), 7, None),
        *[RowSpec(plain_config(0.2), 6, 1)] * 2,
    ]


def test_a_resumed_roster_goes_on_with_a_trainer_that_holds_its_rows() -> None:
    roster = Roster([plain_config(lr) for lr in (0.1, 0.2, 0.3)], [5, 6, 7], 2)
    roster.drop([0])
    roster.admit()
    resumed = Roster(roster.configs, roster.seeds, 2)
    resumed.load_state_dict(roster.state_dict())
    assert [row.source for row in resumed.row_specs(2)] == [0, 1]
