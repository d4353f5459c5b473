"""The stability map with the cheapest remedy of each unstable cell, coloured by its kind."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from orchestrator.causes.remedies.reading import Remedies
from orchestrator.causes.remedies.remedy import KINDS
from orchestrator.causes.remedies.results import CellRemedies
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.cells import CellSummary
from orchestrator.render.labels import legend_below, plain
from orchestrator.render.maps import Panel, draw_panel, outcome_legend, panel_size
from orchestrator.render.style import (
    BLUE,
    DPI,
    EDGE_LABEL,
    GREEN,
    HATCH_WIDTH,
    ORANGE,
    PURPLE,
    SKY,
    STATES,
    TEXT_ROOM,
    VERMILION,
    YELLOW,
    saved,
)

NONE = "none"
_STABLE = "#EDF1F4"
_COLOURS = {
    "lr": BLUE,
    "beta1": SKY,
    "beta2": GREEN,
    "eps": YELLOW,
    "clip": ORANGE,
    "skip": PURPLE,
    "reset": VERMILION,
    "other": "#BBBBBB",
    NONE: "#333333",
}
_WIDER, _HIGHER = 1.7, 1.5  # than the cells of other maps, for a remedy and a step
_LETTERS = 13  # of a line in a cell
Key = tuple[Any, Any]


def remedy_map_figure(results: CellRemedies, stability: CellMap, file_format: str) -> bytes:
    """Draw the map with the edge of stability, and cells coloured by the kind of their cheapest remedy.

    If several cells coincide on the map it shows the hardest to save. The same ledgers give the same bytes.
    Raises ValueError for an unknown format.
    """
    return saved(lambda: _draw(results, stability), file_format, DPI["map"], hatch_linewidth=HATCH_WIDTH)


def hardest_of_each(results: CellRemedies, stability: CellMap) -> dict[Key, Remedies]:
    """For each cell of the map, the sweep's cell that is hardest to save.

    It is a cell that nothing saves, or the one that has to be forked earliest before its onset.
    """
    places: dict[Key, Remedies] = {}
    for remedy in results.cells:
        cell = remedy.trial.cell
        key = (cell[stability.x.name], cell[stability.y.name] if stability.y else None)
        if key not in places or _hardness(remedy) > _hardness(places[key]):
            places[key] = remedy
    return places


def _hardness(remedy: Remedies) -> tuple[bool, int, float]:
    if remedy.cheapest is None:
        return True, -(remedy.best_partial.saved if remedy.best_partial else 0), 0.0
    return False, (remedy.onset or 0) - remedy.cheapest.fork_step, remedy.cheapest.comparable_loss


def _draw(results: CellRemedies, stability: CellMap) -> Figure:
    cells = hardest_of_each(results, stability)
    places = {kind: place + 1 for place, kind in enumerate(_COLOURS)}
    width, height = panel_size(stability)
    scale = (1.0, 1.0) if not stability.is_grid else (_WIDER, _HIGHER)
    figure = Figure(figsize=(max(scale[0] * width, 6.5), scale[1] * height + 2.2), layout="constrained")
    axes = figure.subplots()

    def place(cell: CellSummary) -> float | None:
        remedy = cells.get((cell.x, cell.y))
        if remedy is not None:
            return places[_kind(remedy)]
        return 0.0 if cell.state in ("stable", "degraded") else None

    def text(cell: CellSummary) -> str:
        remedy = cells.get((cell.x, cell.y))
        return "" if remedy is None else _words(remedy)

    colours = ListedColormap([_STABLE, *_COLOURS.values()])
    norm = BoundaryNorm([place - 0.5 for place in range(len(_COLOURS) + 2)], len(_COLOURS) + 1)
    draw_panel(axes, stability, Panel("", colours, norm, place, text, has_edge=True))
    note = f"; {stability.note}" if stability.note else ""
    title = f"{stability.name}: the cheapest remedy of {len(results.cells)} unstable cells{note}"
    figure.suptitle(plain(textwrap.fill(title, max(30, int(13 * figure.get_figwidth())))), fontsize=11)
    legend_below(figure, _legend(cells, stability), most_columns=2)
    return figure


def _kind(remedy: Remedies) -> str:
    return remedy.kind or NONE


def _words(remedy: Remedies) -> str:
    """The remedy in a line or two, and its fork step."""
    if remedy.cheapest is None:
        return f"none\n{remedy.best_partial.saved}/{remedy.best_partial.tried}" if remedy.best_partial else "none"
    lines = textwrap.wrap(remedy.cheapest.remedy.name, _LETTERS)[:2]
    step = f"at {remedy.cheapest.fork_step}" if remedy.from_onset is None else f"{remedy.from_onset:+d}"
    return plain("\n".join([*lines, step]))


def _legend(cells: Mapping[Key, Remedies], stability: CellMap) -> list[Any]:
    counts = {kind: sum(_kind(remedy) == kind for remedy in cells.values()) for kind in _COLOURS}
    titles = {**KINDS, NONE: "no remedy saves every replicate (saved/tried by the best)"}
    patches = [
        Patch(facecolor=_COLOURS[kind], label=f"{titles[kind]}: {num} cell{'s' if num > 1 else ''}")
        for kind, num in counts.items()
        if num
    ]
    has_words = stability.is_grid and len(stability.cells) <= TEXT_ROOM
    if has_words and any(remedy.from_onset is not None and remedy.cheapest for remedy in cells.values()):
        patches.append(Patch(facecolor="none", edgecolor="none", label="-50: forked 50 steps before the onset"))
    drawn = {EDGE_LABEL, STATES["not_run"].label, *(look.label for look in STATES.values() if look.marker)}
    marks = [remedy for remedy in outcome_legend([stability]) if remedy.get_label() in drawn]
    return [*patches, Patch(facecolor=_STABLE, label="stable: nothing to remedy"), *marks]
