"""`sweep boundary`: where the map turns from stable to not stable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import LEDGER, check_output
from orchestrator.base.vocabulary import OSCILLATING, TOO_SLOW
from orchestrator.commands.printing import Answer, written_json
from orchestrator.detection.relative import LR_NAMES
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.boundary import boundary as rows_of
from orchestrator.maps.boundary import boundary_lines, lr_places
from orchestrator.maps.curve_metrics import measured
from orchestrator.maps.fitted import Fit, fit, fitted_lines
from orchestrator.maps.level_boundary import level_boundary, level_lines
from orchestrator.maps.stability import StabilityMap, stability_map


def boundary(
    folder: Path,
    x: str | None,
    y: str | None,
    where: Mapping[str, str],
    reduce: str,
    degraded: bool,
    json_file: Path | None = None,
    metric: str | None = None,
    level: float | None = None,
) -> Answer:
    """The boundary of the sweep in ``folder`` along ``x``, row by row. Raises InputError.

    With ``degraded`` degraded cells are over the edge. Scattered cells have no rows: a fitted surface has. With
    ``metric`` and ``level`` the boundary is where the median of the metric passes the level.
    """
    check_output(json_file, "--json")
    _refuse_half(metric, level, degraded)
    with LedgerReader(folder / LEDGER) as ledger:
        name, is_scattered = ledger.facts().get("name", ""), ledger.is_sampled
        if metric is not None and level is not None:
            if is_scattered:
                raise InputError(_no_rows(name, metric))
            readings = measured(ledger, [metric], ledger.statuses())
            stability = stability_map(ledger, x, y, metric, where, reduce, readings)
        elif is_scattered:
            fitted = fit(ledger, x, where, counts_degraded=degraded)
        else:
            stability = stability_map(ledger, x, y, where=where, reduce=reduce, counts_degraded=degraded)
    if level is not None:
        yield from _passed(stability, level)
    else:
        yield from _fitted(name, fitted, where) if is_scattered else _bracketed(stability, degraded)
    if json_file is not None:
        if level is not None:
            content = _passed_json(stability, level)
        else:
            content = _fitted_json(fitted) if is_scattered else _bracketed_json(stability)
        yield from written_json(json_file, {"sweep": name, **content})
    return EXIT_OK


def _refuse_half(metric: str | None, level: float | None, degraded: bool) -> None:
    if (metric is None) != (level is None):
        option, other = ("--metric", "--level") if level is None else ("--level", "--metric")
        remedy = "write both, e.g. --metric edge_crossings --level 3"
        raise InputError(Problem(option, str(level if metric is None else metric), f"needs {other}", remedy))
    if metric is not None and degraded:
        message = "is about outcomes, which a level of a metric leaves aside"
        raise InputError(Problem("--degraded", "", message, "leave out --degraded, or --metric and --level"))


def _no_rows(name: str, metric: str) -> Problem:
    message = f"its cells are scattered, so there are no rows in which {metric} could pass a level"
    remedy = "train a grid (num: on each axis); without --metric a surface of P(stable) is fitted"
    return Problem(name, "", message, remedy)


def _passed(stability: StabilityMap, level: float) -> Iterator[str]:
    lines = level_lines(stability, level)
    note = f" ({stability.note})" if stability.note else ""
    yield f"{stability.name}: where the median {stability.metric} passes {level:g} along {stability.x.name}{note}"
    yield from lines


def _passed_json(stability: StabilityMap, level: float) -> dict[str, Any]:
    """Rows with the brackets between which the metric passes the level."""
    return {
        "along": stability.x.name,
        "is_fitted": False,
        "metric": stability.metric,
        "level": level,
        "rows": [
            {
                "setting": {} if stability.y is None else {stability.y.name: row.y},
                "kind": row.kind,
                "edges": [{"at": edge.at, "below": edge.below, "above": edge.above} for edge in row.edges],
                "not_known": list(row.missing),
            }
            for row in level_boundary(stability, level)
        ],
    }


def _bracketed(stability: StabilityMap, degraded: bool) -> Iterator[str]:
    note = f" ({stability.note})" if stability.note else ""
    counted = " and none is degraded" if degraded else ""
    yield f"{stability.name}: the edge along {stability.x.name}{note}; a cell is stable when all its seeds are{counted}"
    yield from boundary_lines(stability)


def _fitted(name: str, fitted: Fit, where: Mapping[str, str]) -> Iterator[str]:
    shown = "".join(f", {axis} = {value}" for axis, value in where.items())
    yield (
        f"{name}: the edge along {fitted.along.name}{shown}, where half of the trials are stable, with an interval of "
        f"95 %; a fit to {fitted.num_trials} trials in {fitted.num_cells} cells"
    )
    yield from fitted_lines(fitted)


def _bracketed_json(stability: StabilityMap) -> dict[str, Any]:
    """Rows with the brackets of their edges: the neighbouring values on both sides."""
    return {
        "along": stability.x.name,
        "is_fitted": False,
        "rows": [
            {
                "setting": {} if stability.y is None else {stability.y.name: row.y},
                "kind": row.kind,
                "edges": [{"at": edge.at, "stable": edge.stable, "not_stable": edge.not_stable} for edge in row.edges],
                "not_known": list(row.missing),
                **_lr_words(stability, row.y),
            }
            for row in rows_of(stability)
        ],
    }


def _lr_words(stability: StabilityMap, y: Any) -> dict[str, list[Any]]:
    """Where the row's learning rates are too slow or oscillating, if they lie along it."""
    if stability.x.name not in LR_NAMES:
        return {}
    return {word.replace(" ", "_"): list(lr_places(stability, y, word)) for word in (TOO_SLOW, OSCILLATING)}


def _fitted_json(fitted: Fit) -> dict[str, Any]:
    """Rows with their edges and the ends of the intervals; null where one reaches the end of the axis."""
    return {
        "along": fitted.along.name,
        "is_fitted": True,
        "level": fitted.level,
        "num_trials": fitted.num_trials,
        "rows": [
            {
                "setting": dict(row.setting),
                "stable_in_the_middle": row.stable,
                "edges": [
                    {"at": edge.at, "low": edge.low, "high": edge.high, "is_stable_below": edge.is_stable_below}
                    for edge in row.edges
                ],
            }
            for row in fitted.rows()
        ],
    }
