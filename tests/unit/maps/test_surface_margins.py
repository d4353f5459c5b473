"""Margins by the fitted surface: beside those of a grid, and towards a planted edge."""

import math
from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.answers._margins import margin_text
from orchestrator.answers.recommend import RecommendAnswer
from orchestrator.base.space import Axis
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.edges import Margin
from orchestrator.maps.recommendation import Recommendation, recommend
from orchestrator.maps.surface_map import SurfaceMap, surface_map
from orchestrator.maps.table import read_table

STEP = 1000 ** (1 / 16)
AXES = "axes:\n  lr: {log: [0.001, 1.0], num: 17}\n  beta1: {linear: [0.1, 0.9], num: 5}\n"
GRID = "seeds: [0, 1]\n" + AXES
SCATTERED = "seeds: [0, 1]\nsample: {method: sobol, num: 80}\n" + AXES.replace(", num: 17", "").replace(", num: 5", "")


def edge_at(beta1: float) -> float:
    return 10 ** (-1.5 + 0.6 * beta1)


def ledger_with(path: Path, body: str, highest: float = math.inf) -> LedgerReader:
    """Stable below the edge, with the lower a loss the nearer to it."""
    sweep = sweep_of(body)
    is_stable = [trial.cell["lr"] < min(edge_at(trial.cell["beta1"]), highest) for trial in sweep.trials]
    with ledger_at(path) as ledger:
        losses = [1 / trial.cell["lr"] for trial in sweep.trials]
        map_ledger(ledger, sweep, ["stable" if one else "diverged" for one in is_stable], losses)
    return LedgerReader(ledger.path)


def upwards(margins: list[Margin], axis: str = "lr") -> Margin:
    (found,) = (margin for margin in margins if margin.axis == axis and margin.is_upwards)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.001, 0.01, 0.02])
def test_the_edge_is_as_far_as_on_a_grid_within_two_of_its_steps(tmp_path: Path, lr: float) -> None:
    setting = {"lr": lr, "beta1": 0.5}
    with ledger_with(tmp_path / "few", SCATTERED) as ledger:
        found = upwards(surface_map(read_table(ledger)).margins(setting))
    assert found.edge == pytest.approx(edge_at(0.5) / lr, rel=STEP**2 - 1)
    assert 1 <= found.known <= found.edge


def test_what_is_surely_stable_is_nearer_than_the_edge_and_shrinks_towards_it(tmp_path: Path) -> None:
    with ledger_with(tmp_path / "few", SCATTERED) as ledger:
        surface = surface_map(read_table(ledger))
        known = [upwards(surface.margins({"lr": lr, "beta1": 0.5})).known for lr in (0.002, 0.006, 0.02, 0.3)]
    assert known == sorted(known, reverse=True)
    assert known[-1] == 1, "beyond the edge nothing is surely stable"


def test_a_direction_without_an_edge_is_open(tmp_path: Path) -> None:
    with ledger_with(tmp_path / "few", SCATTERED) as ledger:
        margins = surface_map(read_table(ledger)).margins({"lr": 0.005, "beta1": 0.5})
    assert all(margin.is_open for margin in margins if margin.axis == "lr" and not margin.is_upwards)


def recommended(path: Path, body: str) -> Recommendation:
    with ledger_with(path, body) as ledger:
        return recommend(read_table(ledger))


def test_scattered_cells_recommend_nearly_what_a_grid_does(tmp_path: Path) -> None:
    grid, few = (recommended(tmp_path / name, body) for name, body in (("grid", GRID), ("few", SCATTERED)))
    assert grid.chosen is not None
    assert few.chosen is not None
    assert 1 / STEP**3 < few.chosen.setting["lr"] / grid.chosen.setting["lr"] < STEP**3
    assert edge_at(few.chosen.setting["beta1"]) / few.chosen.setting["lr"] > 2
    lines = RecommendAnswer("", few).lines()
    assert any(line.startswith("  lr up: surely stable to 0.0") and "edge near 0.0" in line for line in lines)
    assert lines[-2] == "margins by a surface fitted to 160 trials; surely: within its 95 % interval"
    assert few.is_fitted
    assert not grid.is_fitted


def test_margins_of_cells_are_computed_until_one_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    margins = SurfaceMap.margins
    monkeypatch.setattr(SurfaceMap, "margins", lambda self, setting: asked.append(setting) or margins(self, setting))
    found = recommended(tmp_path / "few", SCATTERED)
    assert found.chosen is not None
    needed = found.candidates[: found.candidates.index(found.chosen) + 1]
    assert asked == [candidate.setting for candidate in needed]
    assert len(needed) < len(found.candidates)


def test_an_open_margin_of_a_surface_ends_with_the_range_not_with_what_was_tried() -> None:
    axis = Axis("lr", "log", (), (1e-3, 1.0))
    margin = Margin(
        "lr", is_upwards=False, known=10.0, edge=None, last_stable=1e-3, first_not_stable=None, not_known=()
    )
    assert margin_text(margin, [axis], is_fitted=True).endswith("where its range ends")
