"""The picture of an explanation: a map whose cells have the colour and label of their dominant mechanism."""

from __future__ import annotations

from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from orchestrator.causes.diagnosis import UNEXPLAINED, Explanation
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.maps.cells import CellSummary
from orchestrator.render.labels import legend_below
from orchestrator.render.maps import Panel, draw_panel, outcome_legend, panel_size
from orchestrator.render.style import DPI, FRACTION_COLOURS, HATCH_WIDTH, saved

_STABLE = FRACTION_COLOURS[-1]
# Unexplained cells: colour, label and title.
_UNEXPLAINED_LOOK = ("#BBBBBB", "?", UNEXPLAINED)


def looks() -> dict[str, tuple[str, str, str]]:
    """The colour, the label and the title in the legend of each mechanism."""
    known = {key: (mechanism.colour, mechanism.label, mechanism.title) for key, mechanism in MECHANISMS.items()}
    return {**known, UNEXPLAINED: _UNEXPLAINED_LOOK}


def explanation_figure(explanation: Explanation, file_format: str) -> bytes:
    """Draw the map with the edge of stability, and cells coloured by mechanism.

    The same ledger gives the same bytes. Raises ValueError for an unknown format.
    """
    return saved(lambda: _draw(explanation), file_format, DPI["map"], hatch_linewidth=HATCH_WIDTH)


def _draw(explanation: Explanation) -> Figure:
    stability, look_of = explanation.stability, looks()
    places = {key: place + 1 for place, key in enumerate(look_of)}
    width, height = panel_size(stability)
    figure = Figure(figsize=(max(1.25 * width + 0.6, 5.0), height + 2.0), layout="constrained")
    axes = figure.subplots()

    def place(cell: CellSummary) -> float | None:
        mechanism = explanation.mechanism((cell.x, cell.y))
        if mechanism is not None:
            return places[mechanism]
        return 0.0 if cell.state == "stable" else None

    def text(cell: CellSummary) -> str:
        mechanism = explanation.mechanism((cell.x, cell.y))
        return "" if mechanism is None else look_of[mechanism][1]

    colours = ListedColormap([_STABLE, *(colour for colour, _, _ in look_of.values())])
    norm = BoundaryNorm([place - 0.5 for place in range(len(look_of) + 2)], len(look_of) + 1)
    draw_panel(axes, stability, Panel("", colours, norm, place, text, has_edge=True))
    note = f"; {stability.note}" if stability.note else ""
    figure.suptitle(f"{stability.name}: what dominates where it is not stable{note}", fontsize=11, wrap=True)
    dominant = {cause.mechanism for cause in explanation.causes.values()}
    shown = [look for mechanism, look in look_of.items() if mechanism in dominant]
    patches = [Patch(facecolor=colour, label=f"{label}: {title}") for colour, label, title in shown]
    legend_below(figure, [*patches, *outcome_legend([stability])], most_columns=2)
    return figure
