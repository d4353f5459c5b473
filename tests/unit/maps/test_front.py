"""The front of a sweep: who is on it, whose margins it has, and what it says."""

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_cases import ledger_at, map_ledger, record, sweep_of
from tiers import examples

from orchestrator.answers.front import FrontAnswer
from orchestrator.base.errors import InputError
from orchestrator.maps.front import Front, front, front_table, unbeaten
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.table import read_table

ROW = "axes: {lr: {log: [1e-3, 10], num: 5}}\n"
GRID = "axes: {lr: {log: [1e-3, 1e-1], num: 3}, eps: {log: [1e-8, 1e-4], num: 3}}\n"
SCATTERED = "sample: {method: sobol, num: 40}\naxes: {lr: {log: [0.001, 1.0]}, beta1: {linear: [0.1, 0.9]}}\n"
WORDS = "axes: {optimizer: {values: [sgd, adamw]}}\n"
LABELS = st.sampled_from(["stable", "stable", "stable", "degraded", "spiked", "diverged", "planned"])


def found_in(folder: Path, labels, losses, body: str = ROW, **options) -> Front:
    with ledger_at(folder) as ledger:
        map_ledger(ledger, sweep_of(body), labels, losses)
        return front(read_table(ledger), **{"metric": "final_loss", **options})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))
@given(labels=st.lists(LABELS, min_size=9, max_size=9), losses=st.lists(st.integers(1, 5), min_size=9, max_size=9))
def test_no_candidate_beats_a_member_and_every_other_one_is_beaten_by_the_member_that_is_named(
    tmp_path_factory, labels: list[str], losses: list[int]
) -> None:
    found = found_in(tmp_path_factory.mktemp("front"), labels, list(map(float, losses)), GRID)
    candidates = [*found.members, *found.beaten_cells]

    def beats(one, other) -> bool:
        (loss, margin), (other_loss, other_margin) = one.numbers, other.numbers
        return loss <= other_loss and margin >= other_margin and one.numbers != other.numbers

    assert not any(beats(other, member) for member in found.members for other in candidates)
    assert all(beats(cell.beaten_by, cell) and cell.beaten_by in found.members for cell in found.beaten_cells)
    assert {cell.state for cell in candidates} <= {"stable"}
    stable = sum(cell.state == "stable" for cell in found.cells)
    assert len(candidates) + len(found.islands) == stable, "and each stable cell is one, except islands"
    assert FrontAnswer(found).rendered("json")
    assert FrontAnswer(found).lines()


@pytest.mark.parametrize("body", [GRID, SCATTERED], ids=["grid", "scattered"])
def test_margins_are_those_of_recommend(tmp_path: Path, body: str) -> None:
    sweep = sweep_of(body)
    labels = ["stable" if trial.cell["lr"] < 0.05 else "diverged" for trial in sweep.trials]
    losses = [1 / trial.cell["lr"] for trial in sweep.trials]
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, labels, losses)
        found, recommended = front(read_table(ledger)), recommend(read_table(ledger))
        along = front(read_table(ledger), along="lr")
    told = [cell for cell in found.cells if cell.against is not None]
    own = {tuple(candidate.setting.values()): candidate for candidate in recommended.candidates}
    assert {tuple(cell.setting.values()): cell.numbers for cell in told} == {
        key: (candidate.loss, candidate.margin) for key, candidate in own.items()
    }
    assert found.is_fitted == (body != GRID)
    for cell in along.cells:
        margins = own[key].margins if (key := tuple(cell.setting.values())) in own else ()
        known = [margin.known for margin in margins if margin.axis == "lr" and not margin.is_open]
        assert cell.against == (min(known, default=math.inf) if margins else None)


def test_the_recommended_setting_is_the_first_of_the_front_that_is_far_enough(tmp_path: Path) -> None:
    labels, losses = ["stable"] * 4 + ["diverged"], [4.0, 3.0, 2.0, 1.0, None]
    found = found_in(tmp_path, labels, losses)
    with ledger_at(tmp_path) as ledger:
        for at_least in (1, 5, 50, 500):
            chosen = recommend(read_table(ledger), at_least, "final_loss").chosen
            first = next(cell for cell in found.members if cell.numbers[1] >= at_least)
            assert chosen is not None
            assert chosen.setting == first.setting


def test_it_says_what_each_step_costs_and_gives_and_what_is_beaten(tmp_path: Path) -> None:
    labels = ["stable", "stable", "stable", "stable", "diverged"]
    assert FrontAnswer(found_in(tmp_path, labels, [3.0, 4.0, 2.5, 2.0, None])).lines() == [
        "case: low final loss against a wide margin to the edge",
        "no setting beats these 3 in both, among 4 that are stable on all seeds:",
        "  lr=1: final loss 2, margin 1 (lr up): the lowest loss",
        "  lr=0.1: final loss 2.5, margin 10 (lr up): costs 0.5 (25 %) of loss for a margin 10 times as wide",
        "  lr=0.001: final loss 3, margin 1e+03 (lr up): costs 0.5 (20 %) of loss for a margin 100 times as wide",
        "beaten by one of these: 1",
        "  lr=0.01: final loss 4, margin 100 (lr up): by lr=0.001",
        "no candidates: 1 of 5 cells (1 diverged)",
    ]


def test_where_no_edge_was_seen_the_lowest_loss_beats_all(tmp_path: Path) -> None:
    found = found_in(tmp_path, ["stable"] * 5, [5.0, 4.0, 3.0, 2.0, 1.0])
    assert [cell.numbers for cell in found.members] == [(1.0, math.inf)]
    lines = FrontAnswer(found).lines()
    assert "  lr=10: final loss 1, margin open: the lowest loss" in lines
    assert any(line.startswith("open: every direction is stable to the end") for line in lines)
    (told,) = FrontAnswer(found).to_plain()["front"]
    assert (told["margin"], told["is_open"]) == (None, True)


def test_nothing_stable_is_no_front(tmp_path: Path) -> None:
    for against in ("margin", "steps"):
        found = found_in(tmp_path / against, ["diverged"] * 5, [None] * 5, against=against)
        assert FrontAnswer(found).lines() == [
            "none: no cell of 5 can be compared, which needs all seeds stable (5 diverged)"
        ]
        assert found.front == []


def test_the_table_has_every_cell_and_numbers_of_the_candidates(tmp_path: Path) -> None:
    table = front_table(
        found_in(tmp_path, ["stable", "stable", "stable", "spiked", "planned"], [2.0, 3.0, 1.0, 0.5, None])
    )
    assert list(table.columns) == ["lr", "state", "num_seeds", "final_loss", "margin", "kind", "limit"]
    assert list(table.kind) == ["front", "beaten", "front", "no candidate", "no candidate"]
    assert list(table.margin)[:3] == pytest.approx([100, 10, 1])
    assert list(table.margin)[3:] == [None, None]


def test_steps_are_those_to_a_target_that_all_settings_reach(tmp_path: Path) -> None:
    """Every curve falls from 2 to 1 in 20 steps."""
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(ROW), ["stable"] * 3 + ["diverged"] * 2, [1.2, 1.4, 1.5, None, None])
        found = front(read_table(ledger), "final_loss", "steps")
        assert found.target == 1.5
        assert [cell.setting["lr"] for cell in found.members] == [pytest.approx(1e-3)]
        sooner = front(read_table(ledger), "final_loss", "steps", target=1.7).members[0].numbers[1]
        assert sooner < found.members[0].numbers[1] <= 19
        with pytest.raises(InputError, match="raise the target"):
            front(read_table(ledger), "final_loss", "steps", target=0.5)
    assert "case: low final loss against few steps to a training loss of 1.5" in FrontAnswer(found).lines()


def test_a_column_is_to_be_low_and_the_share_learned_high(tmp_path: Path) -> None:
    labels, losses = ["stable"] * 3 + ["diverged"] * 2, [1.0, 2.0, 3.0, None, None]
    found = found_in(tmp_path, labels, losses, against="learned_share")
    assert len(found.members) == 1, "who has the lowest loss has learned most"
    found = found_in(tmp_path / "steps", labels, losses, against="steps_done")
    assert "all 3 have the same steps done, so there is nothing to weigh" in FrontAnswer(found).lines()


@pytest.mark.parametrize(
    ("options", "body", "says"),
    [
        ({"metric": "onset_step"}, ROW, "validation_loss"),
        ({"against": "speed"}, ROW, "choose one of margin, steps, final_loss"),
        ({"against": "final_loss"}, ROW, "is the loss itself"),
        ({"against": "validation_loss"}, ROW, "no stable cell has validation loss"),
        ({"along": "beta1"}, ROW, "axes: lr"),
        ({"along": "lr", "against": "steps"}, ROW, "has no meaning for steps"),
        ({"target": 1.0}, ROW, "choose --against steps"),
        ({}, WORDS, "no axis has values in an order"),
        ({"along": "optimizer"}, ROW.replace("}}", "}, optimizer: {values: [sgd]}}"), "optimizer has no margins"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: dict, body: str, says: str) -> None:
    num = len(sweep_of(body).trials)
    with pytest.raises(InputError, match=says):
        found_in(tmp_path, ["stable"] * num, [1.0] * num, body, **options)


# Few different numbers, so that many are equal; open margins are infinite.
NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.just(float("-inf")))
POINTS = st.lists(st.tuples(st.integers(0, 4).map(float), NUMBERS), max_size=24)


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one != other


@given(POINTS)
def test_no_point_beats_one_of_the_front_and_each_other_one_is_beaten_by_one_of_it(points) -> None:
    front = unbeaten(points)
    assert not any(beats(other, points[i]) for i in front for other in points)
    others = set(range(len(points))) - set(front)
    assert all(any(beats(points[i], points[other]) for i in front) for other in others)


@given(POINTS)
def test_along_the_front_one_number_rises_and_the_other_falls(points) -> None:
    found = list(dict.fromkeys(points[i] for i in unbeaten(points)))
    assert found == sorted(found)
    assert [second for _, second in found] == sorted({second for _, second in found}, reverse=True)


@given(POINTS, st.randoms())
def test_the_front_does_not_depend_on_the_order_of_points(points, random) -> None:
    shuffled = random.sample(points, len(points))
    assert sorted(points[i] for i in unbeaten(points)) == sorted(shuffled[i] for i in unbeaten(shuffled))


def test_an_island_beyond_the_edge_is_named_and_never_on_the_front(tmp_path: Path) -> None:
    body = "axes: {lr: {log: [1e-3, 10], num: 5}}\n"
    labels = ["stable", "stable", "diverged", "stable", "diverged"]
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(body), labels, [3.0, 2.0, None, 0.5, None])
        table = read_table(ledger)
        for against in ("margin", "num_spikes"):
            found = front(table, "final_loss", against)
            assert found.members[0].setting["lr"] == pytest.approx(1e-2)
            assert found.islands == [{"lr": pytest.approx(1)}]
    said = "islands, which do not count: stable, but cut off from the stable region: lr=1"
    assert said in FrontAnswer(found).lines()
