"""Cell data of the page: states, numbers, order and looks. The page itself judges nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from orchestrator.columns import FRACTION_TITLE, METRICS, meaning, title
from orchestrator.detection.outcomes import is_known, is_over_edge
from orchestrator.maps.curve_metrics import Measured
from orchestrator.maps.stability import MapCell, from_best, map_cell
from orchestrator.messages import TrialRow
from orchestrator.pictures import style
from orchestrator.pictures.colours import colour_table, fraction_colours, ink, value_colours
from orchestrator.pictures.labels import fraction_text, short_number
from orchestrator.space import Axis

# The panel of fractions shows the cells of a map of this metric.
_METRIC = "final_loss"


def cells_and_panels(
    rows: Sequence[TrialRow], axes: Sequence[Axis], measured: Measured
) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """The cells over all axes of the sweep, and what can be shown of each.

    Which of several cells a map of fewer axes shows follows only from a panel's ``rank``, the index of each cell in
    ``from_best``, and from REDUCTIONS.
    """
    place = [{value: i for i, value in enumerate(axis.values)} for axis in axes]
    members: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        at = tuple(of_axis[row.cell[axis.name]] for of_axis, axis in zip(place, axes, strict=True))
        members.setdefault(at, []).append(i)
    cells = [map_cell(None, None, [rows[i] for i in trials], _METRIC, measured) for trials in members.values()]
    fractions = [cell.fraction_stable for cell in cells]
    texts = [fraction_text(cell) for cell in cells]
    panels = [_panel("fraction", FRACTION_TITLE, "stable seeds of those that have a result", fractions, texts, cells)]
    panels[0] |= {"colours": "fraction", "range": [0, 1]}
    for name in dict.fromkeys([*METRICS, *measured]):
        values = [_finite(cell.medians[name]) for cell in cells]
        texts = ["" if value is None else short_number(value) for value in values]
        panels.append(_panel(name, title(name), meaning(name), values, texts, cells))
    known: dict[str, list[Any]] = {
        "at": list(members),
        "members": list(members.values()),
        "state": [cell.state for cell in cells],
        "words": [_words(cell) for cell in cells],
        "num_risen": [cell.num_risen for cell in cells],
        "lr_health": [cell.lr_health for cell in cells],
    }
    return known, panels


def _words(cell: MapCell) -> str:
    """The labels of a cell's seeds, how many of them rose slowly, and the word on the learning rate."""
    counts = [f"{count} {label}" for label, count in cell.outcomes.items()]
    counts += [f"{cell.num_risen} with a slow rise"] if cell.num_risen else []
    return ", ".join([*counts, *([f"learning rate {cell.lr_health}"] if cell.lr_health else [])])


def _panel(
    name: str,
    title: str,
    means: str,
    values: list[float | None],
    texts: list[str],
    cells: Sequence[MapCell],
) -> dict[str, Any]:
    ordered = from_best(cells, _METRIC if name == "fraction" else name)
    rank = {id(cell): i for i, cell in enumerate(ordered)}
    return {
        "name": name,
        "title": title,
        "meaning": means,
        "values": values,
        "texts": texts,
        "rank": [rank[id(cell)] for cell in cells],
        "colours": "value",
        "range": None,  # computed from the cells on the map
    }


def page_look() -> dict[str, Any]:
    """All looks that page and figures have in common."""
    states = {
        name: {
            "sign": look.sign,
            "label": look.label,
            "is_stable": name == "stable",
            "is_over_edge": is_over_edge(name),
            "is_known": is_known(name),
            "is_hatched": look.is_hatched,
            "is_painted": look.is_painted,
            "sets_colours": look.sets_colours,
        }
        for name, look in style.STATES.items()
        if name != "running"
    }
    tables = {"fraction": colour_table(fraction_colours()), "value": colour_table(value_colours())}
    return {
        "states": states,
        "gap": "not_run",  # a grid position without a cell
        "colours": {name: {"paint": table, "ink": [ink(colour) for colour in table]} for name, table in tables.items()},
        "blank": {"paint": style.BLANK, "ink": ink(style.BLANK)},
        "log_colours_from": style.LOG_COLOURS_FROM,
        "padding": style.PADDING,
        "text_room": style.TEXT_ROOM,
        "edge": style.EDGE_LABEL,
        "rise": [style.RISE_SIGN, style.RISE_LABEL],
        "lr": {word: [sign, label] for word, (sign, label) in style.LR_SIGNS.items()},
        "seed_colours": style.SEED_COLOURS,
        "seed_dashes": style.SEED_DASHES,
        "log_curves_from": style.LOG_CURVES_FROM,
    }


def style_sheet() -> str:
    """The colours that the page's style sheet uses."""
    colours = {
        "stable": style.FRACTION_COLOURS[-1],
        "hatch": style.HATCH_COLOUR,
        "episode": style.EPISODE,
        "verdict": style.LIMIT,
    }
    return ":root {" + " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + "}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
