"""The legend of a picture lies within it, however narrow the picture is."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from orchestrator.render.labels import legend_below, num_columns
from orchestrator.render.style import EDGE_LABEL, STATES

LABELS = [*(look.label for look in STATES.values()), EDGE_LABEL, "too slow: a higher learning rate ends lower"]


@pytest.mark.parametrize("width", [5.4, 8.4, 12.0, 20.0])
def test_no_label_is_cut_off(width: float) -> None:
    figure = Figure(figsize=(width, 4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.subplots()
    legend_below(figure, [Line2D([], [], label=label) for label in LABELS])
    canvas.draw()
    drawn = figure.legends[0].get_window_extent()
    assert 0 <= drawn.x0 < drawn.x1 <= figure.bbox.width


def test_there_are_as_many_columns_as_fit() -> None:
    short = ["a", "b", "c"]
    assert num_columns(short, 8.4, most=3) == 3
    assert num_columns(short, 8.4, most=2) == 2
    assert num_columns(short[:1], 8.4, most=3) == 1
    assert num_columns(["x" * 60] * 3, 8.4, most=3) == 1
    assert num_columns(["x" * 50] * 4, 8.4, most=3) == 2


def test_without_handles_there_is_no_legend() -> None:
    figure = Figure()
    legend_below(figure, [])
    assert not figure.legends
