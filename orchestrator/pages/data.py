"""The data of the report's page: axes, cells, trials and their episodes, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from objectives.control import firing_in_words
from objectives.interventions import change_in_words
from orchestrator.base.columns import meaning
from orchestrator.base.space import Axis
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import is_over_edge
from orchestrator.ledger.reader import LedgerReader, is_sampled
from orchestrator.maps.axes import led, value_labels
from orchestrator.maps.cells import REDUCTIONS
from orchestrator.maps.curve_metrics import CURVE_METRICS
from orchestrator.maps.table import SweepTable, printed_metrics
from orchestrator.pages.asked import diagnoses, remedy_pictures
from orchestrator.pages.cells import KnownCells, cells_and_panels, page_look
from orchestrator.pages.curves import (
    CURVES,
    VALIDATION,
    curves_and_readings,
    points_per_curve,
    points_per_reading,
    reading_names,
)
from orchestrator.render.labels import axis_place, short_number, tick_texts

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
    data = table_data(table.facts, rows, table.axes, [metrics for _, metrics in curves])
    titles = CURVES | (VALIDATION if any("validation_loss" in curve for curve, _ in curves) else {})
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
) -> dict[str, Any]:
    """The page's data but for the curves; ``metrics`` come from ``curves_and_readings``, for each of ``rows``.

    ``known`` are cells of an earlier call, which are computed again only where their trials have changed.
    """
    # The page shows the first two at first: not one that advances with another.
    axes = sorted(found_axes, key=lambda axis: axis.name in led(found_axes))
    measured: dict[str, dict[str, float]] = {name: {} for name in (*CURVE_METRICS, *printed_metrics(rows))}
    for row, found in zip(rows, metrics, strict=True):
        for name, value in found.items():
            measured[name][row.trial_id] = value
    cells, panels = cells_and_panels(rows, axes, measured, known)
    return {
        "name": facts.get("name", ""),
        "is_sampled": is_sampled(facts),
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
            "final_loss": [None if row.final_loss is None else short_number(row.final_loss) for row in rows],
            "learned_share": [None if row.learned_share is None else short_number(row.learned_share) for row in rows],
            "lr_health": [row.lr_health or "" for row in rows],
            "lr_regret": [None if row.lr_regret is None else short_number(row.lr_regret) for row in rows],
            "reason": [row.reason or "" for row in rows],
            "norm_rises": [", ".join(map(str, row.norm_rises)) for row in rows],
            "fired": ["; ".join(map(firing_in_words, row.fired)) for row in rows],
            "overfit_step": [row.overfit_step for row in rows],
            "has_result": [row.outcome is not None for row in rows],
            "is_unstable": [is_over_edge(row.label) for row in rows],
            "marks": [_marks(row) for row in rows],
        },
        "columns": [{"name": name, "title": title, "meaning": meaning(name)} for name, title in _SEED_COLUMNS.items()],
        "episodes": [row.episodes for row in rows],
    }


def as_script(data: Mapping[str, Any] | Sequence[Any]) -> str:
    """The data as JSON that is safe in a <script> element, whatever texts it contains."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _marks(row: TrialResult) -> list[tuple[int, str]]:
    """The steps when a trial was judged or changed by a rule while it trained, each with a word or two."""
    verdicts = ((row.verdict_step, "lost"), (row.slow_step, "slow"), (row.plateau_step, "plateau"))
    changes = [(one["did"]["at"], change_in_words(one["did"])) for one in row.fired[:_MOST_CHANGES]]
    return [*((step, word) for step, word in verdicts if step is not None), *changes]


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
