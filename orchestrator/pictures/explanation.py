"""The picture of an explanation: a map whose cells have the colour and the name of the mechanism that rules them."""

from __future__ import annotations

from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from orchestrator.diagnosis.explanation import UNEXPLAINED, Explanation
from orchestrator.diagnosis.mechanisms.batches import BAD_BATCH
from orchestrator.diagnosis.mechanisms.catalogue import TITLES
from orchestrator.diagnosis.mechanisms.decay import PRECONDITIONER_DECAY
from orchestrator.diagnosis.mechanisms.edge import OVER_THE_EDGE, WARMUP_TOO_SHORT
from orchestrator.diagnosis.mechanisms.logits import LOGIT_GROWTH
from orchestrator.diagnosis.mechanisms.memory import SHORT_MEMORY
from orchestrator.diagnosis.mechanisms.precision import HALF_PRECISION_OVERFLOW
from orchestrator.diagnosis.mechanisms.scales import (
    CLIPPING_INACTIVE,
    CLIPPING_SATURATED,
    EPSILON_FLOOR,
    LAYERS_OUT_OF_STEP,
)
from orchestrator.maps.stability import MapCell
from orchestrator.pictures.maps import Panel, draw_panel, outcome_legend, panel_size, saved

_STABLE = "#0072B2"
# A short name in the cell tells mechanisms apart without colour.
_LOOKS: dict[str, tuple[str, str]] = {
    OVER_THE_EDGE: ("#D55E00", "edge"),
    WARMUP_TOO_SHORT: ("#E69F00", "warmup"),
    PRECONDITIONER_DECAY: ("#CC79A7", "decay"),
    SHORT_MEMORY: ("#882255", "memory"),
    EPSILON_FLOOR: ("#F0E442", "eps"),
    LAYERS_OUT_OF_STEP: ("#8C6D31", "layers"),
    LOGIT_GROWTH: ("#56B4E9", "logits"),
    CLIPPING_SATURATED: ("#999933", "clip"),
    CLIPPING_INACTIVE: ("#DDDDAA", "no clip"),
    BAD_BATCH: ("#009E73", "batch"),
    HALF_PRECISION_OVERFLOW: ("#000000", "16 bit"),
    UNEXPLAINED: ("#BBBBBB", "?"),
}
_PLACES = {mechanism: place + 1 for place, mechanism in enumerate(_LOOKS)}


def explanation_figure(found: Explanation, file_format: str) -> bytes:
    """The map with the edge of stability, its cells coloured by what rules them.

    The same ledger gives the same bytes. Raises ValueError for an unknown format.
    """
    return saved(lambda: _draw(found), file_format)


def _draw(found: Explanation) -> Figure:
    stability = found.stability
    width, height = panel_size(stability)
    figure = Figure(figsize=(max(1.25 * width + 0.6, 5.0), height + 2.0), layout="constrained")
    axes = figure.subplots()

    def place(cell: MapCell) -> float | None:
        ruling = found.ruling((cell.x, cell.y))
        if ruling is not None:
            return _PLACES[ruling]
        return 0.0 if cell.state == "stable" else None

    def text(cell: MapCell) -> str:
        ruling = found.ruling((cell.x, cell.y))
        return "" if ruling is None else _LOOKS[ruling][1]

    colours = ListedColormap([_STABLE, *(colour for colour, _ in _LOOKS.values())])
    norm = BoundaryNorm([place - 0.5 for place in range(len(_LOOKS) + 2)], len(_LOOKS) + 1)
    draw_panel(axes, stability, Panel("", colours, norm, place, text, has_edge=True))
    note = f"; {stability.note}" if stability.note else ""
    figure.suptitle(f"{stability.name}: what rules where it is not stable{note}", fontsize=11, wrap=True)
    there = [mechanism for mechanism in _LOOKS if any(found.ruling(key) == mechanism for key in found.rulings)]
    patches = [Patch(facecolor=_LOOKS[key][0], label=f"{_LOOKS[key][1]}: {TITLES.get(key, key)}") for key in there]
    figure.legend(
        handles=[*patches, *outcome_legend([stability])], loc="outside lower center", ncols=2, frameon=False, fontsize=8
    )
    return figure
