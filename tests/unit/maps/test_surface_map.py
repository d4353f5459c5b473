"""The fitted edge: beside the bracket of a grid, on the known edge of a quadratic, and what it cannot tell."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import record, search_with, sweep_of

from orchestrator.answers._rows import named_rows
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.space import Trial
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.edge_line import edge_lines
from orchestrator.maps.edges import StableRule
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.stability_map import surface_mesh
from orchestrator.maps.surface_map import surface_map
from orchestrator.maps.table import read_table
from orchestrator.sweepfile.spec import Sweep

GRID = "seeds: [0, 1]\naxes:\n  lr: {log: [0.001, 1.0], num: 13}\n  beta1: {linear: [0.0, 0.9], num: 4}\n"
SCATTERED = "seeds: [0, 1]\nsample: {method: sobol, num: 60}\naxes:\n"
EDGE_SEARCH = "search={method: edge, along: lr, trials: 64}"
RANGES = SCATTERED + "  lr: {log: [0.001, 1.0]}\n  beta1: {linear: [0.0, 0.9]}\n"


def edge_of(beta1: float) -> float:
    """The planted edge: a learning rate that rises with beta1."""
    return 10 ** (-2 + 1.2 * beta1)


def outcome(trial: Trial) -> str:
    return "stable" if trial.cell["lr"] < edge_of(trial.cell.get("beta1", 0.0)) else "diverged"


def ledger_of(sweep: Sweep, folder: Path, outcome_of: Callable[[Trial], str] = outcome) -> Path:
    folder.mkdir()
    with LedgerWriter(folder / LEDGER) as ledger:
        record(ledger, sweep, [outcome_of(trial) for trial in sweep.trials])
    return folder / LEDGER


def test_on_a_grid_the_fitted_edge_lies_within_the_bracket_of_each_row(tmp_path: Path) -> None:
    with LedgerReader(ledger_of(sweep_of(GRID), tmp_path / "case")) as ledger:
        rows = GridMap(read_table(ledger)).rows()
        surface = surface_map(read_table(ledger))
        for row in rows:
            (bracket,), (edge,) = row.edges, surface.row(row.setting).edges
            assert edge.at is not None
            step = (1000) ** (1 / 12)
            assert bracket.stable / step**0.25 < edge.at < bracket.not_stable * step**0.25
            assert edge.is_stable_below


@pytest.mark.slow
@pytest.mark.parametrize("beta1", [0.1, 0.45, 0.8])
def test_among_scattered_cells_the_planted_edge_lies_in_the_interval(tmp_path: Path, beta1: float) -> None:
    with LedgerReader(ledger_of(sweep_of(RANGES), tmp_path / "case")) as ledger:
        (edge,) = surface_map(read_table(ledger)).row({"beta1": beta1}).edges
    assert edge.at is not None
    assert edge.low is not None
    assert edge.high is not None
    assert edge.low < edge_of(beta1) < edge.high
    assert abs(math.log10(edge.at / edge_of(beta1))) < 0.15


@pytest.mark.slow
def test_the_order_of_the_trials_changes_nothing(tmp_path: Path) -> None:
    lines = []
    for number, sweep in enumerate((sweep_of(RANGES), sweep_of(RANGES.replace("[0, 1]", "[1, 0]")))):
        with LedgerReader(ledger_of(sweep, tmp_path / f"case{number}")) as ledger:
            lines.append(named_rows(surface_map(read_table(ledger))))
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_the_known_threshold_of_momentum_comes_out_of_a_search(train, tmp_path: Path) -> None:
    """2 (1 + b1) / ((1 - b1) h) with curvature h = 1: heavy-ball momentum on a quadratic."""
    beta1s = (0.15, 0.3, 0.45, 0.6)
    sets = ("name=known", "steps=120", "seeds=[0, 1, 2]", "resources.pack=16", "axes.lr={log: [0.5, 50.0]}")
    axes = "axes.beta1={linear: [0.0, 0.7]}"
    train(search_with(*sets, axes, EDGE_SEARCH, "stopping.spike_rise=1000.0"))
    with LedgerReader(tmp_path / "known" / LEDGER) as ledger:
        assert len(ledger.trials()) == 64
        surface = surface_map(read_table(ledger))
    for beta1 in beta1s:
        (edge,) = surface.row({"beta1": beta1}).edges
        assert edge.at is not None
        assert edge.at == pytest.approx(2 * (1 + beta1) / (1 - beta1), rel=0.2)


@pytest.mark.slow
def test_after_a_search_only_its_evenly_spread_cells_say_whether_a_row_has_one_edge(tmp_path: Path) -> None:
    search = search_with("axes.lr={log: [0.001, 1.0]}", "axes.beta1={linear: [0.0, 0.9]}", EDGE_SEARCH)
    assert search.num_initial == 12
    later = [{"lr": 10.0 ** (-3 + k / 10), "beta1": 0.15 * row} for row in range(7) for k in range(31)]
    trials = (*search.trials, *(trial for cell in later for trial in search.maker.trials(cell)[:1]))

    def striped(trial: Trial) -> str:
        if trial.cell not in later:
            return outcome(trial)
        return "stable" if 1e-2 < trial.cell["lr"] < 1e-1 else "diverged"  # rows with two edges

    whole = replace(search, trials=trials)
    with LedgerReader(ledger_of(whole, tmp_path / "searched", striped)) as ledger:
        assert surface_map(read_table(ledger)).surface.has_one_edge
    with LedgerReader(ledger_of(replace(whole, num_initial=None), tmp_path / "sampled", striped)) as ledger:
        assert not surface_map(read_table(ledger)).surface.has_one_edge


@pytest.mark.slow
def test_the_edge_lies_along_the_axis_of_the_search_unless_another_is_named(tmp_path: Path) -> None:
    sets = ("axes.lr={log: [0.001, 1.0]}", "axes.beta1={linear: [0.0, 0.9]}")
    search = search_with(*sets, "search={method: edge, along: beta1, trials: 32}")
    with LedgerReader(ledger_of(search, tmp_path / "searched", outcome)) as ledger:
        table = read_table(ledger)
    assert surface_map(table).along.name == "beta1"
    assert edge_lines(table).along.name == "beta1"
    assert edge_lines(table, across="beta1").along.name == "lr"
    assert surface_map(table, "lr").along.name == "lr"
    assert table.where("--where", {"beta1": table.axes[1].values[0]}).edge_axis is None


def test_where_all_is_stable_no_edge_is_told(tmp_path: Path) -> None:
    with LedgerReader(ledger_of(sweep_of(RANGES), tmp_path / "case", lambda trial: "stable")) as ledger:
        surface = surface_map(read_table(ledger))
        assert all(edge.at is None for row in surface.rows() for edge in row.edges)
        assert min(row.p_stable for row in surface.rows()) > 0.9
        assert not any("stable up to" in text for _, text in named_rows(surface))


@pytest.mark.slow
def test_values_of_a_list_have_edges_of_their_own(tmp_path: Path) -> None:
    body = SCATTERED + "  lr: {log: [0.001, 1.0]}\n  optimizer: {values: [sgd, adamw]}\n"

    def by_value(trial: Trial) -> str:
        return "stable" if trial.cell["lr"] < {"sgd": 0.3, "adamw": 0.01}[trial.cell["optimizer"]] else "diverged"

    with LedgerReader(ledger_of(sweep_of(body), tmp_path / "case", by_value)) as ledger:
        found = {row.setting["optimizer"]: row.edges[0].at for row in surface_map(read_table(ledger)).rows()}
    assert found["sgd"] == pytest.approx(0.3, rel=0.4)
    assert found["adamw"] == pytest.approx(0.01, rel=0.4)


@pytest.mark.slow
def test_degraded_trials_count_where_that_is_asked_for(tmp_path: Path) -> None:
    def low_is_degraded(trial: Trial) -> str:
        return "degraded" if trial.cell["lr"] < 0.005 else outcome(trial)

    with LedgerReader(ledger_of(sweep_of(RANGES), tmp_path / "case", low_is_degraded)) as ledger:
        plain = surface_map(read_table(ledger)).probability([{"lr": 0.0015, "beta1": 0.5}])
        counted = surface_map(read_table(ledger), rule=StableRule(True)).probability([{"lr": 0.0015, "beta1": 0.5}])
    assert plain[0] > 0.9
    assert counted[0] < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"along": "momentum"}, "'momentum' is not an axis"),
        ({"along": "optimizer"}, "the values of optimizer have no order"),
        ({"where": {"optimizer": "adamw"}, "along": "optimizer"}, "'optimizer' is not an axis"),
    ],
)
def test_what_cannot_be_fitted_is_refused(tmp_path: Path, options: dict, message: str) -> None:
    body = SCATTERED + "  lr: {log: [0.001, 1.0]}\n  optimizer: {values: [sgd, adamw]}\n"
    path = ledger_of(sweep_of(body), tmp_path / "case", lambda trial: "stable")
    with LedgerReader(path) as ledger, pytest.raises(InputError, match=message):
        surface_map(read_table(ledger), **options)


def test_few_trials_are_refused_and_have_no_surface_in_the_picture(tmp_path: Path) -> None:
    body = RANGES.replace("num: 60", "num: 3")
    with LedgerReader(ledger_of(sweep_of(body), tmp_path / "case")) as ledger:
        with pytest.raises(InputError, match="6 trials with an outcome are too few"):
            surface_map(read_table(ledger))
        assert surface_mesh(read_table(ledger), cell_map(read_table(ledger), "lr", "beta1")) is None


@pytest.mark.slow
def test_the_surface_of_a_picture_is_that_of_the_answers(tmp_path: Path) -> None:
    with LedgerReader(ledger_of(sweep_of(RANGES), tmp_path / "case")) as ledger:
        table = read_table(ledger)
        mesh, surface = surface_mesh(table, cell_map(table, "lr", "beta1")), surface_map(table)
    assert mesh is not None
    cells: Sequence[dict[str, float]] = [
        {"lr": 10 ** mesh.x_X[x], "beta1": float(mesh.y_Y[y])} for x, y in ((3, 70), (40, 40), (80, 0))
    ]
    drawn = [mesh.stable_YX[70, 3], mesh.stable_YX[40, 40], mesh.stable_YX[0, 80]]
    np.testing.assert_allclose(drawn, surface.probability(cells), atol=1e-6)
    assert ((mesh.surely_YX > 0) == (mesh.stable_YX > 0.5)).mean() > 0.99


def test_on_a_full_grid_both_maps_answer_alike(tmp_path: Path) -> None:
    """Edges, sides, margins and escapes of cells and of a surface, which knows edges to about a step of the grid."""
    step = 1000 ** (1 / 12)
    with LedgerReader(ledger_of(sweep_of(GRID), tmp_path / "case")) as ledger:
        table = read_table(ledger)
    cells, surface = GridMap(table), surface_map(table, "lr", fills_grids=True)
    for row in cells.rows():
        (bracket,), (fit,) = row.edges, surface.row(row.setting).edges
        assert fit.is_stable_below == bracket.is_stable_below
        assert 1 / step < fit.at / bracket.at < step
    for cell in table.by_cell():
        edge = edge_of(cell["beta1"])
        if 1 / step**2 < cell["lr"] / edge < step**2:
            continue  # so near, the surface may say "at the edge"
        sides = {stability.position(cell).side for stability in (cells, surface)}
        assert sides == {"stable" if cell["lr"] < edge else "not stable"}
        for stability in (cells, surface):
            if stability.position(cell).has_margins:
                (margin,) = (m for m in stability.margins(cell) if m.axis == "lr" and m.is_upwards)
                assert 1 / step**1.5 < margin.edge * cell["lr"] / edge < step**1.5
            else:
                (escape,) = (e for e in stability.escapes(cell) if e.axis == "lr" and not e.is_upwards)
                assert 1 / step**1.5 < escape.stable_from / edge < step**1.5
    assert abs(cells.area() - surface.area()) < 0.05
