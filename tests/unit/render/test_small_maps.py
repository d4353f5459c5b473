"""Further axes that do not cross are drawn as small maps, one for each combination."""

from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of, table_with, trial_row

from orchestrator.base.space import Axis
from orchestrator.maps.cell_map import CellMap, cell_map, separate_maps
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.render.small_maps import small_maps

RATES, BATCHES = (0.001, 0.01, 0.1), (32, 64)
RUN = [(64, 2, 1_000_000_000), (64, 2, 2_000_000_000), (128, 4, 3_000_000_000), (128, 4, 4_000_000_000)]


def table_of(combinations: list[tuple[int, int, int]]) -> SweepTable:
    """Runs that diverge at the highest rate, the best loss being at the middle one with the larger batch."""
    axes = [Axis("lr", "log", RATES), Axis("batch", "log", BATCHES)]
    for i, name in enumerate(("width", "depth", "tokens")):
        axes.append(Axis(name, "log", tuple(sorted({each[i] for each in combinations}))))
    trials = []
    for width, depth, tokens in combinations:
        for lr in RATES:
            for batch in BATCHES:
                cell = {"lr": lr, "batch": batch, "width": width, "depth": depth, "tokens": tokens}
                is_stable = lr < 0.1
                loss = 2 + abs(lr - 0.01) + 1 / batch + 1e9 / tokens if is_stable else 7.0
                label = "stable" if is_stable else "diverged"
                trials.append(trial_row(trial_id=str(cell), cell=cell, outcome=label, final_loss=loss))
    return table_with(trials, axes)


def apart(table: SweepTable) -> list[CellMap]:
    return separate_maps(table, cell_map(table), {})


def test_each_combination_that_was_run_has_a_map_on_the_same_axes() -> None:
    maps = apart(table_of(RUN))
    assert [tuple(value for _, value in each.facet) for each in maps] == [tuple(map(str, each)) for each in RUN]
    assert {(each.x_values, each.y_values, each.note) for each in maps} == {(RATES, BATCHES, "")}
    assert all(each.state((0.1, 32)) == "diverged" for each in maps)


def test_axes_that_cross_and_many_combinations_stay_one_map() -> None:
    crossed = [(width, depth, 1_000_000_000) for width in (64, 128) for depth in (2, 4)]
    assert apart(table_of(crossed)) == []
    assert apart(table_of([(width, width, width) for width in range(10, 40)])) == []
    assert apart(table_of([(64, 2, 1_000_000_000), (128, 2, 1_000_000_000)])) == []


def test_small_maps_stand_in_rows_of_the_first_axis_with_their_best_cells() -> None:
    figure = small_maps.figure(apart(table_of(RUN)))
    *maps, bar = figure.axes
    assert [axes.get_title() for axes in maps] == [
        f"width {width}  depth {depth}  tokens {tokens / 1e9:g}e9" for width, depth, tokens in RUN
    ]
    assert [axes.get_subplotspec().rowspan.start for axes in maps] == [0, 0, 1, 1]
    stars = [[line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "*"] for axes in maps]
    assert stars == [[[[1.0, 1.0]]]] * 4
    assert [bool(axes.get_xlabel()) for axes in maps] == [False, False, True, True]
    assert [bool(axes.get_ylabel()) for axes in maps] == [True, False, True, False]
    assert bar.get_ylabel() == "final loss above the best of each map"
    colours = maps[0].images[0].get_array()
    assert (colours[:, 2] == colours[0, 2]).all()
    assert (colours[0, 0] != colours[0, 1]).any()
    assert small_maps("png", apart(table_of(RUN))).startswith(b"\x89PNG")


@pytest.mark.parametrize("label", ["planned", "diverged"])
def test_maps_without_a_stable_cell_are_drawn(label: str, tmp_path: Path) -> None:
    body = (
        "axes: {lr: {values: [1, 2]}, eps: {values: [1e-8, 1e-4]}, beta1: {values: [0, 0.9]}, clip: {values: [1, 2]}}\n"
    )
    sweep = sweep_of(body + "zip: [[beta1, clip]]\n")
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, [label] * len(sweep.trials))
        maps = apart(read_table(ledger))
    assert len(maps) == 2
    assert small_maps("svg", maps).startswith(b"<?xml")
