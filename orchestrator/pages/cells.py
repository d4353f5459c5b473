"""Cell data of the page: states, numbers, order and looks. The page itself judges nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from orchestrator.base.columns import FRACTION_TITLE, METRICS, meaning, title
from orchestrator.base.space import Axis
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import is_known, is_over_edge
from orchestrator.maps.cells import CellSummary, best_first, cell_summary
from orchestrator.maps.curve_metrics import Measured
from orchestrator.render import style
from orchestrator.render.labels import fraction_text, short_number
from orchestrator.render.style import colour_table, fraction_colours, ink, value_colours

# The panel of fractions shows the cells of a map of this metric.
_METRIC = "final_loss"


# The cells of an earlier call by their place: the trials and metrics that they were computed from, and the cell.
KnownCells = dict[tuple[int, ...], tuple[list[TrialResult], list[dict[str, float]], CellSummary]]


def cells_and_panels(
    rows: Sequence[TrialResult], axes: Sequence[Axis], measured: Measured, known: KnownCells | None = None
) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """The cells over all axes of the sweep, and what can be shown of each: the metrics that a cell has.

    Which of several cells a map of fewer axes shows follows only from a panel's ``rank``, the index of each cell in
    ``best_first``, and from REDUCTIONS. With two axes there is nothing to choose, and no rank. Cells in ``known`` whose
    trials have not changed are taken from there, and the others put there.
    """
    place = [{value: i for i, value in enumerate(axis.values)} for axis in axes]
    members: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        at = tuple(of_axis[row.cell[axis.name]] for of_axis, axis in zip(place, axes, strict=True))
        members.setdefault(at, []).append(i)
    found = {} if known is None else known
    cells = [_cell(at, [rows[i] for i in trials], measured, found) for at, trials in members.items()]
    is_reduced = len(axes) > 2
    fractions = [cell.fraction_stable for cell in cells]
    texts = [fraction_text(cell) for cell in cells]
    means = "stable seeds, of all with a result"
    panels = [_panel("fraction", FRACTION_TITLE, means, fractions, texts, cells, is_reduced)]
    panels[0] |= {"colours": "fraction", "range": [0, 1]}
    for name in dict.fromkeys([*METRICS, *measured]):
        values = [_finite(cell.medians[name]) for cell in cells]
        if any(value is not None for value in values):
            texts = ["" if value is None else short_number(value) for value in values]
            panels.append(_panel(name, title(name), meaning(name), values, texts, cells, is_reduced))
    of_cells: dict[str, list[Any]] = {
        "at": list(members),
        "members": list(members.values()),
        "state": [cell.state for cell in cells],
        "words": [_words(cell) for cell in cells],
        "num_risen": [cell.num_risen for cell in cells],
        "lr_health": [cell.lr_health for cell in cells],
    }
    return of_cells, panels


def _cell(at: tuple[int, ...], trials: list[TrialResult], measured: Measured, known: KnownCells) -> CellSummary:
    metrics = [{name: of[row.trial_id] for name, of in measured.items() if row.trial_id in of} for row in trials]
    before = known.get(at)
    if before is None or before[0] != trials or before[1] != metrics:
        known[at] = before = (trials, metrics, cell_summary(trials, _METRIC, measured))
    return before[2]


def _words(cell: CellSummary) -> str:
    """The labels of a cell's seeds, the number that rose slowly, and the word on the learning rate."""
    counts = [f"{count} {label}" for label, count in cell.outcomes.items()]
    counts += [f"{cell.num_risen} with a slow rise"] if cell.num_risen else []
    return ", ".join([*counts, *([f"learning rate {cell.lr_health}"] if cell.lr_health else [])])


def _panel(
    name: str,
    title: str,
    means: str,
    values: list[float | None],
    texts: list[str],
    cells: Sequence[CellSummary],
    is_reduced: bool,
) -> dict[str, Any]:
    ordered = best_first(cells, _METRIC if name == "fraction" else name) if is_reduced else []
    rank = {id(cell): i for i, cell in enumerate(ordered)}
    return {
        "name": name,
        "title": title,
        "meaning": means,
        "values": values,
        "texts": texts,
        "rank": [rank[id(cell)] for cell in cells] if is_reduced else [],
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
