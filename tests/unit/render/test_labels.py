"""Texts, ticks, scales and legends of pictures."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from orchestrator.base.space import Axis
from orchestrator.render.labels import AxisScale, distinct_numbers, legend_below, num_columns
from orchestrator.render.states import STATES
from orchestrator.render.style import EDGE_LABEL


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.1, 0.25, 1e-5, 2500.0], ["0.1", "0.25", "1e-5", "2.5e3"]),
        ([3.264, 3.266, 3.272], ["3.264", "3.266", "3.272"]),
        ([1.00001, 1.00002], ["1.00001", "1.00002"]),
        ([2.0, 2.0], ["2", "2"]),
        ([], []),
    ],
)
def test_numbers_that_differ_have_texts_that_differ(values: list[float], texts: list[str]) -> None:
    assert distinct_numbers(values) == texts


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


LR = Axis("lr", "log", (1e-4, 1e-2, 1.0), (1e-4, 1.0))


def ticks(axis: Axis, limits: tuple[float, float] | None = None) -> dict[float, str]:
    """The places of the ticks of a picture's axis, rounded, with their texts."""
    scale, drawn = AxisScale.of(axis), Figure().subplots().xaxis
    scale.label(drawn, limits or scale.ends)
    shown = zip(drawn.get_ticklocs(), drawn.get_ticklabels(), strict=True)
    return {round(float(place), 4): label.get_text() for place, label in shown}


def test_values_lie_at_their_places_on_the_scale_and_words_at_their_ranks() -> None:
    scale = AxisScale.of(LR)
    assert [scale.place(value) for value in LR.values] == [-4, -2, 0]
    assert (scale.ends, scale.gap) == ((-4, 0), 2)
    words = AxisScale.of(Axis("optimizer", "values", ("sgd", "adamw")))
    assert (words.place("adamw"), words.is_numeric) == (1.0, False)
    mixed = AxisScale.of(Axis("warmup", "values", (10, 20, "auto")))
    assert (mixed.place("auto"), mixed.is_numeric) == (2.0, False)


def test_no_clipping_lies_one_step_beyond_the_last_number() -> None:
    clip = AxisScale.of(Axis("clip", "values", (0.5, 1.0, 2.5, None)))
    assert (clip.place(None), clip.ends, clip.is_numeric) == (4.0, (0.5, 4.0), True)
    assert ticks(clip.axis) == {0.5: "0.5", 1.0: "1", 2.5: "2.5", 4.0: "none"}


def test_a_list_of_numbers_has_the_scale_that_its_values_suggest_and_ticks_at_them() -> None:
    assert ticks(Axis("beta2", "values", (0.9, 0.99, 0.9999))) == {1: "0.9", 2: "0.99", 4: "0.9999"}


@pytest.mark.parametrize(
    ("axis", "limits", "shown"),
    [
        (LR, None, [f"$10^{{{power}}}$" for power in range(-4, 1)]),
        (LR, (-2.31, -1.1), ["0.005", "0.01", "0.02", "0.05"]),
        (Axis("beta2", "log1m", (), (0.9, 0.9999)), None, ["0.9", "0.99", "0.999", "0.9999"]),
        (Axis("beta2", "log1m", (), (0.9, 0.99)), None, ["0.9", "0.95", "0.98", "0.99"]),
        (Axis("beta1", "linear", (), (0.0, 0.9)), None, ["0", "0.2", "0.4", "0.6", "0.8"]),
    ],
)
def test_ticks_are_round_numbers_of_the_part_that_is_shown(axis: Axis, limits, shown: list[str]) -> None:
    assert list(ticks(axis, limits).values()) == shown
    for place, text in ticks(axis, limits).items():
        if not text.startswith("$"):
            assert AxisScale.of(axis).place(float(text)) == pytest.approx(place, abs=1e-4)


def test_many_values_have_few_ticks() -> None:
    assert len(ticks(Axis("batch_size", "values", tuple(range(8, 48))))) <= 12
