import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.answers._rows import named_rows
from orchestrator.answers.recommend import RecommendAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, Cell, Trial
from orchestrator.maps.axes import led
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.comparison import Comparison, compare, compared_maps
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.regions import state_beside
from orchestrator.maps.sensitivity import lr_sensitivity
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import map_table, trial_table
from orchestrator.mirrors.sweep_records import sweep_record
from orchestrator.pages.report import report_html
from orchestrator.render.maps import heatmap
from orchestrator.render.text_map import text_map

TIED = """
axes: {lr: {log: [0.01, 10], num: 4}, batch_size: {values: [8, 32]}}
tie:
  lr: lr * (batch_size / 32) ** 0.5
  warmup: batch_size / 4
"""
ZIPPED = """
axes:
  batch_size: {values: [64, 32, 16, 8]}
  lr: {log: [0.01, 10], num: 4}
  beta1: {values: [0.0, 0.5]}
zip: [[lr, batch_size]]
"""
CONDITIONAL = """
axes:
  beta1: {values: [0.0, 0.5, 0.9], when: {optimizer: sgd}}
  lr: {log: [0.01, 10], num: 4}
  optimizer: {values: [sgd, adamw]}
"""


def ledger_of(folder: Path, body: str, is_stable: Callable[[Trial], bool], name: str = "case"):
    """A finished sweep whose trials are stable where ``is_stable`` says so; the loss falls with lr."""
    sweep = sweep_of(body, f"name: {name}\nobjective: quadratic\nsteps: 20\n")
    ledger = ledger_at(folder)
    labels = ["stable" if is_stable(trial) else "diverged" for trial in sweep.trials]
    map_ledger(ledger, sweep, labels, [1 / trial.config["lr"] for trial in sweep.trials])
    return ledger


# --- ties ------------------------------------------------------------------------------------------


@pytest.fixture
def tied(tmp_path: Path):
    with ledger_of(tmp_path / "tied", TIED, lambda trial: trial.config["lr"] < 0.3) as ledger:
        yield ledger


def test_a_tied_axis_has_its_own_value_in_maps_and_in_trials_beside_the_effective_one(tied) -> None:
    trials = trial_table(read_table(tied))
    assert trials.lr.tolist() == [0.01, 0.01, 0.1, 0.1, 1.0, 1.0, 10.0, 10.0]
    assert trials.effective_lr.tolist() == [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0]
    assert trials.warmup.tolist() == [2, 8] * 4, "a tied field that is no axis has one value only"
    assert "effective_warmup" not in trials
    assert set(map_table(cell_map(read_table(tied))).lr) == set(trials.lr)


def test_a_map_says_what_the_values_of_a_tied_axis_are(tied) -> None:
    assert cell_map(read_table(tied)).note == "lr is the base value of the tie lr = lr * (batch_size / 32) ** 0.5"
    assert cell_map(read_table(tied), "batch_size", where={"lr": 0.1}).note == "lr = 0.1"


def test_the_setting_to_take_names_what_is_trained_with(tied) -> None:
    found = recommend(read_table(tied), 1.0)
    assert (found.chosen.setting, found.chosen.tied) == (
        {"lr": 0.1, "batch_size": 32},
        {"effective_lr": 0.1, "warmup": 8},
    )
    assert RecommendAnswer("", found).lines()[0].startswith("lr=0.1 batch_size=32 (effective_lr=0.1 warmup=8):")


def test_trackers_get_both_values_and_do_not_call_a_tied_field_fixed(tied) -> None:
    record = sweep_record(read_table(tied))
    values = record.cells[0].key.values
    assert {name: values[name] for name in ("lr", "effective_lr", "batch_size", "warmup")} == {
        "lr": 0.01, "effective_lr": 0.005, "batch_size": 8, "warmup": 2,
    }  # fmt: skip
    assert record.settings["tie.warmup"] == "batch_size / 4"
    assert "warmup" not in record.settings
    assert "fixed.warmup" not in record.tags


def test_a_cell_of_another_tie_is_another_cell_for_trackers(tied, tmp_path: Path) -> None:
    with ledger_of(tmp_path / "other", TIED.replace("0.5", "0.25"), lambda trial: True) as other:
        cells = [{cell.key.cell_id for cell in sweep_record(read_table(ledger)).cells} for ledger in (tied, other)]
    assert len(cells[0] & cells[1]) == 4, "those of the batch of 32, where both ties give the value of the axis"


# --- axes that advance together -----------------------------------------------------------------------


@pytest.fixture
def zipped(tmp_path: Path):
    with ledger_of(
        tmp_path / "zipped", ZIPPED, lambda trial: trial.cell["lr"] < 5 - 40 * trial.cell["beta1"] / 10
    ) as ledger:
        yield ledger


def test_the_first_of_the_axes_that_advance_together_stands_for_them_in_a_map(zipped) -> None:
    found = cell_map(read_table(zipped))
    assert (found.x.name, found.y.name, found.note) == ("lr", "beta1", "batch_size advances with lr")
    assert len(found.cells) == 8
    assert text_map(zipped.trials(), led(read_table(zipped).axes)).plain.startswith("beta1\n")


def test_the_edge_along_any_of_them_lies_between_neighbours_of_all(zipped) -> None:
    along_lr = [row.edges for row in GridMap(read_table(zipped)).rows()]
    along_size = [row.edges for row in GridMap(read_table(zipped), x="batch_size").rows()]
    assert [[(edge.stable, edge.not_stable) for edge in row] for row in along_lr] == [[(1.0, 10.0)], [(1.0, 10.0)]]
    assert [[(edge.stable, edge.not_stable) for edge in row] for row in along_size] == [[(16, 8)], [(16, 8)]]


def test_a_map_over_two_of_them_is_a_diagonal_which_has_no_rows(zipped) -> None:
    found = cell_map(read_table(zipped), "lr", "batch_size")
    assert sorted(found.cells) == [(0.01, 64), (0.1, 32), (1.0, 16), (10.0, 8)]
    with pytest.raises(InputError, match=r"--across: batch_size advances with lr[\s\S]*name another axis, or none"):
        GridMap(read_table(zipped), x="lr", y="batch_size").rows()


def test_margins_go_along_the_first_of_them_and_the_others_follow(zipped) -> None:
    chosen = recommend(read_table(zipped), 5.0).chosen
    assert chosen.setting == {"batch_size": 32, "lr": 0.1, "beta1": 0.0}
    assert [(m.axis, m.is_upwards, m.last_stable, m.first_not_stable) for m in chosen.margins] == [
        ("lr", False, 0.01, None),
        ("lr", True, 1.0, 10.0),
        ("beta1", False, 0.0, None),
        ("beta1", True, 0.5, None),
    ]


def test_a_wrong_learning_rate_is_measured_along_the_axes_that_advance_with_it(zipped) -> None:
    found = lr_sensitivity(read_table(zipped)).settings
    assert [dict(each.setting) for each in found] == [{"beta1": 0.0}, {"beta1": 0.5}]
    assert all(each.value is not None for each in found)
    assert all("lr_sensitivity" in cell.metrics for cell in sweep_record(read_table(zipped)).cells)
    assert {round(cell.metrics["distance_to_edge"], 6) for cell in sweep_record(read_table(zipped)).cells} == {
        3,
        2,
        1,
        -1,
    }


# --- axes that exist in some cells only ------------------------------------------------------------------


@pytest.fixture
def conditional(tmp_path: Path):
    def is_stable(trial: Trial) -> bool:
        beta1 = trial.cell["beta1"]
        return trial.cell["lr"] < (0.5 if beta1 is None else 5 * (1 - beta1) + 0.1)

    with ledger_of(tmp_path / "conditional", CONDITIONAL, is_stable) as ledger:
        yield ledger


def test_cells_without_the_axis_are_a_column_none_that_is_no_neighbour_of_a_value(conditional) -> None:
    found = GridMap(read_table(conditional), x="beta1", y="lr")
    assert found.cells.x_values == (0.0, 0.5, 0.9, None)
    rows = {row.setting["lr"]: [(edge.stable, edge.not_stable) for edge in row.edges] for row in found.rows()}
    assert rows[1.0] == [(0.5, 0.9)], "0.9 and none differ too"
    assert found.cells.state((None, 1.0)) == "diverged"


def test_a_row_without_the_axis_says_so(conditional) -> None:
    found = GridMap(read_table(conditional), x="beta1", y="optimizer", where={"lr": 1.0})
    assert [text for _, text in named_rows(found)] == [
        "there is no beta1 here",
        "edge near beta1=0.7 (beta1 0.5 is stable, 0.9 is not)",
    ]


def test_a_setting_without_the_axis_has_no_margin_along_it(conditional) -> None:
    found = {tuple(each.setting.values()): each for each in recommend(read_table(conditional), 1.0).candidates}
    assert {margin.axis for margin in found[None, 0.1, "adamw"].margins} == {"lr"}
    margins = {(m.axis, m.is_upwards): m for m in found[0.5, 1.0, "sgd"].margins}
    assert margins["beta1", True].first_not_stable == 0.9
    assert margins["beta1", False].last_stable == 0.0


def test_sensitivity_takes_the_cells_in_which_the_axis_exists(conditional) -> None:
    along_lr, along_beta1 = (lr_sensitivity(read_table(conditional), name).settings for name in ("lr", "beta1"))
    assert {each.setting["beta1"] for each in along_lr} == {0.0, 0.5, 0.9, None}
    assert {each.setting["optimizer"] for each in along_beta1} == {"sgd"}


def test_a_step_to_where_another_axis_begins_meets_the_worst_of_its_values() -> None:
    width = Axis("width", "values", (8, 16))
    depth = Axis("depth", "values", (1, 2, 3, None), when=(("width", (16,)),))
    axes = (width, depth)
    alone, two = Cell(width=8, depth=None), Cell(width=16, depth=2)
    deep = {two.moved("depth", depth): state for depth, state in ((1, "stable"), (2, "diverged"), (3, "unknown"))}
    states = {alone: "stable", **deep}
    assert state_beside(alone, width, 16, axes, states) == "diverged"
    assert state_beside(two, width, 8, axes, states) == "stable"
    assert state_beside(two, depth, 1, axes, states) == "stable"
    assert state_beside(alone, width, 32, axes, states) == "not_run"
    del states[two]
    assert state_beside(alone, width, 16, axes, states) == "unknown"


# --- all of them -----------------------------------------------------------------------------------------


def test_figures_and_page_show_related_axes(tied, zipped, conditional) -> None:
    for ledger in (tied, zipped, conditional):
        assert heatmap("svg", cell_map(read_table(ledger)))
        assert "<script" in report_html(read_table(ledger), cell_map(read_table(ledger)), "")
    assert "none" in heatmap("svg", cell_map(read_table(conditional), "lr", "beta1")).decode()


def test_a_range_that_exists_in_some_cells_only_can_be_drawn(tmp_path: Path) -> None:
    body = "axes: {lr: {log: [0.1, 10], num: 3, when: {optimizer: sgd}}, optimizer: {values: [sgd, adamw]}}\n"
    with ledger_of(tmp_path, body, lambda trial: True) as ledger:
        assert heatmap("svg", cell_map(read_table(ledger)))
        assert "<script" in report_html(read_table(ledger), cell_map(read_table(ledger)), "")
        assert len(sweep_record(read_table(ledger)).cells) == 4


def compared(folder: Path, *bodies: str, limit: float = 0.3) -> Comparison:
    with contextlib.ExitStack() as stack:
        ledgers = [
            stack.enter_context(ledger_of(folder / str(i), body, lambda trial: trial.config["lr"] < limit, f"s{i}"))
            for i, body in enumerate(bodies)
        ]
        return compare(list(map(read_table, ledgers)))


def test_sweeps_with_the_same_tie_are_compared_on_the_values_of_the_axis(tmp_path: Path) -> None:
    found = compared(tmp_path, TIED, f"{TIED}fixed: {{beta1: 0.5}}\n")
    assert found.num_cells == 8
    assert found.axes[0].values == (0.01, 0.1, 1.0, 10.0)
    assert set(found.changed) == {"beta1"}


def test_sweeps_with_different_ties_are_compared_on_what_was_trained_with(tmp_path: Path) -> None:
    plain = (
        "axes: {lr: {values: [0.01, 0.05, 0.1, 1.0]}, batch_size: {values: [8, 32]}}\ntie: {warmup: batch_size / 4}\n"
    )
    found = compared(tmp_path, TIED, plain)
    shared = {tuple(row.cell.values()) for row in found.sides[0].trials}
    assert shared == {(0.01, 32), (0.1, 32), (1.0, 32), (0.05, 8)}
    assert found.changed == {}


@pytest.mark.parametrize("body", [ZIPPED, CONDITIONAL])
def test_sweeps_over_related_axes_are_compared_cell_by_cell(tmp_path: Path, body: str) -> None:
    found = compared(tmp_path, body, f"{body}fixed: {{noise: 0.1}}\n")
    assert found.num_cells == len(sweep_of(body).trials)
    assert set(found.changed) == {"noise"}


def test_edges_of_zipped_sweeps_are_compared_along_the_first_axis_and_in_whole_rows(tmp_path: Path) -> None:
    found = compared(tmp_path, ZIPPED, ZIPPED)
    (difference,) = found.differences
    assert found.edge_axis.name == "lr"
    assert [row.factor for row in difference.rows] == [1.0, 1.0]
    assert [(each.x.name, each.y.name) for each in compared_maps(found)] == [("lr", "beta1")] * 2


def test_edges_along_an_axis_that_does_not_exist_everywhere_are_compared_where_it_does(tmp_path: Path) -> None:
    found = compared(tmp_path, CONDITIONAL, CONDITIONAL)
    (difference,) = found.differences
    assert found.edge_axis.name == "beta1"
    assert [row.factor for row in difference.rows] == [None] * 8
