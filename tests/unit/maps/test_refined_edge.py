"""The edge of a grid that a search refines: its rows, its place between trials that agree, and its interval."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy.special import expit
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
    num_of_grid = sum(all(value in axis.refined for axis, value in zip(axes, cell, strict=True)) for cell in cells)
    facts = {"is_sampled": "true", "name": name, "num_spread": str(num_of_grid)}
    return dataclasses.replace(table_with(trials, axes), facts=facts)


def grid_with(*numbers_of_stable: int, num: int = 2) -> dict[tuple[float, ...], list[bool]]:
    return {(x,): [i < stable for i in range(num)] for x, stable in zip(PLACES, numbers_of_stable, strict=True)}


def only_edge(surface: SurfaceMap, **setting: float) -> Edge:
    (edge,) = surface.row(setting).edges
    return edge


GRIDS = [(2, 2, 0, 0, 0, 0), (2, 2, 2, 1, 1, 0), (2, 2, 2, 2, 2, 0), (2, 1, 0, 1, 0, 0), (2, 0, 1, 2, 1, 0)]


@pytest.mark.parametrize("numbers", GRIDS)
@pytest.mark.parametrize("others", [(), (True,), (False,)])
def test_an_edge_lies_between_the_neighbours_whose_trials_agree_with_all_before(numbers, others) -> None:
    agreed = len(list(itertools.takewhile(lambda num: num == 2, numbers)))
    lost = len(list(itertools.takewhile(lambda num: num == 0, reversed(numbers))))
    low, high = PLACES[agreed - 1], PLACES[-lost]
    between = {((low + high) / 2 + 0.003,): others} if others else {}
    edges = surface_map(table_of(grid_with(*numbers) | between)).row({}).edges
    assert low <= edges[0].at <= edges[-1].at <= high


def test_cells_that_agree_narrow_the_interval_to_about_the_gap_between_them() -> None:
    edge = only_edge(surface_map(table_of(grid_with(6, 6, 6, 0, 0, 0, num=6))))
    assert 0.35 < edge.low < 0.42
    assert 0.58 < edge.high < 0.65


def test_rows_lie_at_the_values_of_the_grid_and_each_keeps_to_its_neighbours() -> None:
    edges = {0.0: 0.2, 0.37: 0.6, 1.0: 0.4}
    table = table_of({(x, y): [x <= edge] * 2 for y, edge in edges.items() for x in PLACES}, (AXIS, ACROSS))
    rows = surface_map(table).rows()
    assert [row.setting["y"] for row in rows] == [0.0, 0.37, 1.0]
    for row in rows:
        (edge,) = row.edges
        assert edges[row.setting["y"]] <= edge.at <= edges[row.setting["y"]] + 0.2


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
    assert edge_sentence(table_of(cells, [log]), "lr", 30.0).endswith("next: `sweep recommend fine`")
    none: Cells = {cell: [False] * 2 for cell in cells}
    assert "may lie at lr below the axis .. 0.003" in edge_sentence(table_of(none, [log]), "lr", 1.2)


# --- coverage; docs/edge.md has the figures -------------------------------------------------------

NUM_EDGES = {0.005: 60, 0.02: 60, 0.04: 60, 0.1: 300}  # by width; the widest is covered least


@pytest.mark.slow
@pytest.mark.parametrize("width", NUM_EDGES)
def test_the_interval_of_a_refined_grid_contains_the_planted_edge(width: float) -> None:
    """P(stable) is the logistic function of the distance to the edge in units of ``width``, a part of the axis."""
    covered = [is_covered(seed, width) for seed in range(9000, 9000 + NUM_EDGES[width])]
    assert np.mean(covered) >= 0.93


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
