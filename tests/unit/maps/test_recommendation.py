from pathlib import Path

import pytest
from sweep_cases import BASE, ids, ledger_at, map_ledger, record, sweep_of

from orchestrator.answers.recommend import RecommendAnswer
from orchestrator.base.errors import InputError
from orchestrator.maps.edges import StableRule
from orchestrator.maps.recommendation import Recommendation, recommend
from orchestrator.maps.table import read_table
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROW = "axes: {lr: {log: [1e-3, 10], num: 5}}\n"


def recommended(folder: Path, labels: list[str], losses: list[float | None], body: str = ROW, **options):
    with ledger_at(folder) as ledger:
        record(ledger, sweep_of(body), labels, losses)
        return recommend(read_table(ledger), **{"metric": "final_loss", **options})


def lines_of(found: Recommendation) -> list[str]:
    return RecommendAnswer("", found).lines()


def test_it_is_the_lowest_loss_that_is_far_enough_from_the_edge(tmp_path: Path) -> None:
    labels = ["stable", "stable", "stable", "diverged", "diverged"]
    found = recommended(tmp_path, labels, [3.0, 2.0, 1.0, None, None])
    assert found.chosen.setting == {"lr": pytest.approx(1e-2)}
    assert (found.chosen.loss, found.chosen.margin) == (2.0, pytest.approx(10))
    lines = lines_of(found)
    assert lines[0] == "lr=0.01: median final loss 2, 1 of 1 seeds stable"
    assert "  lr up: stable to 0.1 (factor 10), not at 1 (factor 100)" in lines
    assert "  lr down: open: stable to 0.001 (factor 10), where what was tried ends" in lines
    assert "  lr=0.1: median final loss 1, margin 1" in lines, "why the lowest loss was not taken"
    assert lines[-1] == "chosen from 3 cells of 5 that are stable on all seeds"


COARSE = (["stable", "stable", "stable", "diverged", "diverged"], [3.0, 2.0, 1.4, None, None])


def test_a_grid_that_is_too_coarse_is_said_with_the_command_that_adds_the_value(tmp_path: Path) -> None:
    found = recommended(tmp_path, *COARSE)
    assert found.chosen.name == "lr=0.01", "the margin of the better one is not known to be wide enough"
    lines = RecommendAnswer("case", found).lines()
    at = lines.index(
        "the grid is too coarse to judge lr=0.1 (median final loss 1.4, 0.6 better): nothing was tried between lr=0.1 "
        "and 1"
    )
    assert lines[at + 1] == "  `sweep run case --axis lr=values:0.001,0.01,0.1,0.202,1.0,10.0` adds lr=0.202"
    option = lines[at + 1].split("`")[1].partition("--axis ")[2]
    finer = build_sweep(parse_document(BASE + ROW, "case.yaml"), Overrides(axes=[option]))
    assert {*ids(sweep_of(ROW))} < {*ids(finer)}, "what was trained is kept"
    assert RecommendAnswer("case", found, is_imported=True).lines()[at + 1] == "  train lr=0.202 too"


@pytest.mark.parametrize(("label", "lr"), [("stable", 0.202), ("diverged", 0.01)])
def test_the_added_value_decides(tmp_path: Path, label: str, lr: float) -> None:
    body = "axes: {lr: {values: [0.001, 0.01, 0.1, 0.202, 1.0, 10.0]}}\n"
    labels, losses = [*COARSE[0][:3], label, *COARSE[0][3:]], [*COARSE[1][:3], 1.3, *COARSE[1][3:]]
    found = recommended(tmp_path, labels, losses, body)
    judged = next(candidate for candidate in found.candidates if candidate.setting["lr"] == 0.1)
    assert (judged.margin >= 2) == (label == "stable")
    assert (found.untried is None) == (label == "diverged"), "then the next one is the best whose margin is open"
    if found.untried is not None:
        assert found.untried.setting["lr"] == lr


@pytest.mark.parametrize(
    ("labels", "body"),
    [
        (COARSE[0][:3], "axes: {lr: {values: [0.1, 0.2, 0.3]}}\n"),
        (["stable", "planned", "diverged"], "axes: {lr: {values: [0.1, 0.2, 2]}}\n"),
        (["stable", "stable", "diverged"], "axes: {lr: {values: [2, 4, 5]}}\n"),
    ],
)
def test_a_grid_that_tells_is_not_called_coarse(tmp_path: Path, labels: list[str], body: str) -> None:
    assert recommended(tmp_path, labels, [3.0, 2.0, 1.0], body).untried is None


def test_a_cell_whose_neighbour_was_not_tried_is_judged_by_a_value_between(tmp_path: Path) -> None:
    found = recommended(
        tmp_path, ["stable", "stable", "planned"], [3.0, 2.4, None], "axes: {lr: {values: [1, 9, 90]}}\n"
    )
    assert (found.chosen.name, found.untried.setting["lr"]) == ("lr=1", 9), "the recommended one learns less"
    assert (found.untried.values, found.untried.between) == ({"lr": pytest.approx(18.18)}, {"lr": (9, 90)})


def test_whole_numbers_stay_whole(tmp_path: Path) -> None:
    found = recommended(tmp_path, ["diverged", "stable"], [None, 1.0], "axes: {warmup: {values: [2, 16]}}\n")
    assert found.untried.values == {"warmup": 7}
    above = recommended(
        tmp_path / "beta", ["stable", "diverged"], [1.0, None], "axes: {beta2: {log1m: [0.9, 0.999], num: 2}}\n"
    )
    assert above.untried.values == {"beta2": pytest.approx(1 - 0.1 / 2.02, abs=3e-4)}


def test_a_stable_direction_says_from_where_on_little_is_learned(tmp_path: Path) -> None:
    body = "axes: {lr: {log: [1e-6, 1], num: 7}}\n"
    labels = ["degraded", "degraded", "stable", "stable", "stable", "diverged", "diverged"]
    losses = [900.0, 900.0, 3.0, 2.0, 1.0, None, None]
    found = recommended(tmp_path, labels, losses, body)
    down, up = found.chosen.margins
    assert (down.first_degraded, up.first_degraded) == (pytest.approx(1e-5), None)
    lines = lines_of(found)
    assert (
        "  lr down: open: inside the edge to 1e-6 (factor 1e+03), degraded from 1e-5, where what was tried ends"
        in lines
    )
    counted = recommended(tmp_path / "counted", labels, losses, body, rule=StableRule(True))
    assert all(margin.first_degraded is None for margin in counted.chosen.margins), "there it is the edge"


def test_there_is_no_factor_from_zero(tmp_path: Path) -> None:
    found = recommended(
        tmp_path, ["stable", "stable", "diverged"], [1.0, 2.0, None], "axes: {warmup: {values: [0, 5, 9]}}\n"
    )
    assert "  warmup up: stable to 5, not at 9" in lines_of(found)


def test_more_margin_costs_loss(tmp_path: Path) -> None:
    labels, losses = ["stable", "stable", "stable", "diverged", "diverged"], [3.0, 2.0, 1.0, None, None]
    margins = {1.0: 1e-1, 5.0: 1e-2, 50.0: 1e-3}
    for i, (at_least, lr) in enumerate(margins.items()):
        found = recommended(tmp_path / str(i), labels, losses, at_least=at_least)
        assert found.chosen.setting["lr"] == pytest.approx(lr)


def test_none_is_an_answer_and_says_what_would_pass(tmp_path: Path) -> None:
    found = recommended(tmp_path, ["stable", "diverged", "stable", "stable", "spiked"], [1.0] * 5)
    assert found.chosen is None
    lines = lines_of(found)
    assert lines[0].startswith("none: each of the 2 cells that are stable on all seeds has an edge")
    assert any(line.startswith("--margin 1 would take it") for line in lines)
    nothing = recommended(tmp_path / "no", ["diverged"] * 5, [None] * 5)
    assert lines_of(nothing) == ["none: no cell of 5 is stable on all the seeds that were asked for"]


def test_an_island_beyond_the_edge_is_named_and_never_recommended(tmp_path: Path) -> None:
    labels = ["stable", "stable", "diverged", "stable", "diverged"]
    found = recommended(tmp_path, labels, [3.0, 2.0, None, 0.5, None], at_least=1.0)
    assert [candidate.loss for candidate in found.candidates] == [2.0, 3.0]
    assert found.chosen.loss == 2.0
    assert [island.setting["lr"] for island in found.islands] == [pytest.approx(1)]
    lines = lines_of(found)
    at = lines.index("islands, which do not count: stable, but cut off from the stable region:")
    assert lines[at + 1] == "  lr=1: median final loss 0.5, margin 1"
    assert lines[-1] == "chosen from 2 cells of 5 that are stable on all seeds, without islands"
    none = recommended(tmp_path / "none", labels, [3.0, 2.0, None, 0.5, None], at_least=1e3)
    assert "--margin 10 would take it; a finer grid may show more room" in lines_of(none)


def test_what_is_not_known_makes_no_island(tmp_path: Path) -> None:
    labels = ["stable", "stable", "planned", "stable", "diverged"]
    found = recommended(tmp_path, labels, [3.0, 2.0, None, 0.5, None], at_least=1.0)
    assert (found.chosen.loss, found.islands) == (0.5, ())


def test_each_value_without_an_order_has_a_stable_region_of_its_own(tmp_path: Path) -> None:
    body = "axes: {lr: {values: [0.1, 0.2, 0.3]}, optimizer: {values: [sgd, adamw]}}\n"
    labels = ["diverged", "stable", "diverged", "stable", "stable", "diverged"]
    assert not recommended(tmp_path, labels, [None, 1.0, None, 1.0, 1.0, None], body).islands


def test_a_way_around_over_another_axis_connects(tmp_path: Path) -> None:
    body = "axes: {lr: {values: [0.1, 0.2, 0.3]}, warmup: {values: [0, 5]}}\n"
    labels = ["stable", "stable", "diverged", "stable", "stable", "stable"]
    assert not recommended(tmp_path, labels, [1.0] * 6, body).islands


def test_a_cell_with_a_seed_that_spiked_or_has_not_run_is_no_candidate(tmp_path: Path) -> None:
    body = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2, 0.3]}}\n"
    labels = ["stable", "spiked", "stable", "planned", "stable", "stable"]
    found = recommended(tmp_path, labels, [0.1, 0.1, 0.1, None, 5.0, 7.0], body, at_least=1.0)
    assert found.chosen.setting == {"lr": 0.3}
    assert found.chosen.loss == 6.0


def test_an_edge_counts_along_every_axis(tmp_path: Path) -> None:
    body = "axes: {lr: {log: [1e-3, 1e-1], num: 3}, eps: {log: [1e-8, 1e-4], num: 3}}\n"
    labels = ["stable", "stable", "diverged", "stable", "stable", "stable", "stable", "stable", "stable"]
    losses = [5.0, 1.0, None, 5.0, 3.0, 2.0, 5.0, 4.0, 6.0]
    found = recommended(tmp_path, labels, losses, body)
    # lr=1e-3 eps=1e-6 touches the edge along eps, lr=1e-2 eps=1e-4 along lr.
    assert found.chosen.name == "lr=0.01 eps=1e-6"
    assert [candidate.loss for candidate in found.candidates[:3]] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("options", "body", "says"),
    [
        ({"metric": "onset_step"}, ROW, "validation_loss"),
        ({"at_least": 0.5}, ROW, "from 1 up"),
        ({"at_least": float("nan")}, ROW, "from 1 up"),
        ({}, "axes: {lr: {log: [1e-4, 1]}}\nsample: {method: random, num: 5}\n", "too few to fit"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: dict, body: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        recommended(tmp_path, ["stable"] * 5, [1.0] * 5, body, **options)


def test_an_untried_cell_within_the_margin_is_no_margin(tmp_path: Path) -> None:
    body = "axes: {lr: {values: [0.1, 0.2, 0.4]}}\n"
    labels, losses = ["stable", "planned", "diverged"], [1.0, None, None]
    assert recommended(tmp_path / "8", labels, losses, body, at_least=8.0).chosen is None
    found = recommended(tmp_path / "1", labels, losses, body, at_least=1.0)
    lines = lines_of(found)
    assert lines[0].startswith("lr=0.1: ")
    assert "  lr up: stable to 0.1 (factor 1), not known at 0.2, not at 0.4 (factor 4)" in lines
    assert "  lr down: open: it is the axis's end" in lines


@pytest.mark.parametrize("missing", ["planned", "errored", "interrupted"])
def test_what_has_no_result_is_no_open_end(tmp_path: Path, missing: str) -> None:
    body = "axes: {lr: {values: [0.1, 0.2]}}\n"
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep_of(body), ["stable", missing], [1.0, None])
        found = recommend(read_table(ledger), 2.0)
    assert found.chosen is None
    assert lines_of(found)[0].startswith("none: the one cell that is stable on all seeds has an edge")
