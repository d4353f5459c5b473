"""The edge over another axis tells what `boundary` and the fit tell, row by row."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import ledger_at, map_ledger, sweep_of
from tiers import thinned

from orchestrator.base.errors import InputError
from orchestrator.base.space import Trial
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.edge_line import PLACES_ACROSS, edge_lines, edge_table, kind_of_edge, linked
from orchestrator.maps.edges import StableRule
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.surface_map import surface_map
from orchestrator.maps.table import read_table

GRID = "axes:\n  lr: {log: [0.001, 1.0], num: 13}\n  beta1: {linear: [0.0, 0.9], num: 4}\n"
FACETS = GRID + "  optimizer: {values: [sgd, adamw]}\n"
RANGES = "sample: {method: sobol, num: 80}\naxes:\n  lr: {log: [0.001, 1.0]}\n  beta1: {linear: [0.0, 0.9]}\n"
WORDS = RANGES + "  optimizer: {values: [sgd, adamw]}\n"
LIST = RANGES.replace("{linear: [0.0, 0.9]}", "{values: [0.0, 0.3, 0.6, 0.9]}")
THREE = RANGES + "  beta2: {log1m: [0.9, 0.999]}\n"
CELL = 1000 ** (1 / 12)  # the distance of neighbours on the grid, as a factor


def edge_of(cell) -> float:
    """The planted edge: a learning rate that rises with beta1, and is lower for one of the optimizers."""
    return 10 ** (-2 + 1.2 * cell["beta1"]) * (0.2 if cell.get("optimizer") == "adamw" else 1.0)


def sharp(trial: Trial) -> str:
    return "stable" if trial.cell["lr"] < edge_of(trial.cell) else "diverged"


def rough(trial: Trial) -> str:
    """States of every kind, and rows with many edges."""
    labels = ("stable", "diverged", "planned", "spiked", "degraded", "stable", "errored")
    return labels[hash((round(1e6 * trial.cell["lr"]), round(100 * trial.cell["beta1"]))) % len(labels)]


@contextlib.contextmanager
def read(folder: Path, body: str, label: Callable[[Trial], str] = sharp) -> Iterator[LedgerReader]:
    sweep = sweep_of(body)
    with ledger_at(folder) as ledger:
        map_ledger(ledger, sweep, [label(trial) for trial in sweep.trials])
        yield ledger


@pytest.mark.parametrize("label", [sharp, rough])
@pytest.mark.parametrize("degraded", [False, True])
def test_on_a_grid_the_line_has_the_edges_of_every_row_of_the_boundary(tmp_path: Path, label, degraded: bool) -> None:
    with read(tmp_path, GRID, label) as ledger:
        (line,) = edge_lines(read_table(ledger), rule=StableRule(degraded)).lines
        rows = GridMap(read_table(ledger), StableRule(degraded)).rows()
    assert list(line.rows) == rows
    assert line.edges == [(row, edge) for row in rows for edge in row.edges]
    assert all(edge.low < edge.high for _, edge in line.edges)


def test_a_facet_has_the_lines_of_its_values_alone(tmp_path: Path) -> None:
    with read(tmp_path, FACETS) as ledger:
        found = edge_lines(read_table(ledger))
        alone = [edge_lines(read_table(ledger), where={"optimizer": word}) for word in ("sgd", "adamw")]
    assert [line.label for line in found.lines] == ["optimizer = sgd", "optimizer = adamw"]
    assert [line.rows for line in found.lines] == [each.lines[0].rows for each in alone]
    assert (found.notes, alone[1].notes) == ((), ("optimizer = adamw",))


@pytest.mark.slow
@pytest.mark.parametrize("body", [RANGES, LIST, WORDS], ids=["range", "list", "words"])
def test_a_fitted_line_has_the_edges_of_the_fit_at_every_place(tmp_path: Path, body: str) -> None:
    with read(tmp_path, body) as ledger:
        found, surface = edge_lines(read_table(ledger)), surface_map(read_table(ledger))
    assert (found.is_fitted, found.is_curve) == (True, body != LIST)
    for line in found.lines:
        assert len(line.rows) == (4 if body == LIST else PLACES_ACROSS)
        facet = {} if found.facet is None else {found.facet.name: line.facet}
        for row in line.rows:
            assert row == surface.row({"beta1": row.setting["beta1"], **facet})


@pytest.mark.parametrize(
    "body",
    thinned([GRID, FACETS, RANGES, LIST], lambda body: body in (GRID, FACETS)),
    ids=["grid", "facets", "range", "list"],
)
def test_a_sharp_edge_is_met_within_a_cell_on_a_grid_and_by_the_fit(tmp_path: Path, body: str) -> None:
    with read(tmp_path, body) as ledger:
        found = edge_lines(read_table(ledger))
    for line in found.lines:
        assert all(len(row.edges) == 1 for row in line.rows)
        for row, edge in line.edges:
            assert kind_of_edge(edge) == "stable below"
            known = edge_of({"beta1": row.setting["beta1"], "optimizer": line.facet})
            assert abs(math.log(edge.at / known)) < math.log(CELL)
            assert found.is_fitted or edge.low <= known <= edge.high


@pytest.mark.slow
def test_a_range_that_is_fixed_is_where_the_surface_is_read(tmp_path: Path) -> None:
    with read(tmp_path, THREE) as ledger:
        fixed = edge_lines(read_table(ledger), where={"beta2": "0.95"})
        by_range = edge_lines(read_table(ledger), facet="beta2")
        row = surface_map(read_table(ledger)).row({"beta1": 0.0, "beta2": 0.95})
        with pytest.raises(InputError, match="beta2 is neither drawn nor fixed"):
            edge_lines(read_table(ledger))
    assert fixed.lines[0].rows[0].edges[0].at == row.edges[0].at
    assert fixed.notes == ("beta2 = 0.95", "a fit to 80 trials in 80 cells")
    assert [line.label for line in by_range.lines] == ["beta2 = 0.9", "beta2 = 0.99", "beta2 = 0.999"]


def test_an_axis_of_words_has_no_edge_along_it(tmp_path: Path) -> None:
    for body, where in ((FACETS, {}), (WORDS, {"beta1": "0.5"})):
        with read(tmp_path / str(len(where)), body) as ledger, pytest.raises(InputError, match="have no order"):
            edge_lines(read_table(ledger), along="optimizer", where=where)


def test_the_table_names_the_value_without_a_place_and_leaves_unknown_ends_empty(tmp_path: Path) -> None:
    body = "axes:\n  clip: {values: [0.1, 1.0, null]}\n  lr: {values: [0.1, 1.0, 10.0]}\n"

    def label(trial: Trial) -> str:
        first = {0.1: None, 1.0: "none", 10.0: 0.1}[trial.cell["lr"]]  # the lowest value that is not stable
        clip = "none" if trial.cell["clip"] is None else trial.cell["clip"]
        return "diverged" if first == clip or first == 0.1 else "stable"

    with read(tmp_path, body, label) as ledger:
        table = edge_table(edge_lines(read_table(ledger)))
    assert table.to_csv(index=False).splitlines() == [
        "lr,edge,low,high,kind",
        "0.1,,,,stable throughout",
        "1.0,,1.0,none,stable below",
        "10.0,,,,not stable throughout",
    ]


@given(st.lists(st.lists(st.floats(0, 1), max_size=4, unique=True).map(sorted), max_size=6))
def test_every_edge_is_on_one_branch_and_branches_never_cross(rows: list[list[float]]) -> None:
    branches = linked(rows)
    told = [place for branch in branches for place in branch]
    assert sorted(told) == [(number, i) for number, row in enumerate(rows) for i in range(len(row))]
    for branch in branches:
        assert [number for number, _ in branch] == list(range(branch[0][0], branch[0][0] + len(branch)))
    steps = [(*a, b[1]) for branch in branches for a, b in itertools.pairwise(branch)]
    for number, row in enumerate(rows[:-1]):
        here = sorted((before, after) for at, before, after in steps if at == number)
        assert [after for _, after in here] == sorted(after for _, after in here)
        assert len(here) == min(len(row), len(rows[number + 1]))


def test_an_edge_that_ends_is_the_one_far_from_those_that_go_on() -> None:
    assert linked([[0.1, 0.5, 0.9], [0.12, 0.88]]) == [[(0, 1)], [(0, 0), (1, 0)], [(0, 2), (1, 1)]]
