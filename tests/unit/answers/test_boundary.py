from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator import load
from orchestrator.maps.all_sweeps import all_sweeps

GRID = "axes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5]}}\n"
AXES = {
    "grid": GRID,
    "scattered": "axes: {lr: {log: [0.001, 1.0]}, beta1: {linear: [0.0, 0.9]}}\nsample: {method: sobol, num: 40}\n",
}


@pytest.mark.parametrize("kind", AXES)
def test_each_row_is_a_line_and_a_bracket_or_an_interval_around_the_edge(tmp_path: Path, kind: str) -> None:
    sweep = sweep_of(AXES[kind])
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep, ["stable" if trial.cell["lr"] < 0.05 else "diverged" for trial in sweep.trials])
    answer = load(tmp_path / "case").boundary()
    assert (answer.sweep, answer.along, answer.is_fitted) == ("case", "lr", kind == "scattered")
    assert len(answer.rows) == len(answer.lines()) - 1
    for row in answer.rows:
        assert list(row["setting"]) == ["beta1"]
        (edge,) = row["edges"]
        low, high = (edge["low"], edge["high"]) if answer.is_fitted else (edge["stable"], edge["not_stable"])
        assert low < edge["at"] < high
        assert low < 0.05 < high


@pytest.fixture
def rising(tmp_path: Path) -> Path:
    """A stable grid whose loss is ten times the learning rate."""
    sweep = sweep_of(GRID)
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep, ["stable"] * 8, [10 * trial.cell["lr"] for trial in sweep.trials])
    return tmp_path / "case"


def test_a_level_of_a_metric_is_passed_in_rows_as_the_edge_is(rising: Path) -> None:
    answer = load(rising).boundary(level=("final_loss", 0.5))
    assert answer.lines()[1] == "beta1=0.5  level passed near lr=0.0316 (lr 0.01 is below, 0.1 is not)"
    assert (answer.metric, answer.level, answer.along, answer.is_fitted) == ("final_loss", 0.5, "lr", False)
    for row in answer.rows:
        (edge,) = row["edges"]
        assert (row["kind"], len(row["not_known"]), edge["below"], edge["above"]) == ("crosses", 0, 0.01, 0.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--level", "final_loss"), "--level: final_loss: is not METRIC=NUMBER"),
        (("--level", "final_loss=inf"), "is not METRIC=NUMBER"),
        (("--level", "final_loss=3", "--degraded"), "--degraded"),
        (("--level", "loss_of_mine=3"), "'loss_of_mine' is unknown"),
    ],
)
def test_half_a_level_is_refused(rising: Path, command_line, options: tuple[str, ...], says: str) -> None:
    code, text = command_line("boundary", str(rising), *options)
    assert (code, says in text) == (2, True), text


def test_scattered_cells_have_a_surface_of_what_is_below_the_level(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {lr: {log: [1e-3, 1]}}\nsample: {method: sobol, num: 16}\n")
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep, ["stable"] * 16, [trial.cell["lr"] for trial in sweep.trials])
    found = load(tmp_path / "case").boundary(level=("final_loss", 0.1))
    assert (found.is_fitted, found.metric, found.level) == (True, "final_loss", 0.1)
    (edge,) = found.rows[0]["edges"]
    assert edge["at"] == pytest.approx(0.1, rel=0.5)
    assert "half of the trials have final_loss below 0.1" in found.lines()[0]


ORDER = "axes: {eps: {values: [1, 2]}, beta1: {values: [0.1, 0.2, 0.3]}, lr: {values: [0.1, 0.2]}}\n"


def test_by_default_the_edge_lies_along_the_axis_that_moves_stability_most(tmp_path: Path) -> None:
    sweep = sweep_of(ORDER)
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep, ["stable" if t.cell["lr"] < t.cell["beta1"] else "diverged" for t in sweep.trials])
    case = load(tmp_path / "case")
    assert (case.boundary().along, list(case.boundary().rows[0]["setting"])) == ("beta1", ["eps"])
    assert case.boundary(across="beta1").along == "lr"
    assert case.boundary(where={"beta1": 0.2}).along == "lr"
    assert case.boundary(along="eps").along == "eps"
    assert [found.edge.axis for found in all_sweeps(tmp_path)] == ["beta1"]


def test_where_nothing_moves_stability_the_edge_lies_along_the_first_axis(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of(ORDER), ["stable"] * 12)
    assert load(tmp_path / "case").boundary().along == "eps"


def test_a_level_lies_along_the_axis_that_moves_the_metric_over_it(tmp_path: Path) -> None:
    sweep = sweep_of(ORDER)
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep, ["stable"] * 12, [t.cell["lr"] for t in sweep.trials])
    assert load(tmp_path / "case").boundary(level=("final_loss", 0.15)).along == "lr"
