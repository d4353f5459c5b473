from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.base import QuadraticConfig, RowSpec
from orchestrator.worker.members import Roster


def config(lr: float = 0.1) -> QuadraticConfig:
    return QuadraticConfig(steps=10, lr=lr)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 2**9 - 1)), max_size=12),
    st.integers(1, 9),
    st.integers(1, 6),
)
def test_members_wait_in_line_train_in_a_row_of_their_own_or_are_gone(rounds, num_members: int, width: int) -> None:
    """Of each round: whether the pack is resumed, how many rows pad it, and a bit for each member that leaves."""
    configs, seeds = [config(0.1 * (1 + m)) for m in range(num_members)], [m % 3 for m in range(num_members)]
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
    roster = Roster([config(lr) for lr in (0.1, 0.2, 0.3)], [5, 6, 7], 2)
    roster.admit()
    assert roster.row_specs(2) == [RowSpec(config(0.1), 5, None), RowSpec(config(0.2), 6, None)]
    roster.drop([0])
    roster.admit()
    assert roster.row_specs(4) == [
        RowSpec(config(0.2), 6, 1),
        RowSpec(config(0.3), 7, None),
        *[RowSpec(config(0.2), 6, 1)] * 2,
    ]


def test_a_resumed_roster_goes_on_with_a_trainer_that_holds_its_rows() -> None:
    roster = Roster([config(lr) for lr in (0.1, 0.2, 0.3)], [5, 6, 7], 2)
    roster.drop([0])
    roster.admit()
    resumed = Roster(roster.configs, roster.seeds, 2)
    resumed.load_state_dict(roster.state_dict())
    assert [row.source for row in resumed.row_specs(2)] == [0, 1]
