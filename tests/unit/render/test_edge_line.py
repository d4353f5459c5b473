import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.base.space import Trial
from orchestrator.maps.edge_line import EdgeLines, edge_lines
from orchestrator.maps.table import read_table
from orchestrator.render.edge_line import edge_picture
from orchestrator.render.panels import BAND_LABEL

LR = "  lr: {log: [0.001, 1.0], num: 13}\n"
GRID = f"axes:\n{LR}  beta1: {{linear: [0.0, 0.9], num: 4}}\n"
FACETS = GRID + "  optimizer: {values: [sgd, adamw, lion]}\n"
MANY = GRID + "  eps: {log: [1e-12, 1e-3], num: 10}\n"
WORDS = f"axes:\n{LR}  optimizer: {{values: [sgd, adamw]}}\n"
CLIP = f"axes:\n  clip: {{values: [0.1, 1.0, null]}}\n{LR}"
RANGES = "sample: {method: sobol, num: 80}\naxes:\n  lr: {log: [0.001, 1.0]}\n  beta1: {linear: [0.0, 0.9]}\n"
LIST = RANGES.replace("{linear: [0.0, 0.9]}", "{values: [0.0, 0.3, 0.6, 0.9]}")
BODIES = {"grid": GRID, "facets": FACETS, "many facets": MANY, "words": WORDS, "no clipping": CLIP}
BODIES |= {"range": RANGES, "range by words": RANGES + "  optimizer: {values: [sgd, adamw]}\n", "list": LIST}
MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def label(trial: Trial) -> str:
    return "stable" if trial.cell["lr"] < 10 ** (-2 + 1.2 * trial.cell.get("beta1", 0.5)) else "diverged"


def lines_of(folder: Path, body: str, label=label, **options) -> EdgeLines:
    sweep = sweep_of(body)
    with ledger_at(folder) as ledger:
        map_ledger(ledger, sweep, [label(trial) for trial in sweep.trials])
        if "eps" in body:
            options.setdefault("facet", "eps")
        return edge_lines(read_table(ledger), **options)


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> EdgeLines:
    """The edge of few scattered cells."""
    return lines_of(tmp_path_factory.mktemp("fit"), RANGES.replace("num: 80", "num: 24"))


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_edges_of_every_kind_are_drawn_alike_each_time(tmp_path: Path, body: str) -> None:
    found = lines_of(tmp_path, body)
    picture = edge_picture("svg", found)
    assert picture.startswith(MAGIC["svg"])
    assert picture == edge_picture("svg", found)


def test_a_picture_is_png_svg_or_pdf(tmp_path: Path) -> None:
    found = lines_of(tmp_path, GRID)
    assert all(edge_picture(name, found).startswith(magic) for name, magic in MAGIC.items())
    with pytest.raises(ValueError, match="gif"):
        edge_picture("gif", found)


def test_title_axes_and_legend_say_what_is_drawn(tmp_path: Path, fit: EdgeLines) -> None:
    figure = edge_picture.figure(lines_of(tmp_path / "grid", FACETS))
    (axes,) = figure.axes
    assert figure.get_suptitle() == "case: edge along lr against beta1"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("beta1", "edge along lr (log scale), stable below")
    names = ["optimizer = sgd", "optimizer = adamw", "optimizer = lion"]
    assert legend(figure) == [*names, "between two neighbours, one stable and one not"]
    figure = edge_picture.figure(fit)
    assert figure.get_suptitle() == "case: edge along lr against beta1; a fit to 24 trials in 24 cells"
    assert legend(figure) == [BAND_LABEL]


def test_bars_of_a_grid_stand_beside_each_other_and_reach_over_their_brackets(tmp_path: Path) -> None:
    found = lines_of(tmp_path, FACETS)
    (axes,) = edge_picture.figure(found).axes
    bars = np.array([segment for bar in axes.collections for segment in bar.get_segments()])
    edges = [edge for line in found.lines for _, edge in line.edges]
    assert [tuple(bar[:, 1]) for bar in bars] == [
        (pytest.approx(np.log10(edge.low)), pytest.approx(np.log10(edge.high))) for edge in edges
    ]
    places = sorted(bars[:, 0, 0])
    assert len(set(places)) == len(edges)
    assert np.allclose(np.diff(places)[:2], 0.06), "three lines in three fifths of the distance of values"


def test_a_curve_is_the_fitted_edge_within_its_band(fit: EdgeLines) -> None:
    (axes,) = edge_picture.figure(fit).axes
    curve = next(line for line in axes.lines if len(line.get_xdata()) > 2)
    assert [tuple(point) for point in curve.get_xydata()] == [
        (row.setting["beta1"], pytest.approx(np.log10(edge.at))) for row, edge in fit.lines[0].edges
    ]
    (band,) = axes.collections
    outline = band.get_paths()[0].vertices[:, 1]
    for _, edge in fit.lines[0].edges:
        for end in (edge.low, edge.high):
            assert np.isclose(outline, np.log10(end)).any()


def throughout(trial: Trial) -> str:
    """Rows: stable throughout, not stable throughout, an edge, and two edges."""
    row, high = round(trial.cell["beta1"] / 0.3), trial.cell["lr"] > 0.1
    return "diverged" if row == 1 or (row == 2 and high) or (row == 3 and 0.01 < trial.cell["lr"] < 0.1) else "stable"


@pytest.mark.parametrize("is_stable_low", [True, False])
def test_rows_without_an_edge_have_arrows_beyond_the_end_where_it_would_lie(tmp_path: Path, is_stable_low) -> None:
    swapped = {"stable": "diverged", "diverged": "stable"}
    found = lines_of(tmp_path, GRID, throughout if is_stable_low else lambda trial: swapped[throughout(trial)])
    figure = edge_picture.figure(found)
    (axes,) = figure.axes
    arrows = {line.get_marker(): line.get_xydata() for line in axes.lines if line.get_marker() in ("^", "v")}
    ((up_at, up),), ((down_at, down),) = arrows["^"], arrows["v"]
    assert (up_at, up > 0, down < -3) == (0.0, True, True)
    assert down_at == pytest.approx(0.3)
    low, high = axes.get_ylim()
    assert low < down < up < high
    other = "above" if is_stable_low else "below"
    told = legend(figure)[1:]
    assert told == [f"stable {other} the edge", "stable throughout", "not stable throughout"]


def test_names_with_signs_of_formulas_are_shown_as_they_are(tmp_path: Path) -> None:
    found = replace(lines_of(tmp_path, GRID), name="a $sweep_2$", notes=("it is $5",))
    assert re.search(r"<!-- .*\$sweep_2\\?\$.*-->", edge_picture("svg", found).decode())
