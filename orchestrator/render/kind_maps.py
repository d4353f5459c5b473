"""Maps whose unstable cells are coloured by kind: by the mechanism that dominates, or by the cheapest remedy."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from orchestrator.base.vocabulary import DEGRADED
from orchestrator.base.words import count
from orchestrator.causes.diagnosis import UNEXPLAINED, Explanation, Key
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.remedies.cells import CellRemedies
from orchestrator.causes.remedies.reading import Remedies
from orchestrator.causes.remedies.remedy import KINDS
from orchestrator.maps.cell_map import CellMap
from orchestrator.maps.cells import CellSummary
from orchestrator.render.labels import legend_below, plain
from orchestrator.render.maps import Panel, draw_panel, outcome_legend, panel_size
from orchestrator.render.states import STATES
from orchestrator.render.style import (
    BLUE,
    EDGE_LABEL,
    FRACTION_COLOURS,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    TEXT_ROOM,
    VERMILION,
    YELLOW,
    picture,
)

# Unexplained cells: colour, label and title.
_UNEXPLAINED_LOOK = ("#BBBBBB", "?", UNEXPLAINED)
NONE = "none"
_STABLE = "#EDF1F4"
_COLOURS = {
    "lr": BLUE,
    "beta1": SKY,
    "beta2": GREEN,
    "eps": YELLOW,
    "clip": ORANGE,
    "skip": PURPLE,
    "mean": "#8B5A2B",
    "reset": VERMILION,
    "other": "#BBBBBB",
    NONE: "#333333",
}
_WIDER, _HIGHER = 1.7, 1.5  # than the cells of other maps, for a remedy and a step
_LETTERS = 13  # of a line in a cell


# --- by mechanism ---


@picture("map")
def explanation_figure(explanation: Explanation) -> Figure:
    """Draw the map with the edge of stability, and cells coloured and labelled by mechanism."""
    stability, look_of = explanation.stability, looks()
    kinds = {key: cause.mechanism for key, cause in explanation.causes.items()}
    texts = {key: look_of[mechanism][1] for key, mechanism in kinds.items()}
    colours = {mechanism: colour for mechanism, (colour, _, _) in look_of.items()}
    width, height = panel_size(stability)
    size = (max(1.25 * width + 0.6, 5.0), height + 2.0)
    figure = _map_of_kinds(stability, size, kinds, texts, colours, (FRACTION_COLOURS[-1], ["stable"]))
    title = f"{stability.name}: what dominates where it is not stable{_note(stability)}"
    figure.suptitle(title, fontsize=11, wrap=True)
    dominant = set(kinds.values())
    shown = [look for mechanism, look in look_of.items() if mechanism in dominant]
    patches = [Patch(facecolor=colour, label=f"{label}: {title}") for colour, label, title in shown]
    legend_below(figure, [*patches, *outcome_legend([stability])], most_columns=2)
    return figure


def looks() -> dict[str, tuple[str, str, str]]:
    """The colour, the label and the title in the legend of each mechanism."""
    known = {key: (mechanism.colour, mechanism.label, mechanism.title) for key, mechanism in MECHANISMS.items()}
    return {**known, UNEXPLAINED: _UNEXPLAINED_LOOK}


# --- by the cheapest remedy ---


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


@picture("map")
def remedy_map_figure(results: CellRemedies, stability: CellMap) -> Figure:
    """Draw the map with the edge of stability, and cells with their cheapest remedy, its colour and its fork step.

    If several cells coincide on the map it shows the hardest to save.
    """
    cells = hardest_of_each(results, stability)
    kinds, texts = ({key: of(remedy) for key, remedy in cells.items()} for of in (_kind, _words))
    width, height = panel_size(stability)
    wider, higher = (_WIDER, _HIGHER) if stability.is_grid else (1.0, 1.0)
    size = (max(wider * width, 6.5), higher * height + 2.2)
    figure = _map_of_kinds(stability, size, kinds, texts, _COLOURS, (_STABLE, ["stable", DEGRADED]))
    title = f"{stability.name}: the cheapest remedy of {len(results.cells)} unstable cells{_note(stability)}"
    figure.suptitle(plain(textwrap.fill(title, max(30, int(13 * figure.get_figwidth())))), fontsize=11)
    legend_below(figure, _legend(cells, stability), most_columns=2)
    return figure


def _kind(remedy: Remedies) -> str:
    return remedy.kind or NONE


def _words(remedy: Remedies) -> str:
    """The remedy in a line or two, and its fork step."""
    if remedy.cheapest is None:
        measured = remedy.measured(remedy.best_partial)
        return f"none\n{measured.saved}/{measured.tried}" if measured else "none"
    lines = textwrap.wrap(remedy.cheapest.remedy.name, _LETTERS)[:2]
    step = f"at {remedy.cheapest.fork_step}" if remedy.from_onset is None else f"{remedy.from_onset:+d}"
    return plain("\n".join([*lines, step]))


def _legend(cells: Mapping[Key, Remedies], stability: CellMap) -> list[Any]:
    counts = {kind: sum(_kind(remedy) == kind for remedy in cells.values()) for kind in _COLOURS}
    titles = {**KINDS, NONE: "no remedy is named, or none that saves all (saved/tried)"}
    patches = [
        Patch(facecolor=_COLOURS[kind], label=f"{titles[kind]}: {count(num, 'cell')}")
        for kind, num in counts.items()
        if num
    ]
    has_words = stability.is_grid and len(stability.cells) <= TEXT_ROOM
    shown = [remedy.from_onset for remedy in cells.values() if remedy.from_onset is not None and remedy.cheapest]
    if has_words and shown:
        earliest = min(shown)
        where = f"{count(abs(earliest), 'step')} {'before' if earliest < 0 else 'after'}" if earliest else "at"
        patches.append(Patch(facecolor="none", edgecolor="none", label=f"{earliest:+d}: forked {where} the onset"))
    drawn = {EDGE_LABEL, STATES["not_run"].label, *(look.label for look in STATES.values() if look.marker)}
    marks = [remedy for remedy in outcome_legend([stability]) if remedy.get_label() in drawn]
    inside = "stable or degraded" if any(cell.state == DEGRADED for cell in stability.cells.values()) else "stable"
    return [*patches, Patch(facecolor=_STABLE, label=f"{inside}: nothing to remedy"), *marks]


# --- both ---


def _map_of_kinds(
    stability: CellMap,
    size: tuple[float, float],
    kinds: Mapping[Key, str],
    texts: Mapping[Key, str],
    colours: Mapping[str, str],
    stable: tuple[str, Sequence[str]],
) -> Figure:
    """The map with ``texts`` in cells of the colour of their kind; ``stable`` are the colour and states of others."""
    places = {kind: place for place, kind in enumerate(colours, 1)}
    stable_colour, stable_states = stable

    def value(cell: CellSummary) -> float | None:
        if (kind := kinds.get((cell.x, cell.y))) is not None:
            return places[kind]
        return 0.0 if cell.state in stable_states else None

    norm = BoundaryNorm([place - 0.5 for place in range(len(colours) + 2)], len(colours) + 1)
    colour_map = ListedColormap([stable_colour, *colours.values()])
    panel = Panel("", colour_map, norm, value, lambda cell: texts.get((cell.x, cell.y), ""), has_edge=True)
    figure = Figure(figsize=size, layout="constrained")
    draw_panel(figure.subplots(), stability, panel)
    return figure


def _note(stability: CellMap) -> str:
    return f"; {stability.note}" if stability.note else ""
