"""A surface is read where trials are: beyond the largest size that was trained it says nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sweep_cases import table_with, trial_row

from orchestrator.base.space import Axis, Cell
from orchestrator.maps.edge_line import edge_lines
from orchestrator.maps.importance import surface_shares
from orchestrator.maps.reach import is_reached, reached
from orchestrator.maps.shared import shared_region
from orchestrator.maps.stability_map import mesh_of
from orchestrator.maps.surface_map import SurfaceMap, surface_map
from orchestrator.maps.table import SweepTable

LR, WIDTH = Axis("lr", "log", (), (1e-4, 0.1)), Axis("width", "log", (), (16.0, 1024.0))


def table_up_to(width: float, num: int = 40) -> SweepTable:
    """Scattered trials with an edge at 0.4 / width, on an axis of widths up to 1024."""
    rng = np.random.default_rng(0)
    rate_N, width_N = 10 ** rng.uniform(-4, -1, num), np.exp(rng.uniform(math.log(16), math.log(width), num))
    trials = [
        trial_row(
            trial_id=str(i),
            cell={"lr": float(rate), "width": float(size)},
            status="finished",
            outcome="stable" if rate * size < 0.4 else "diverged",
            final_loss=2.0,
        )
        for i, (rate, size) in enumerate(zip(rate_N, width_N, strict=True))
    ]
    return replace(table_with(trials, [LR, WIDTH]), facts={"is_sampled": "true"})


@pytest.fixture(scope="module")
def surface() -> SurfaceMap:
    return surface_map(table_up_to(128))


def end(surface: SurfaceMap) -> float:
    (reach,) = (axis for axis in surface.reach if axis.name == "width")
    assert reach.ends is not None
    return reach.ends[1]


def test_the_reach_ends_a_little_beyond_the_last_trial(surface: SurfaceMap) -> None:
    assert 128 < end(surface) < 256
    assert surface.reach[0] == LR, "an axis that is covered is as it was"


def test_rows_area_picture_and_importance_stay_within_reach(surface: SurfaceMap) -> None:
    assert max(row.setting["width"] for row in surface.rows()) <= end(surface)
    table = table_up_to(128)
    lines = edge_lines(table, "lr", "width").lines
    assert max(row.setting["width"] for line in lines for row in line.rows) <= end(surface)
    shorter = surface_map(table_with(table.trials, [LR, Axis("width", "log", (), (16.0, end(surface)))]))
    assert surface.area() == pytest.approx(shorter.area(), abs=0.02)
    mesh = mesh_of(surface, *surface.reach)
    assert 10 ** mesh.y_Y.max() == pytest.approx(end(surface))
    shares, _ = surface_shares(table)
    assert shares is not None
    assert shares["width"] > 0


def test_a_row_and_a_place_beyond_it_are_not_known(surface: SurfaceMap) -> None:
    row = surface.row({"width": 1024.0})
    assert (row.kind, row.edges, row.p_stable) == ("not known", (), None)
    assert surface.row({"width": 100.0}).kind == "crosses"
    beyond = surface.position({"lr": 1e-4, "width": 1024.0})
    assert (beyond.side, beyond.has_margins) == ("outside", False)
    assert surface.position({"lr": 1e-4, "width": 64.0}).side == "stable"


def test_a_margin_ends_where_trials_do_and_is_not_open(surface: SurfaceMap) -> None:
    here = {"lr": 1e-4, "width": 32.0}
    (wider,) = (each for each in surface.margins(here) if each.axis == "width" and each.is_upwards)
    assert wider.known <= end(surface) / 32
    assert not wider.is_open
    assert all(
        each.axis != "width" or each.stable_from <= end(surface) for each in surface.escapes({**here, "lr": 0.09})
    )


def test_edges_along_the_axis_lie_where_trials_are() -> None:
    table = table_up_to(128)
    low = table_with([trial for trial in table.trials if trial.cell["lr"] < 4e-3], table.axes)
    row = surface_map(low, "lr").row({"width": 16.0})
    assert all(edge.at is None or edge.at < 2e-2 for edge in row.edges)
    assert all(edge.high is None or edge.high < 2e-2 for edge in row.edges)


def test_sweeps_are_compared_where_both_have_trials(surface: SurfaceMap) -> None:
    region = shared_region([table_up_to(128), table_up_to(1024)], ["small", "large"])
    assert [axis.ends for axis in region] == [axis.ends for axis in surface.reach]


def test_a_list_keeps_what_was_tried_and_what_lies_between() -> None:
    ordered, words = Axis("depth", "values", (1, 2, 4, 8, 16)), Axis("norm", "values", ("none", "rms", "layer"))
    cells = [Cell({"depth": 2, "norm": "none"}), Cell({"depth": 8, "norm": "layer"})]
    depth, norm = reached([ordered, words], cells)
    assert depth.values == (2, 4, 8)
    assert norm.values == ("none", "layer")
    assert is_reached([ordered, words], [depth, norm], {"depth": 4, "norm": "none"})
    assert not is_reached([ordered, words], [depth, norm], {"depth": 4, "norm": "rms"})
    assert not is_reached([ordered, words], [depth, norm], {"depth": 16})
