"""The data of the page as JSON: axes, cells, trials and their episodes, and looks. The page itself judges nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.base.columns import FRACTION_TITLE, METRICS, meaning, title
from orchestrator.base.measure import FINAL_LOSS, Measure, column_measure, score_of
from orchestrator.base.resizes import Resize
from orchestrator.base.space import Axis
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import is_known, is_over_edge
from orchestrator.ledger.reader import LedgerReader, is_grid
from orchestrator.maps.axes import led, value_labels
from orchestrator.maps.cells import REDUCTIONS, CellSummary, best_first, cell_summary
from orchestrator.maps.curve_metrics import CURVE_METRICS, Measured
from orchestrator.maps.table import SweepTable, printed_metrics
from orchestrator.pages.answers import diagnoses, remedy_pictures
from orchestrator.pages.curves import (
    CURVES,
    TITLES,
    curves_and_readings,
    points_per_curve,
    points_per_reading,
    reading_names,
)
from orchestrator.render import style
from orchestrator.render.labels import axis_place, fraction_shown, fraction_text, short_number, tick_texts
from orchestrator.render.states import STATES
from orchestrator.render.style import colour_table, fraction_colours, ink, value_colours

# Columns shown for the seeds of a cell, by their headings.
_SEED_COLUMNS = {
    "seed": "seed", "outcome": "outcome", "onset_step": "onset step", "num_spikes": "spikes",
    "final_loss": "final loss", "learned_share": "share learned", "lr_health": "learning rate",
    "lr_regret": "left on the table", "reason": "why",
    "norm_rises": "norm rose at", "fired": "rules did", "overfit_step": "overfits from", "trial_id": "trial",
}  # fmt: skip
_NUM_TICKS = 6
_MOST_CHANGES = 20  # that are marked on a curve


def report_data(table: SweepTable) -> dict[str, Any]:
    """The page's data; every number is finite or null."""
    ledger, rows = table.ledger, table.trials
    num_finished = sum(row.outcome is not None for row in rows)
    num_points = points_per_curve(len(CURVES) * num_finished)
    of_reading = points_per_reading(num_finished * _most_readings(ledger, rows))
    # The curves of one trial at a time: all together may exceed the memory.
    curves = [curves_and_readings(ledger, row, num_points, of_reading) for row in rows]
    data = table_data(table.facts, rows, table.axes, [metrics for _, metrics in curves], resizes=ledger.resizes())
    drawn = {name for curve, _ in curves for name in curve}
    titles = {name: words for name, words in TITLES.items() if name in CURVES or name in drawn}
    told = diagnoses(ledger, rows)
    return data | {
        "curves": [curve for curve, _ in curves],
        "curve_titles": titles,
        "num_points": num_points,
        "diagnoses": told,
        "remedy_pictures": remedy_pictures(ledger, rows, told),
    }


def _most_readings(ledger: LedgerReader, rows: Sequence[TrialResult]) -> int:
    """How many readings of telemetry a trial has, by the first one with a result."""
    first = next((row.trial_id for row in rows if row.outcome is not None), None)
    return 0 if first is None else len(reading_names(ledger.telemetry(first)))


def table_data(
    facts: Mapping[str, str],
    rows: Sequence[TrialResult],
    found_axes: Sequence[Axis],
    metrics: Sequence[Mapping[str, float]],
    known: KnownCells | None = None,
    resizes: Sequence[Resize] = (),
) -> dict[str, Any]:
    """The page's data but for the curves; ``metrics`` come from ``curves_and_readings``, for each of ``rows``.

    ``known`` are cells of an earlier call, which are computed again only where their trials have changed. ``resizes``
    of elastic trials are marked on their curves.
    """
    # The page shows the first two at first: not one that advances with another.
    axes = sorted(found_axes, key=lambda axis: axis.name in led(found_axes))
    measured: dict[str, dict[str, float]] = {name: {} for name in (*CURVE_METRICS, *printed_metrics(rows))}
    for row, found in zip(rows, metrics, strict=True):
        for name, value in found.items():
            measured[name][row.trial_id] = value
    cells, panels = cells_and_panels(facts, rows, axes, measured, known)
    resized: dict[str, list[tuple[int, str]]] = {}
    for resize in resizes:
        resized.setdefault(resize.trial_id, []).append((resize.step, resize.change))
    return {
        "name": facts.get("name", ""),
        "is_grid": is_grid(facts),
        "look": page_look(),
        "reductions": REDUCTIONS,
        "axes": [_axis(axis) for axis in axes],
        "cells": cells,
        "panels": panels,
        "trials": {
            "trial_id": [row.trial_id for row in rows],
            "seed": [row.seed for row in rows],
            "outcome": [row.label for row in rows],
            "onset_step": [row.onset_step for row in rows],
            "num_spikes": [row.num_spikes for row in rows],
            "final_loss": [_short(row.final_loss) for row in rows],
            "learned_share": [_short(row.learned_share) for row in rows],
            "lr_health": [row.lr_health or "" for row in rows],
            "lr_regret": [_short(row.lr_regret) for row in rows],
            "reason": [row.reason or "" for row in rows],
            "norm_rises": [", ".join(map(str, row.norm_rises)) for row in rows],
            "fired": ["; ".join(row.firings) for row in rows],
            "overfit_step": [row.overfit_step for row in rows],
            "has_result": [row.outcome is not None for row in rows],
            "is_unstable": [is_over_edge(row.label) for row in rows],
            "marks": [[*_marks(row), *resized.get(row.trial_id, ())] for row in rows],
        },
        "columns": [{"name": name, "title": title, "meaning": meaning(name)} for name, title in _SEED_COLUMNS.items()],
        "episodes": [row.episodes for row in rows],
    }


def as_script(data: Mapping[str, Any] | Sequence[Any]) -> str:
    """The data as JSON that is safe in a <script> element, whatever texts it contains."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _short(value: float | None) -> str | None:
    return None if value is None else short_number(value)


def _marks(row: TrialResult) -> list[tuple[int, str]]:
    """The steps when a trial was judged or changed by a rule while it trained, each with a word or two."""
    verdicts = ((row.verdict_step, "lost"), (row.slow_step, "slow"), (row.plateau_step, "plateau"))
    judged = ((step, word) for step, word in verdicts if step is not None)
    return [*judged, *row.changes_by_rules[:_MOST_CHANGES], *_interventions(row)[:_MOST_CHANGES]]


def _interventions(row: TrialResult) -> list[tuple[int, str]]:
    """The step and the words of each change that was planned for a trial."""
    entries = row.config.get("interventions") or ()
    if not isinstance(entries, list | tuple):
        return []  # a value of a custom trainer may have this name
    planned = [entry for entry in entries if isinstance(entry, Mapping) and isinstance(entry.get("at"), int)]
    if not planned:
        return []
    from objectives.entries import change_in_words  # slow to import, and most sweeps have none

    return [(entry["at"], change_in_words(entry)) for entry in planned]


def _axis(axis: Axis) -> dict[str, Any]:
    """Names and places of the values; ``heads`` are shorter than ``labels``."""
    values = axis.values
    ticks = [axis.at(unit) for unit in np.linspace(0, 1, _NUM_TICKS)] if axis.ends else list(values)
    return {
        "name": axis.name,
        "labels": value_labels(values),
        "heads": tick_texts(axis, values),
        "positions": [axis_place(axis, value, values) for value in values],
        "ticks": [
            [axis_place(axis, value, values), text] for value, text in zip(ticks, tick_texts(axis, ticks), strict=True)
        ],
    }


# The panel of fractions shows the cells of a map of this metric.
_METRIC = "final_loss"


# The cells of an earlier call by their place: the trials and metrics that they were computed from, and the cell.
KnownCells = dict[tuple[int, ...], tuple[list[TrialResult], list[dict[str, float]], CellSummary]]


def cells_and_panels(
    facts: Mapping[str, str],
    rows: Sequence[TrialResult],
    axes: Sequence[Axis],
    measured: Measured,
    known: KnownCells | None = None,
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
    fractions = [fraction_shown(cell) for cell in cells]
    texts = [fraction_text(cell) for cell in cells]
    means = "stable seeds, of all with a result"
    usual = score_of(facts) or FINAL_LOSS
    panels = [_panel("fraction", FRACTION_TITLE, means, fractions, texts, _ranks(cells, usual, is_reduced))]
    panels[0] |= {"colours": "fraction", "range": [0, 1]}
    for name in dict.fromkeys([*METRICS, *measured]):
        values = [_finite(cell.medians[name]) for cell in cells]
        if any(value is not None for value in values):
            texts = ["" if value is None else short_number(value) for value in values]
            measure = column_measure(name, facts)
            ranks = _ranks(cells, measure, is_reduced)
            panels.append(_panel(name, measure.title or title(name), meaning(name), values, texts, ranks))
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


def _ranks(cells: Sequence[CellSummary], measure: Measure, is_reduced: bool) -> list[int]:
    rank = {id(cell): i for i, cell in enumerate(best_first(cells, measure) if is_reduced else ())}
    return [rank[id(cell)] for cell in cells] if is_reduced else []


def _panel(
    name: str, title: str, means: str, values: list[float | None], texts: list[str], ranks: list[int]
) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "meaning": means,
        "values": values,
        "texts": texts,
        "rank": ranks,
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
        for name, look in STATES.items()
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


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
