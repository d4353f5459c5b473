from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_cases import trainer_of

from objectives.base import OBJECTIVES, GptConfig, Place, QuadraticConfig, TrainingConfig
from objectives.conformance import COMMON_BESIDE, COMMON_VALUES
from orchestrator.worker.roster import Roster


def config(clip: float | None = None, **fields) -> QuadraticConfig:
    return QuadraticConfig(steps=10, clip=clip, **fields)


def rows_of(roster: Roster) -> list[list[int]]:
    """The members of each row."""
    rows: list[list[int]] = [[] for _ in range(max(roster.row_of, default=-1) + 1)]
    for member, row in zip(roster.training, roster.row_of, strict=True):
        rows[row].append(member)
    return rows


def clips(roster: Roster, members: Sequence[int]) -> list[float]:
    return [clip for member in members if (clip := roster.configs[member].clip) is not None]


CLIPS = st.sampled_from([None, None, 1e-6, 1e-3, 1.0, 1.04, 1.2, 1000.0])
CONFIGS = st.builds(config, clip=CLIPS, lr=st.sampled_from([0.1, 0.2]), curvature=st.sampled_from([1.0, 2.0]))
NORMS = st.one_of(
    st.sampled_from([0.0, 5e-7, 9.9e-7, 1e-6, 0.9999995, 1.0, 1.000001, float("inf")]),
    st.floats(-8, 4).map(lambda exponent: 10.0**exponent),
)


class Life:
    """A roster, and what is known of its members without it."""

    def __init__(self, configs: Sequence[TrainingConfig], seeds: Sequence[int], width: int) -> None:
        self.roster = Roster(configs, seeds, width)
        self.configs, self.seeds, self.width = configs, seeds, width
        self.gone: set[int] = set()
        self.admitted: dict[int, int] = {}  # member -> when
        self.highest: dict[int, float] = {}  # member -> norm
        self.held_in: dict[int, int] = {}  # member -> row of the trainer that holds its state
        self.num_rounds = 0

    def admit(self) -> None:
        before = set(self.roster.training)
        expected = min(self.width, len(before) + len(self.roster.waiting))
        first_in_line = list(self.roster.waiting)[: expected - len(before)]
        self.roster.admit()
        new = set(self.roster.training) - before
        assert sorted(new) == first_in_line, "in the order in which they wait"
        assert len(self.roster.training) == expected, "no place stays free while somebody waits"
        self.num_rounds += 1
        self.admitted.update(dict.fromkeys(new, self.num_rounds))

    def train(self, norms: Sequence[float]) -> None:
        """A look: norms of each row, first ones noted, near ones parted."""
        roster, before = self.roster, rows_of(self.roster)
        fresh = {m: norm for row, norm in zip(before, norms, strict=True) for m in row if m not in self.highest}
        roster.note_first_norms(fresh)
        for row, norm in zip(before, norms, strict=True):
            self.highest.update({m: max(norm, self.highest.get(m, 0.0)) for m in row})
        clipped = roster.has_clipped(norms)
        acted = [
            any(clip < norm + 1e-6 for clip in clips(roster, row)) and len(row) > 1
            for row, norm in zip(before, norms, strict=True)
        ]
        assert clipped or not any(acted), "the optimizer would have clipped"
        assert roster.part(norms) == (rows_of(roster) != before)
        # The same steps again, were they to be trained once more.
        row_before = {member: number for number, row in enumerate(before) for member in row}
        again = [norms[row_before[row[0]]] for row in rows_of(roster)]
        assert not roster.has_clipped(again), "who is one run still would clip apart"
        assert not roster.part(again)
        for row in rows_of(roster):
            assert len({row_before[member] for member in row}) == 1, "rows part and never merge"

    def place(self, num_rows: int) -> None:
        rows = rows_of(self.roster)
        places = self.roster.places(num_rows)
        assert len(places) == num_rows
        assert places[len(rows) :] == [places[0]] * (num_rows - len(rows)), "padded with the first row"
        for row, place in zip(rows, places[: len(rows)], strict=True):
            assert place.config in [self.configs[m] for m in row]
            assert {place.seed} == {self.seeds[m] for m in row}
            assert {place.row} == {self.held_in.get(m) for m in row}, "its state is where it was held"
        self.held_in = {member: number for number, row in enumerate(rows) for member in row}

    def drop(self, members: set[int]) -> None:
        self.roster.drop(members)
        self.gone |= members

    def check(self) -> None:
        roster, everyone = self.roster, set(range(len(self.configs)))
        training, waiting = roster.training, list(roster.waiting)
        assert len(training) == len(set(training)) == len(roster.row_of), "each one trains in one row"
        assert len(waiting) == len(set(waiting))
        assert set(training) | set(waiting) | self.gone == everyone
        assert not set(training) & set(waiting) | set(training) & self.gone | set(waiting) & self.gone
        assert len(training) <= self.width
        rows = rows_of(roster)
        assert all(rows), "no row without members"
        assert roster.is_shared == any(len(row) > 1 for row in rows)
        for row in rows:
            assert len({(self.configs[m].model_copy(update={"clip": None}), self.seeds[m]) for m in row}) == 1
            assert len({self.admitted[m] for m in row}) == 1
            seen = max(self.highest.get(m, 0.0) for m in row)
            assert len(row) == 1 or all(clip > seen for clip in clips(roster, row)), "clipping would have told"


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.tuples(CONFIGS, st.integers(0, 1)), min_size=1, max_size=9), st.integers(1, 6))
def test_members_wait_train_in_one_row_or_are_gone_and_share_only_what_is_one_run(data, members, width: int) -> None:
    life = Life([c for c, _ in members], [seed for _, seed in members], width)
    while life.roster.waiting or life.roster.training:
        life.admit()
        life.check()
        life.place(len(rows_of(life.roster)) + data.draw(st.integers(0, 3)))
        for _ in range(data.draw(st.integers(0, 2))):
            num_rows = len(rows_of(life.roster))
            life.train(data.draw(st.lists(NORMS, min_size=num_rows, max_size=num_rows)))
            life.check()
            if data.draw(st.booleans()):
                life.place(len(rows_of(life.roster)))
        training = life.roster.training
        life.drop(data.draw(st.sets(st.sampled_from(training), min_size=1)))
        life.check()
    assert life.gone == set(range(len(members)))


def one_row(*thresholds: float | None, width: int = 10) -> Roster:
    roster = Roster([config(clip) for clip in thresholds], [0] * len(thresholds), width)
    roster.admit()
    roster.places(len(rows_of(roster)))
    return roster


def test_members_that_differ_in_clip_alone_share_a_row_until_a_norm_comes_near() -> None:
    roster = one_row(None, 1000.0, 1.0, 0.5)
    assert rows_of(roster) == [[0, 1, 2, 3]]
    assert not roster.part([0.1])
    assert rows_of(roster) == [[0, 1, 2, 3]]
    assert not roster.has_clipped([0.49])
    assert roster.part([0.49]), "0.5 is near"
    assert rows_of(roster) == [[0, 1, 2], [3]]
    assert roster.has_clipped([2.0, 2.0])
    assert roster.part([2.0, 2.0])
    assert rows_of(roster) == [[0, 1], [3], [2]]
    assert [place.row for place in roster.places(3)] == [0, 0, 0], "3 and 2 were forked from the first row"
    assert [place.row for place in roster.places(4)] == [0, 1, 2, 0]


def test_a_fork_has_its_own_threshold_and_the_state_of_the_row_it_left() -> None:
    roster = Roster([config(lr=0.5), config(None), config(1.0)], [0, 7, 7], 3)
    roster.admit()
    assert roster.places(2) == [Place(config(lr=0.5), 0, None), Place(config(None), 7, None)]
    roster.part([0.0, 5.0])
    assert roster.places(3) == [
        Place(config(lr=0.5), 0, 0),
        Place(config(None), 7, 1),
        Place(config(1.0), 7, 1),
    ]


@pytest.mark.parametrize("thresholds", [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0)])
def test_where_all_thresholds_are_reached_one_member_keeps_the_row(thresholds) -> None:
    roster = one_row(*thresholds)
    assert roster.part([5.0])
    assert sorted(rows_of(roster)) == [[0], [1]]
    assert [place.config for place in roster.places(2)] == [roster.configs[m] for m in roster.training]


@pytest.mark.parametrize("norm", [1e-7, 5e-7, 1e-6])
def test_norms_of_the_size_of_the_rounding_guard_part_a_row_too(norm: float) -> None:
    # The optimizer compares the threshold with norm + 1e-6, as torch does.
    roster = one_row(None, norm + 0.9e-6)
    assert roster.has_clipped([norm])
    assert roster.part([norm])
    assert not roster.is_shared


def test_a_threshold_that_a_first_norm_has_shown_to_be_near_is_not_shared_again() -> None:
    members = [config(clip, lr=lr) for lr in (0.1, 0.2) for clip in (None, 1000.0, 0.5)]
    roster = Roster(members, [0] * 6, 3)
    roster.admit()
    assert roster.is_surprise_near, "nobody knows the first norm yet"
    roster.note_first_norms(dict.fromkeys([0, 1, 2], 3.0))
    assert not roster.is_surprise_near
    roster.drop([0, 1, 2])
    roster.admit()
    assert rows_of(roster) == [[3, 4], [5]], "the first gradient does not depend on the learning rate"
    assert not roster.is_surprise_near


def test_a_first_norm_is_that_of_its_seed_and_of_what_shapes_the_loss() -> None:
    members = [config(clip, curvature=c) for c, clip in ((1.0, None), (1.0, 2.0), (9.0, None), (9.0, 2.0))]
    roster = Roster(members * 2, [0] * 4 + [1] * 4, 2)
    for _ in range(4):
        roster.admit()
        assert roster.is_shared
        assert roster.is_surprise_near
        roster.note_first_norms(dict.fromkeys(roster.training, 3.0))
        roster.drop(roster.training)


def test_a_first_norm_that_is_no_number_is_shared_with_nobody() -> None:
    roster = one_row(None, 1000.0, None, 1000.0, width=2)
    roster.note_first_norms(dict.fromkeys(roster.training, float("nan")))
    roster.drop(roster.training)
    roster.admit()
    assert rows_of(roster) == [[2], [3]]


ZCLIP, ADAGC = {"zclip": 0.5, "zclip_warmup": 2}, {"adagc": 1.5, "adagc_warmup": 2}


@pytest.mark.parametrize(
    ("other", "clip", "bites"),
    [(ZCLIP, 1.9, True), (ZCLIP, 2.4, False), (ADAGC, 2.4, True), (ADAGC, 1e3, False)],
    ids=["in the warmup of zclip", "above what zclip leaves", "adagc", "out of reach"],
)
def test_beside_other_clipping_members_are_one_run_until_a_norm_reaches_a_threshold(
    other, clip: float, bites: bool
) -> None:
    """What sharing a row rests on, shown by members that train apart."""
    common = {"steps": 20, "lr": 0.05, "curvature": 2.0, "noise": 0.5}
    members = [QuadraticConfig(**common, **other, clip=threshold) for threshold in (None, 1e6, clip)]
    roster = Roster(members, [1] * 3, 3)
    roster.admit()
    assert rows_of(roster) == [[0, 1, 2]]
    trainer = trainer_of("quadratic", members, [1] * 3)
    plain = trainer_of("quadratic", [QuadraticConfig(**common)], [1])
    highest = 0.0
    for _ in range(20):
        highest = max(highest, float(trainer.step()["grad_norm"][0]))
        plain.step()
        params = trainer.state_dict()["params"]
        assert torch.equal(params[0], params[1])
        assert torch.equal(params[0], params[2]) or roster.has_clipped([highest])
    assert torch.equal(params[0], params[2]) != bites
    assert not torch.equal(params[0], plain.state_dict()["params"][0]), "the other clipping did act"


FIELDS = sorted(OBJECTIVES["quadratic"].per_member_fields - {"clip"})


@pytest.mark.parametrize("field", FIELDS)
def test_a_first_norm_is_known_of_those_whose_first_gradient_is_the_same(field: str) -> None:
    values = {**COMMON_VALUES, "curvature": [0.5, 1.0], "noise": [0.1, 1.0]}[field]
    beside = {name: value for name, value in COMMON_BESIDE.get(field, {}).items() if name != "lr"}
    members = [config(clip, **beside, **{field: value}) for value in values[:2] for clip in (None, 1000.0)]
    norms = trainer_of("quadratic", members, [0] * 4).step()["grad_norm"].tolist()
    roster = Roster(members, [0] * 4, 2)
    roster.admit()
    roster.note_first_norms(dict(zip(roster.training, norms, strict=False)))
    roster.drop(roster.training)
    roster.admit()
    assert rows_of(roster) == [[2, 3]]
    assert roster.is_surprise_near == (norms[0] != norms[2])


def test_a_learning_rate_of_a_layer_group_is_not_in_the_first_gradient_and_a_factor_on_it_is() -> None:
    shape = {"steps": 10, "width": 8, "context": 8}
    for change, is_known in (({"embedding_lr": 0.1, "head_lr": 2.0}, True), ({"embedding_grad": 0.1}, False)):
        members = [GptConfig(**shape, clip=clip, **own) for own in ({}, change) for clip in (None, 1000.0)]
        roster = Roster(members, [0] * 4, 2)
        roster.admit()
        roster.note_first_norms(dict.fromkeys(roster.training, 3.0))
        roster.drop(roster.training)
        roster.admit()
        assert rows_of(roster) == [[2, 3]]
        assert roster.is_surprise_near != is_known
