import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import ledger_at, map_ledger, record, sweep_of, trial_row

from orchestrator.answers._rows import named_rows
from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, Cell
from orchestrator.maps.edges import STABLE, LevelRule, Row
from orchestrator.maps.grid_map import GridMap, row_of
from orchestrator.maps.stability_map import map_of
from orchestrator.maps.table import read_table
from orchestrator.sweepfile.spec import load_sweep

ROOT = Path(__file__).parents[3]
LOG = Axis("lr", "log", (1e-3, 1e-2, 1e-1, 1.0), (1e-3, 1.0))
NUMBERS = st.lists(st.none() | st.integers(-3, 3).map(float), min_size=1, max_size=9)
FEWEST = 3  # crossings that have a period


def level_row(numbers: Sequence[float | None], level: float, axis: Axis | None = None) -> Row:
    axis = axis or Axis("lr", "log", tuple(10.0**i for i in range(len(numbers))))
    rule = LevelRule("final_loss", level)
    trials = (trial_row(outcome="stable", final_loss=number) for number in numbers)
    return row_of(Cell(), list(zip(axis.values, map(rule.of_trial, trials), strict=True)), axis, rule=rule)


@given(NUMBERS)
def test_a_level_between_stable_and_not_gives_the_brackets_of_the_edge(numbers: list[float | None]) -> None:
    axis = Axis("lr", "log", tuple(10.0**i for i in range(len(numbers))))
    states = ["not_run" if x is None else "stable" if x < 0 else "spiked" for x in numbers]
    row = row_of(Cell(), list(zip(axis.values, map(STABLE.of_state, states), strict=True)), axis)
    found = level_row(numbers, 0.0, axis)
    assert found.edges == row.edges
    assert found.not_known == row.not_known
    kinds = {"stable throughout": "below throughout", "not stable throughout": "at or above throughout"}
    assert found.kind == kinds.get(row.kind, row.kind)


@given(NUMBERS, st.integers(-3, 3).map(float))
def test_every_bracket_has_the_level_between_its_numbers(numbers: list[float | None], level: float) -> None:
    of_value = {10.0**i: number for i, number in enumerate(numbers)}
    for edge in level_row(numbers, level).edges:
        assert of_value[edge.stable] < level <= of_value[edge.not_stable]
        assert edge.low < edge.at < edge.high


def test_a_cell_at_the_level_is_not_below_it() -> None:
    assert level_row([1.0, 3.0, 5.0, 5.0], 3.0, LOG).edges == level_row([1.0, 4.0, 5.0, 5.0], 3.0, LOG).edges
    (edge,) = level_row([1.0, 2.0, 3.0, 5.0], 3.0, LOG).edges
    assert (edge.stable, edge.not_stable, edge.at) == (1e-2, 1e-1, pytest.approx(math.sqrt(1e-3)))


def test_a_cell_with_a_seed_that_has_no_outcome_yet_widens_the_bracket(tmp_path: Path) -> None:
    body = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 4}}\n"
    labels = ["stable", "stable", "stable", "planned", "spiked", "spiked", "diverged", "diverged"]
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(body), labels, [4.0, 4.0, 4.0, None, 2.0, 2.0, 2.0, 2.0])
        stability, higher = (map_of(read_table(ledger), rule=LevelRule("final_loss", level)) for level in (3.0, 9.0))
    (row,) = stability.rows()
    assert (row.edges[0].not_stable, row.edges[0].stable, row.not_known) == (1e-3, 1e-1, (1e-2,))
    text = "level passed near lr=0.01 (lr 0.1 is below, 0.001 is not) (not known at 0.01)"
    assert named_rows(stability) == [("all cells", text)]
    assert named_rows(higher) == [("all cells", "below wherever it is known (not known at 0.01)")]


@pytest.mark.parametrize(
    ("body", "metric", "says"),
    [
        ("axes: {lr: {log: [1e-4, 1]}}\nsample: {method: random, num: 6}\n", "final_loss", "6 trials with an outcome"),
        ("axes: {lr: {log: [1e-4, 1]}}\nsample: {method: random, num: 9}\n", "edge_crossings", "telemetry"),
        ("axes: {schedule: {values: [constant, linear]}}\n", "final_loss", "no order"),
        ("axes: {lr: {values: [0.1, 0.2]}}\n", "edge_crossings", "telemetry"),
    ],
)
def test_what_has_no_level_to_pass_is_refused(tmp_path: Path, body: str, metric: str, says: str) -> None:
    sweep = sweep_of(body)
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["stable"] * len(sweep.trials))
        with pytest.raises(InputError, match=says):
            map_of(read_table(ledger), rule=LevelRule(metric, 1.0)).rows()


def test_on_scattered_cells_a_surface_is_fitted_to_trials_below_the_level(tmp_path: Path) -> None:
    """A loss that rises with lr passes 2 at lr = 0.1, whatever the outcomes are."""
    sweep = sweep_of("seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1]}}\nsample: {method: sobol, num: 24}\n")
    losses = [4 + 2 * math.log10(trial.cell["lr"]) for trial in sweep.trials]
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["spiked"] * len(sweep.trials), losses)
        surface = map_of(read_table(ledger), rule=LevelRule("final_loss", 2.0))
    (row,) = surface.rows()
    (edge,) = row.edges
    assert edge.is_stable_below
    assert edge.at == pytest.approx(0.1, rel=0.3)
    assert edge.low < 0.1 < edge.high
    ((_, text),) = named_rows(surface)
    assert text.startswith("below up to lr 0.")


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
    rows = GridMap(read_table(ledger), LevelRule("edge_crossings", FEWEST, measured), "beta1", "beta2").rows()
    first = [(row.edges[0], row.setting["beta2"]) for row in rows if row.edges]
    walls = [(edge.not_stable, beta2) for edge, beta2 in first if not edge.is_stable_below]
    assert len(walls) >= 10
    for beta1, beta2 in walls:
        up_to = [count for (b1, b2), count in cells.items() if b2 == beta2 and b1 <= beta1]
        assert min(up_to) >= FEWEST, "every beta1 below the wall spikes"
    exponent, _ = np.polyfit(*np.log(1 - np.array(walls)).T, 1)
    assert exponent == pytest.approx(3.14, abs=0.005), "results/reference/instruments.md"


def test_along_beta2_every_row_that_crosses_spikes_beyond_its_last_bracket(phase) -> None:
    ledger, measured, cells = phase
    rows = GridMap(read_table(ledger), LevelRule("edge_crossings", FEWEST, measured), "beta2", "beta1").rows()
    crossing = [row for row in rows if row.edges]
    assert len(crossing) == 12
    for row in crossing:
        last, beta1 = row.edges[-1], row.setting["beta1"]
        assert last.is_stable_below
        assert min(count for (b1, b2), count in cells.items() if b1 == beta1 and b2 >= last.not_stable) >= FEWEST
    assert {row.kind for row in rows} == {"crosses", "crosses more than once", "below throughout"}
