"""The edge of a grid that a search refines: trials of the grid that agree are not contradicted by a fit."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom
from sweep_cases import table_with, trial_row

from orchestrator.answers._refined import edge_sentence
from orchestrator.base.space import Axis
from orchestrator.maps.edges import Edge
from orchestrator.maps.surface_map import SurfaceMap, surface_map
from orchestrator.maps.table import SweepTable
from orchestrator.search.edge import EdgeOptions, EdgeSearch
from orchestrator.search.protocol import CellResult, SeedResult

PLACES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
AXIS = Axis("x", "linear", (), (0.0, 1.0), refined=tuple(PLACES))
ACROSS = Axis("y", "linear", (), (0.0, 1.0), refined=(0.0, 0.37, 1.0))
Cells = Mapping[tuple[float, ...], Sequence[bool]]


def table_of(cells: Cells, axes: Sequence[Axis] = (AXIS,), name: str = "fine") -> SweepTable:
    """A refined sweep whose trials in these cells are stable or not."""
    names = [axis.name for axis in axes]
    trials = [
        trial_row(
            trial_id=f"{cell}{seed}",
            cell=dict(zip(names, cell, strict=True)),
            seed=seed,
            status="finished",
            outcome="stable" if is_stable else "diverged",
            final_loss=1.0 - cell[0],
        )
        for cell, of_cell in cells.items()
        for seed, is_stable in enumerate(of_cell)
    ]
    return dataclasses.replace(table_with(trials, axes), facts={"is_sampled": "true", "name": name})


def grid_with(*numbers_of_stable: int, num: int = 2) -> dict[tuple[float, ...], list[bool]]:
    return {(x,): [i < stable for i in range(num)] for x, stable in zip(PLACES, numbers_of_stable, strict=True)}


def only_edge(surface: SurfaceMap, **setting: float) -> Edge:
    (edge,) = surface.row(setting).edges
    return edge


def uncut(table: SweepTable) -> SurfaceMap:
    """The fit alone."""
    return dataclasses.replace(surface_map(table), grid={axis.name: () for axis in table.axes})


def test_the_edge_lies_between_neighbours_whose_trials_agree() -> None:
    table = table_of(grid_with(2, 2, 0, 0, 0, 0) | {(0.3,): [True]})
    assert only_edge(uncut(table)).high > 0.4, "the fit alone reaches beyond"
    edge = only_edge(surface_map(table))
    assert 0.2 <= edge.low <= edge.at <= edge.high <= 0.4


def test_an_interval_does_not_pass_the_end_of_an_axis_where_all_trials_agree() -> None:
    table = table_of(grid_with(2, 2, 2, 1, 1, 0) | {(0.7,): [True]})
    assert only_edge(uncut(table)).high is None
    edge = only_edge(surface_map(table))
    assert edge.low >= 0.4
    assert edge.high <= 1


def test_a_trial_that_disagrees_takes_the_grid_s_word_back() -> None:
    grid = grid_with(2, 2, 2, 0, 0, 0)
    assert only_edge(surface_map(table_of(grid))).low == pytest.approx(0.4)
    doubted = table_of(grid | {(0.3,): [False]})
    assert only_edge(surface_map(doubted)).low == pytest.approx(max(0.2, only_edge(uncut(doubted)).low))


def test_one_trial_alone_is_no_agreement_and_cells_between_those_of_the_grid_are_none() -> None:
    alone = grid_with(1, 1, 1, 0, 0, 0, num=1) | {(0.1,): [True], (0.9,): [False]}
    between: Cells = {(x + 0.01,): of_cell for (x,), of_cell in grid_with(2, 2, 2, 0, 0, 0).items() if x < 1}
    for cells in (alone, between):
        table = table_of(cells)
        assert only_edge(surface_map(table)) == only_edge(uncut(table))


def test_where_the_whole_grid_agrees_there_is_no_edge() -> None:
    row = surface_map(table_of(grid_with(2, 2, 2, 2, 2, 2))).row({})
    assert (row.edges, row.kind) == ((), "stable throughout")


def test_rows_lie_at_the_values_of_the_grid_and_each_keeps_to_its_neighbours() -> None:
    edges = {0.0: 0.2, 0.37: 0.6, 1.0: 0.4}
    table = table_of({(x, y): [x <= edge] * 2 for y, edge in edges.items() for x in PLACES}, (AXIS, ACROSS))
    rows = surface_map(table).rows()
    assert [row.setting["y"] for row in rows] == [0.0, 0.37, 1.0]
    for row in rows:
        (edge,) = row.edges
        assert edges[row.setting["y"]] <= edge.low <= edge.at <= edge.high <= edges[row.setting["y"]] + 0.2


def test_margins_and_ways_back_agree_with_the_grid() -> None:
    surface = surface_map(table_of(grid_with(2, 2, 0, 0, 0, 0)))
    upwards = next(margin for margin in surface.margins({"x": 0.0}) if margin.is_upwards)
    assert upwards.last_stable == pytest.approx(0.2, abs=0.01)
    assert upwards.first_not_stable <= 0.41
    (escape,) = surface.escapes({"x": 1.0})
    assert 0.19 <= escape.stable_from <= 0.4


def test_a_long_grid_across_shows_nine_of_its_rows() -> None:
    values = tuple(i / 20 for i in range(21))
    across = Axis("y", "linear", (), (0.0, 1.0), refined=values)
    cells = {(x, y): [x < 0.5] for x in PLACES for y in values}
    shown = [row.setting["y"] for row in surface_map(table_of(cells, (AXIS, across))).rows()]
    assert len(shown) == 9
    assert (shown[0], shown[-1]) == (0.0, 1.0)
    assert set(shown) < set(values)


def test_the_sentence_has_edge_interval_setting_and_the_next_command() -> None:
    log = Axis("lr", "log", (), (0.001, 1.0), refined=(0.001, 0.01, 0.1, 1.0))
    cells: Cells = {(0.001,): [True] * 2, (0.01,): [True] * 2, (0.1,): [False] * 2, (1.0,): [False] * 2}
    wide = edge_sentence(table_of(cells, [log]), "lr", 1.2)
    assert wide.startswith("the edge: stable up to lr ")
    assert wide.endswith("; take lr=0.001; next: `sweep run fine --refine`")
    assert edge_sentence(table_of(cells, [log]), "lr", 20.0).endswith("next: `sweep recommend fine`")
    none: Cells = {cell: [False] * 2 for cell in cells}
    assert "not stable throughout; no setting is far enough from it; " in edge_sentence(
        table_of(none, [log]), "lr", 1.2
    )


# --- coverage; docs/edge.md has the figures -------------------------------------------------------

WIDTHS = {0.005: 0.97, 0.02: 0.95, 0.04: 0.92, 0.1: 0.8}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_interval_of_a_refined_grid_contains_the_planted_edge(width: float) -> None:
    """P(stable) is the logistic function of the distance to the edge in units of ``width``, a part of the axis."""
    num = 60
    covered = sum(is_covered(seed, width) for seed in range(9000, 9000 + num))
    assert covered >= binom.ppf(0.001, num, WIDTHS[width])


def is_covered(seed: int, width: float) -> bool:
    """Whether the interval contains the edge after 12 trials between those of a grid of six values and two seeds."""
    rng = np.random.default_rng((seed, int(width * 1e4)))
    planted, cells = rng.uniform(0.15, 0.85), dict[tuple[float, ...], list[bool]]()

    def train(x: float, num_seeds: int) -> None:
        of_cell = cells.setdefault((x,), [])
        while len(of_cell) < num_seeds:
            of_cell.append(bool(rng.random() < expit((planted - x) / width)))

    for x in PLACES:
        train(x, 2)
    search = EdgeSearch([AXIS], EdgeOptions("x", 24, 2, seed), lambda outcome: outcome == "diverged")
    while proposals := search.propose([_result(x, of_cell) for (x,), of_cell in cells.items()], 8):
        for proposal in proposals:
            train(proposal.cell["x"], proposal.num_seeds)
    falling = [edge for edge in surface_map(table_of(cells)).row({}).edges if edge.is_stable_below]
    return bool(falling) and (falling[0].low or 0.0) <= planted <= (1.0 if falling[0].high is None else falling[0].high)


def _result(x: float, of_cell: Sequence[bool]) -> CellResult:
    seeds = [SeedResult(i, "stable" if is_stable else "diverged", True) for i, is_stable in enumerate(of_cell)]
    return CellResult({"x": x}, tuple(seeds))
