import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from sweep_cases import ledger_at, record, sweep_of
from tiers import thinned

from orchestrator.base.space import Axis
from orchestrator.driver.facts import driver_facts
from orchestrator.maps.cell_map import CellMap, cell_map, facet_maps
from orchestrator.maps.edges import StableRule
from orchestrator.maps.table import read_table
from orchestrator.render.comparison import comparison_picture
from orchestrator.render.labels import short_number, tick_labels
from orchestrator.render.maps import draw_edges, heatmap
from orchestrator.render.states import STATES
from orchestrator.render.style import EDGE_LABEL, RISE_LABEL, RISE_SIGN

ALL = ["stable", "spiked", "diverged", "stalled", "errored", "planned", "degraded"]


def map_of(folder: Path, body: str, labels: list[str] | None = None, losses=None) -> CellMap:
    sweep = sweep_of(body)
    cycle = itertools.islice(itertools.cycle(labels or ALL), len(sweep.trials))
    with ledger_at(folder) as ledger:
        record(ledger, sweep, list(cycle), losses)
        return cell_map(read_table(ledger))


SHAPES = {
    "one cell": ("axes: {lr: {values: [0.1]}}", ["stable"]),
    "one row": ("axes: {lr: {log: [1e-4, 1], num: 6}}", None),
    "one column": ("axes: {lr: {values: [0.1]}, eps: {log: [1e-12, 1e-2], num: 6}}", None),
    "grid": ("axes: {beta2: {log1m: [0.5, 0.9999], num: 5}, eps: {log: [1e-12, 1e-2], num: 6}}", None),
    "all diverged": ("axes: {lr: {values: [1, 2]}, eps: {values: [1e-8, 1e-4]}}", ["diverged"]),
    "nothing run": ("axes: {lr: {values: [1, 2]}, eps: {values: [1e-8, 1e-4]}}", ["planned"]),
    "words": ("axes: {schedule: {values: [constant, linear, cosine]}, clip: {values: [1, null]}}", None),
    "sampled": ("axes: {lr: {log: [1e-4, 1]}, beta2: {log1m: [0.5, 0.999]}}\nsample: {method: sobol, num: 12}", None),
    "sampled row": ("axes: {lr: {log: [1e-4, 1]}}\nsample: {method: random, num: 6}", None),
}


MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize(
    ("shape", "file_format"),
    thinned(itertools.product(SHAPES, MAGIC), lambda case: (case[0] == "one row") != (case[1] == "svg")),
)
def test_maps_of_every_shape_are_drawn(tmp_path: Path, shape: str, file_format: str) -> None:
    body, labels = SHAPES[shape]
    assert heatmap(file_format, map_of(tmp_path, body + "\n", labels)).startswith(MAGIC[file_format])


@pytest.mark.slow
def test_a_map_of_a_thousand_cells_is_drawn(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {lr: {log: [1e-4, 1], num: 32}, eps: {log: [1e-12, 1e-2], num: 32}}\n")
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, driver_facts(sweep))
        assert heatmap("png", cell_map(read_table(ledger))).startswith(b"\x89PNG")


@pytest.mark.parametrize("file_format", thinned(["png", "svg", "pdf"], "svg".__eq__))
def test_the_same_results_give_the_same_bytes(tmp_path: Path, file_format: str) -> None:
    body = SHAPES["words"][0] + "\n"
    pictures = {heatmap(file_format, map_of(tmp_path / str(i), body)) for i in range(2)}
    assert len(pictures) == 1


def test_every_state_is_explained_and_told_apart_without_colour(tmp_path: Path) -> None:
    body = "seeds: [0, 1]\naxes: {lr: {log: [1e-4, 1], num: 8}}\n"
    labels = [label for state in ALL for label in (state, state)] + ["stable", "planned"]
    picture = heatmap("svg", map_of(tmp_path, body, labels)).decode()
    on_figures = [look for state, look in STATES.items() if state != "running"]
    for words in (
        "diverged",
        "spiked",
        "stalled",
        "errored",
        "not run",
        "unknown",
        "all seeds stable",
        "1/1 of 2",
        "degraded",
    ):
        assert re.search(f"<!-- .*{words}", picture)
    for marks in (
        [(look.marker, look.is_hatched) for look in on_figures],
        [(look.sign, look.is_hatched) for look in on_figures],
        [look.letter for look in STATES.values()],
    ):
        assert len(set(marks)) == len(marks)


def test_diverged_losses_do_not_flatten_the_colours_of_the_others(tmp_path: Path) -> None:
    body = "axes: {lr: {values: [1, 2, 3]}}\n"
    picture = heatmap("svg", map_of(tmp_path, body, ["stable", "stable", "diverged"], [2.0, 2.5, 1e12])).decode()
    assert "colour clipped" in picture
    assert "1e12" in picture


@pytest.mark.parametrize(("num", "size"), [(12, 7), (17, 7), (18, 4)])
def test_numbers_shrink_only_where_a_panel_is_as_wide_as_can_be(tmp_path: Path, num: int, size: int) -> None:
    figure = heatmap.figure(map_of(tmp_path, f"axes: {{lr: {{log: [1e-4, 1], num: {num}}}}}\n", ["stable"]))
    assert {text.get_fontsize() for axes in figure.axes for text in axes.texts} == {size}


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="png, svg, pdf"):
        heatmap("gif", map_of(tmp_path, "axes: {lr: {values: [1]}}\n"))


@pytest.mark.parametrize(
    ("scale", "value", "label"),
    [
        ("log", 1e-8, "$10^{-8}$"),
        ("log", 0.03, "0.03"),
        ("log1m", 0.5, "0.5"),
        ("log1m", 0.9999, "0.9999"),
        ("log1m", 0.99989, "0.99989"),
        ("values", None, "none"),
        ("values", True, "true"),
        ("linear", 12, "12"),
    ],
)
def test_ticks_read_as_a_person_writes_them(scale: str, value, label: str) -> None:
    assert tick_labels(Axis("x", scale, ()), [value]) == [label]


def test_numbers_are_short() -> None:
    numbers = [0.0, 2.4567, 137.0, 5.8e6, 3.21e-7, -4e12]
    assert [short_number(n) for n in numbers] == ["0", "2.46", "137", "5.8e6", "3.2e-7", "-4e12"]
    # Where rounding changes the power of ten, and at the ends of what a double holds.
    numbers = [999.6, 9.96e5, -0.00999, 5e-324, 1.7976e308]
    assert [short_number(n) for n in numbers] == ["1e3", "1e6", "-1e-2", "4.9e-324", "1.8e308"]


def test_facets_and_comparisons_are_drawn_and_name_what_they_show(tmp_path: Path) -> None:
    body = "axes: {lr: {values: [1, 2]}, eps: {values: [1e-8, 1e-4]}, clip: {values: [0.5, null]}}\n"
    sweep = sweep_of(body)
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["stable", "diverged"] * 4)
        maps = facet_maps(read_table(ledger), "clip", {})
    picture = heatmap("svg", maps).decode()
    for words in ("clip = 0.5", "clip = none", "fraction of stable seeds", "median final loss", "edge of stability"):
        assert words in picture
    difference = comparison_picture("svg", [replace(one, name=f"sweep_{i}") for i, one in enumerate(maps)]).decode()
    for words in ("sweep_0", "sweep_1", "less that of sweep_0", "-100"):
        assert words in difference


def test_a_comparison_of_many_values_is_not_wider_than_a_page_and_names_all_of_them(tmp_path: Path) -> None:
    one = map_of(tmp_path, "axes: {lr: {values: [0.1, 1]}}\nseeds: [0]\n", ["stable", "diverged"])
    names = [f"interventions=lr x0.5 at 100 over 50, clip {i}.25 at 100" for i in range(11)]
    picture = comparison_picture("svg", [replace(one, name=name) for name in names]).decode()
    width, height = (float(size) / 72 for size in re.findall(r'(?:width|height)="([\d.]+)pt"', picture)[:2])
    assert width < 18
    assert height < 40
    shown = " ".join(re.findall(r"<!-- (.*?) -->", picture))
    assert all(name in shown for name in names)
    assert f"{names[0]} and 10 others: 2 cells" in shown
    assert shown.count("fraction of stable seeds") == 11
    assert shown.count("more stable (+) or less (-), points") == 10


def test_the_edge_is_drawn_between_known_cells_alone(tmp_path: Path) -> None:
    labels = ["stable", "diverged", "planned", "stable"]
    stability = map_of(tmp_path, "axes: {lr: {values: [1, 2, 3, 4]}}\n", labels)
    figure = Figure()
    axes = figure.add_subplot()
    draw_edges(axes, stability)
    (line,) = axes.lines
    assert list(line.get_xdata()[:2]) == [0.5, 0.5]
    assert np.isnan(line.get_xdata()[2:]).all()


def test_degraded_cells_and_slow_rises_are_marked_and_explained(tmp_path: Path) -> None:
    body = "axes: {lr: {values: [0.1, 0.2, 0.3]}}\n"
    stability = map_of(tmp_path, body, ["stable", "degraded", "stable"])
    picture = heatmap("svg", stability).decode()
    assert STATES["degraded"].label in picture
    assert EDGE_LABEL not in picture, "a degraded cell is not over the edge"
    assert EDGE_LABEL in heatmap("svg", replace(stability, rule=StableRule(True))).decode(), "unless it counts"
    assert RISE_LABEL not in picture
    cells = {key: replace(cell, num_risen=int(key[0] == 0.3)) for key, cell in stability.cells.items()}
    risen = heatmap("svg", replace(stability, cells=cells)).decode()
    assert RISE_LABEL in risen
    assert risen.count(f"1/1{RISE_SIGN}") == 1
