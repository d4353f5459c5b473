from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import ledger_at, map_ledger, record, sweep_of

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis
from orchestrator.maps.boundary import row_boundary
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.level_boundary import LevelRow, level_boundary, level_lines, level_row
from orchestrator.maps.table import read_table
from orchestrator.sweepfile.spec import load_sweep

ROOT = Path(__file__).parents[3]
LOG = Axis("lr", "log", (1e-3, 1e-2, 1e-1, 1.0), (1e-3, 1.0))
NUMBERS = st.lists(st.none() | st.integers(-3, 3).map(float), min_size=1, max_size=9)
FEWEST = 3  # crossings that have a period


def row_of(numbers: Sequence[float | None], level: float, axis: Axis | None = None) -> LevelRow:
    axis = axis or Axis("lr", "log", tuple(10.0**i for i in range(len(numbers))))
    return level_row(None, list(zip(axis.values, numbers, strict=True)), axis, level)


@given(NUMBERS)
def test_a_level_between_stable_and_not_gives_the_brackets_of_the_edge(numbers: list[float | None]) -> None:
    axis = Axis("lr", "log", tuple(10.0**i for i in range(len(numbers))))
    states = ["not_run" if x is None else "stable" if x < 0 else "spiked" for x in numbers]
    edge = row_boundary(None, list(zip(axis.values, states, strict=True)), axis)
    found = row_of(numbers, 0.0, axis)
    assert [(e.below, e.above, e.at) for e in found.edges] == [(e.stable, e.not_stable, e.at) for e in edge.edges]
    assert found.missing == edge.missing
    words = {"stable throughout": "below throughout", "not stable throughout": "at or above throughout"}
    assert found.kind == words.get(edge.kind, edge.kind)


@given(NUMBERS, st.integers(-3, 3).map(float))
def test_every_bracket_has_the_level_between_its_numbers(numbers: list[float | None], level: float) -> None:
    of_value = {10.0**i: number for i, number in enumerate(numbers)}
    for edge in row_of(numbers, level).edges:
        assert of_value[edge.below] < level <= of_value[edge.above]
        assert min(edge.below, edge.above) < edge.at < max(edge.below, edge.above)


def test_a_cell_at_the_level_is_not_below_it() -> None:
    assert row_of([1.0, 3.0, 5.0, 5.0], 3.0, LOG).edges == row_of([1.0, 4.0, 5.0, 5.0], 3.0, LOG).edges
    (edge,) = row_of([1.0, 2.0, 3.0, 5.0], 3.0, LOG).edges
    assert (edge.below, edge.above, edge.at) == (1e-2, 1e-1, pytest.approx(math.sqrt(1e-3)))


def test_a_cell_with_a_seed_that_has_no_outcome_yet_widens_the_bracket(tmp_path: Path) -> None:
    body = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 4}}\n"
    labels = ["stable", "stable", "stable", "planned", "spiked", "spiked", "diverged", "diverged"]
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(body), labels, [4.0, 4.0, 4.0, None, 2.0, 2.0, 2.0, 2.0])
        stability = cell_map(read_table(ledger))
    (row,) = level_boundary(stability, 3.0)
    assert (row.edges[0].above, row.edges[0].below, row.missing) == (1e-3, 1e-1, (1e-2,))
    assert level_lines(stability, 3.0) == [
        "all cells  level passed near lr=0.01 (lr 0.1 is below, 0.001 is not) (not known at 0.01)"
    ]
    assert level_lines(stability, 9.0) == ["all cells  below wherever it is known (not known at 0.01)"]


@pytest.mark.parametrize(
    ("body", "level", "metric", "says"),
    [
        ("axes: {lr: {log: [1e-4, 1]}}\nsample: {method: random, num: 6}\n", 1.0, "final_loss", "sampled"),
        ("axes: {schedule: {values: [constant, linear]}}\n", 1.0, "final_loss", "no order"),
        ("axes: {lr: {values: [0.1, 0.2]}}\n", math.nan, "final_loss", "no level"),
        ("axes: {lr: {values: [0.1, 0.2]}}\n", 3.0, "edge_crossings", "telemetry"),
    ],
)
def test_what_has_no_level_to_pass_is_refused(tmp_path: Path, body: str, level: float, metric: str, says: str) -> None:
    sweep = sweep_of(body)
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["stable"] * len(sweep.trials))
        with pytest.raises(InputError, match=says):
            level_boundary(cell_map(read_table(ledger), metric=metric), level)


@pytest.fixture(scope="module")
def phase(tmp_path_factory):
    """The reference sweep of Adam on a quadratic of one coordinate, with the crossings that it committed."""
    sweep = load_sweep(ROOT / "sweeps" / "adam_phase.yaml")
    with (ROOT / "results" / "reference" / "adam_phase" / "map.csv").open() as file:
        rows = [
            tuple(float(row[n]) for n in ("beta1", "beta2", "median_edge_crossings")) for row in csv.DictReader(file)
        ]
    # The last digits of the committed values are those of an earlier version: cells are matched by their order.
    trials = sorted(sweep.trials, key=lambda trial: tuple(trial.cell.values()))
    cells = {tuple(trial.cell.values()): row[2] for trial, row in zip(trials, sorted(rows), strict=True)}
    found = {trial.trial_id: cells[tuple(trial.cell.values())] for trial in trials}
    with ledger_at(tmp_path_factory.mktemp("phase")) as ledger:
        map_ledger(ledger, sweep, ["spiked"] * len(sweep.trials))
        yield ledger, {"edge_crossings": found}, cells


def test_the_wall_of_the_reference_wedge_is_the_first_bracket_of_each_row(phase) -> None:
    """Against the published exponent 3.07 (Tang et al., arXiv 2609.18314), as read off the committed map by hand."""
    ledger, measured, cells = phase
    rows = level_boundary(cell_map(read_table(ledger), "beta1", "beta2", "edge_crossings", measured=measured), FEWEST)
    walls = [(row.edges[0].above, row.y) for row in rows if row.edges and row.edges[0].above < row.edges[0].below]
    assert len(walls) >= 10
    for beta1, beta2 in walls:
        up_to = [count for (b1, b2), count in cells.items() if b2 == beta2 and b1 <= beta1]
        assert min(up_to) >= FEWEST, "every beta1 below the wall spikes"
    exponent, _ = np.polyfit(*np.log(1 - np.array(walls)).T, 1)
    assert exponent == pytest.approx(3.14, abs=0.005), "results/reference/instruments.md"


def test_along_beta2_every_row_that_crosses_spikes_beyond_its_last_bracket(phase) -> None:
    ledger, measured, cells = phase
    rows = level_boundary(cell_map(read_table(ledger), "beta2", "beta1", "edge_crossings", measured=measured), FEWEST)
    crossing = [row for row in rows if row.edges]
    assert len(crossing) == 12
    for row in crossing:
        last = row.edges[-1]
        assert last.below < last.above
        assert min(count for (b1, b2), count in cells.items() if b1 == row.y and b2 >= last.above) >= FEWEST
    assert {row.kind for row in rows} == {"crosses", "crosses more than once", "below throughout"}
