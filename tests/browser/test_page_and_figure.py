"""The page and the figure are two drawings of one map: cell by cell the same state, mark, colours, number and edge."""

import contextlib
import itertools
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from playwright.sync_api import Page
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.base.vocabulary import OUTCOMES
from orchestrator.maps.cell_map import CellMap, cell_map, map_of_trials
from orchestrator.maps.cells import REDUCTIONS
from orchestrator.maps.table import read_table
from orchestrator.pages.report import report_html
from orchestrator.render.maps import map_figure
from orchestrator.render.states import STATES
from orchestrator.render.style import LR_SIGNS

Cell = dict[str, Any]
AXES = "axes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5, 0.9]}, clip: {values: [0.5, 1.0, null]}}\n"
SAMPLED = "axes: {lr: {log: [1e-4, 1]}, beta2: {log1m: [0.5, 0.999]}}\nsample: {method: sobol, num: 24}\n"
LABELS = (*OUTCOMES, "stable", "stable", "stable", "errored", "planned", "lost")
LOSSES = {
    "over decades": lambda draw: 10 ** draw.uniform(-3, 6),
    "equal to six digits": lambda draw: 2.3 + 1e-8 * draw.random(),
    "all the same": lambda draw: 2.0,
    "at powers of ten": lambda draw: draw.choice([999.6, 9.96e5, 125_000.0, 0.00999, 1.0]),
    "some of them missing": lambda draw: draw.choice([None, 1.0, 4.0, 4.0, -2.0]),
}
READ_GRID = """([x, y, name, slices]) => {
    const panel = data.panels.findIndex((each) => each.name === name);
    Object.assign(choice, { x, y, panel, slices });
    drawMap();
    const found = [];
    const lines = [...document.querySelectorAll("#map tr")].filter((line) => line.querySelector("th[scope=row]"));
    lines.reverse().forEach((line, row) => [...line.querySelectorAll("td")].forEach((place, column) => {
        const button = place.querySelector("button");
        const style = button && button.style.backgroundColor ? getComputedStyle(button) : null;
        found.push({
            at: [column, row],
            text: button ? button.textContent : "",
            paint: style && style.backgroundColor,
            ink: style && button.textContent ? style.color : null,
            hatched: (button || place).classList.contains("hatched"),
            edges: ["edge-right", "edge-up"].filter((edge) => place.classList.contains(edge)),
        });
    }));
    return [found, document.getElementById("map-title").textContent];
}"""
READ_POINTS = """(name) => {
    choice.panel = data.panels.findIndex((each) => each.name === name);
    drawMap();
    const marks = [...document.querySelectorAll("#map svg text[pointer-events]")];
    return [...document.querySelectorAll("#map circle")].map((point, i) => ({
        paint: getComputedStyle(point).fill,
        text: marks[i].textContent,
        ink: marks[i].textContent ? getComputedStyle(marks[i]).fill : null,
    }));
}"""


def rgb(colour: Any) -> str:
    return "rgb({}, {}, {})".format(*(int(to_hex(colour)[i : i + 2], 16) for i in (1, 3, 5)))


def drawn_grid(axes: Axes, stability: CellMap, has_edge: bool) -> list[Cell]:
    """What is seen of each cell on a panel of a figure, read off what matplotlib was told to draw."""
    places = itertools.product(range(len(stability.x_values)), range(len(stability.y_values)))
    blank = {"text": "", "paint": None, "ink": None, "hatched": False, "edges": []}
    cells: dict[tuple[int, int], Cell] = {at: {"at": list(at), **blank, "edges": []} for at in places}

    def squares(collection) -> list[tuple[int, int]]:
        centres = [path.get_extents() for path in collection.get_paths()]
        return [(round((box.x0 + box.x1) / 2), round((box.y0 + box.y1) / 2)) for box in centres]

    without, painted, over = axes.collections
    for at, colour in zip(squares(painted), painted.get_facecolor(), strict=True):
        cells[at]["paint"] = rgb(colour)
    for at in [*squares(without), *squares(over)]:
        cells[at]["hatched"] = True
    signs = {look.marker: look.sign for look in STATES.values() if look.marker}
    for line in axes.lines:
        marker = line.get_marker()
        if marker in signs:
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
                cells[round(x), round(y)] |= {"text": signs[marker], "ink": rgb(line.get_color())}
        elif has_edge:
            ends = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
            for (x0, y0), (x1, _), _ in zip(*[iter(ends)] * 3, strict=True):
                is_right = x0 == x1
                at = (round(x0 - 0.5), round(y0 + 0.5)) if is_right else (round(x0 + 0.5), round(y0 - 0.5))
                cells[at]["edges"].append("edge-right" if is_right else "edge-up")
    for text in axes.texts:
        cell = cells[round(text.get_position()[0]), round(text.get_position()[1])]
        cell["text"] = "\n".join(filter(None, (cell["text"], text.get_text())))
        cell["ink"] = rgb(text.get_color())
    return list(cells.values())


def random_sweep(folder: Path, body: str, seed: int, losses: str):
    """A ledger whose trials ended in every way there is; with an odd seed some cells are no longer in the sweep."""
    sweep, draw = sweep_of(body), random.Random(seed)
    labels = [draw.choice(LABELS) for _ in sweep.trials]
    ledger = ledger_at(folder)
    found = [LOSSES[losses](draw) if label in OUTCOMES else None for label in labels]
    map_ledger(ledger, sweep, labels, found)
    gone = [trial.trial_id for trial in sweep.trials if seed % 2 and trial.cell["lr"] < 0.02 < trial.cell["beta1"]]
    with contextlib.closing(sqlite3.connect(ledger.path)) as db, db:
        db.executemany("UPDATE trials SET position = NULL WHERE trial_id = ?", [(trial_id,) for trial_id in gone])
    return ledger


def open_report(page: Page, folder: Path, ledger) -> None:
    (folder / "report.html").write_text(report_html(read_table(ledger), cell_map(read_table(ledger)), ""))
    page.goto((folder / "report.html").absolute().as_uri())


def by_place(cells: list[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: cell["at"])


@pytest.mark.parametrize(("seed", "losses"), list(enumerate(LOSSES)), ids=list(LOSSES))
def test_every_cell_of_the_page_is_that_of_the_figure(
    page: Page, tmp_path: Path, complaints: list[str], seed: int, losses: str
) -> None:
    with random_sweep(tmp_path, f"seeds: [0, 1]\n{AXES}", seed, losses) as ledger:
        open_report(page, tmp_path, ledger)
        names = ["lr", "beta1", "clip"]
        slices = [*((how, how) for how in REDUCTIONS), ("1", "worst")]
        metrics = ["final_loss", "num_spikes"] if losses == "over decades" else ["final_loss"]
        for (x, y), (third, how), metric in itertools.product(
            [("lr", "beta1"), ("clip", "lr"), ("beta1", None)], slices, metrics
        ):
            rest = [name for name in names if name not in (x, y)]
            # A slice by value fixes the first of the axes that are not shown; the others are reduced.
            chosen = {name: third if i == 0 else how for i, name in enumerate(rest)}
            values = {"lr": 0.01, "beta1": 0.5, "clip": 1.0}
            where = {name: values[name] for name, slice_ in chosen.items() if slice_ == "1"}
            options = {"x": x, "metric": metric, "where": where, "reduce": how}
            stability = cell_map(read_table(ledger), **options, y=y) if y else one_row(ledger, **options)
            figure = map_figure([stability])
            for axes, name in ((figure.axes[0], "fraction"), (figure.axes[1], metric)):
                if name == "fraction" and metric != "final_loss":
                    continue  # the page's fractions are those of the figure that a report comes with
                place = [names.index(x), names.index(y) if y else -1]
                seen, title = page.evaluate(READ_GRID, [*place, name, [chosen.get(axis, how) for axis in names]])
                expected = drawn_grid(axes, stability, has_edge=name == "fraction")
                if name != "fraction":
                    seen = [{**cell, "edges": []} for cell in seen]  # the figure draws them beside this panel
                assert by_place(seen) == by_place(expected), (x, y, chosen, name)
                assert title == axes.get_title()
    assert complaints == []


def one_row(ledger, **options: Any) -> CellMap:
    """A map of one axis, the others reduced: the command line draws none while another axis is free."""
    table = read_table(ledger)
    axes = {axis.name: axis for axis in table.axes}
    return map_of_trials(
        table.where("", options["where"]).trials,
        axes,
        options["x"],
        None,
        table.column_measure(options["metric"]),
        options["reduce"],
        "",
    )


def test_every_point_of_a_sampled_page_is_that_of_the_figure(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    with random_sweep(tmp_path, f"seeds: [0, 1]\n{SAMPLED}", 8, "over decades") as ledger:
        open_report(page, tmp_path, ledger)
        stability = cell_map(read_table(ledger))
        figure = map_figure([stability])
    for axes, name in ((figure.axes[0], "fraction"), (figure.axes[1], "final_loss")):
        seen = page.evaluate(READ_POINTS, name)
        (points,) = axes.collections
        marks = {}
        signs = {look.marker: look.sign for look in STATES.values() if look.marker}
        for line in axes.lines:
            for place in zip(line.get_xdata(), line.get_ydata(), strict=True):
                marks[place] = {"text": signs[line.get_marker()], "ink": rgb(line.get_color())}
        assert seen == [
            {"paint": rgb(colour), "text": "", "ink": None, **marks.get(tuple(place), {})}
            for place, colour in zip(points.get_offsets().tolist(), points.get_facecolor(), strict=True)
        ]
    assert complaints == []


@pytest.mark.parametrize("seed", [2, 4, 5])
def test_the_keys_of_page_and_figure_say_the_same(page: Page, tmp_path: Path, seed: int) -> None:
    with random_sweep(tmp_path, f"seeds: [0, 1]\n{AXES}", seed, "over decades") as ledger:
        open_report(page, tmp_path, ledger)
        (legend,) = map_figure([cell_map(read_table(ledger), reduce="median")]).legends
    page.locator("#slice-2").select_option("median")
    signs = {look.sign for look in STATES.values() if look.sign} | {sign for sign, _ in LR_SIGNS.values()}
    items = page.locator("#key li:not(:has([style]))").all_inner_texts()  # all but the scale of colours
    words = [" ".join(word for word in text.split() if word not in signs) for text in items]
    assert [text.removeprefix("thick lines: ") for text in words] == [text.get_text() for text in legend.get_texts()]
