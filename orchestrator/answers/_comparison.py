"""A comparison in words and as plain data: what is shared, the differences, and how certain they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from orchestrator.answers._gains import gains_content, gains_lines
from orchestrator.answers._rows import surface_row_text
from orchestrator.base.intervals import CONFIDENCE, FEWEST_SEEDS
from orchestrator.base.space import Axis, format_value, to_hashable
from orchestrator.base.words import columns, count
from orchestrator.maps.axes import axis_number
from orchestrator.maps.comparison import Comparison, Difference, RowShift, Side
from orchestrator.maps.edges import Interval, Row
from orchestrator.maps.gains import Pairs
from orchestrator.maps.shared import covered_text
from orchestrator.maps.surface_map import SurfaceMap, setting_text

_SIGNIFICANT = 1 - CONFIDENCE


def comparison_content(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison as plain data."""
    is_fitted = comparison.is_fitted
    shared: dict[str, Any] = {"is_fitted": is_fitted, "axes": [axis.name for axis in comparison.axes]}
    if is_fitted:
        shared["along"] = _edge_axis(comparison).name
    else:
        shared |= {"num_cells": comparison.num_cells, "num_unknown": comparison.num_unknown}
    return {
        "sentence": " ".join(_verdicts(comparison)),
        **shared,
        "differs": {name: list(values) for name, values in comparison.changed.items()},
        "sweeps": [
            {
                "name": side.name,
                "stable_share": side.area,
                "interval": _ends(side.area_interval),
                "num_degraded": side.num_degraded,
                **({} if is_fitted else {"num_left_out": side.num_left_out}),
            }
            for side in comparison.sides
        ],
        "differences": [_difference_content(new, comparison) for new in comparison.differences],
    }


def _ends(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)


def _difference_content(new: Difference, comparison: Comparison) -> dict[str, Any]:
    content = {
        "name": new.name,
        "change": new.area_change,
        "interval": _ends(new.area_interval),
        "p_value": new.p_value,
        "num_seeds": new.num_seeds,
        "is_paired": new.is_paired,
        "pairs": None if new.pairs is None else asdict(new.pairs),
    }
    if comparison.is_fitted:
        rows = [{"setting": dict(row.before.setting), "factor": row.factor} for row in new.rows]
        return {**content, "rows": rows}
    edge = None
    if comparison.edge_axis is not None:
        factors = _factors(new)
        edge = {
            "axis": comparison.edge_axis.name,
            "factors": factors,
            "resolution": _resolution(new, comparison.edge_axis),
            "num_rows": len(new.rows),
            "num_other": len(new.rows) - len(factors),
        }
    return {**content, "num_turned": new.num_turned, "edge": edge, "gains": gains_content(new.gains)}


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the comparison in words, the verdict first."""
    details = _lines_of_surfaces(comparison) if comparison.is_fitted else _lines_of_cells(comparison)
    return [*_verdicts(comparison), *details]


def _verdicts(comparison: Comparison) -> Iterator[str]:
    """How much of the map each sweep gains or loses against the first, and how sure that is."""
    return (f"{_area_text(comparison, new)} {_how_sure(comparison, new)}" for new in comparison.differences)


def _edge_axis(comparison: Comparison) -> Axis:
    assert comparison.edge_axis is not None, "surfaces have one"
    return comparison.edge_axis


def _factors(new: Difference) -> list[float]:
    return [row.factor for row in new.rows if row.factor is not None]


def _resolution(new: Difference, axis: Axis) -> float:
    """The widest bracket of an edge, as a factor: smaller shifts are not detectable."""
    shifted = [row for row in new.rows if row.factor is not None]
    edges = (edge for row in shifted for of_row in (row.before, row.after) for edge in of_row.edges)
    return max([1.0, *(axis.factor(edge.stable, edge.not_stable) for edge in edges)])


def _differs_lines(changed: Mapping[str, Sequence[Any]], otherwise: str) -> Iterator[str]:
    """A line for each field that differs, with its value in each sweep."""
    for field, values in changed.items():
        yield f"differs: {field} = {', '.join(format_value(to_hashable(value)) for value in values)}"
    if not changed:
        yield f"differs: nothing but the {otherwise}"


def _pairs_text(pairs: Pairs) -> str:
    return (
        f"Of {pairs.num} trials of the same cell and seed, {pairs.num_gained} became stable and {pairs.num_lost} "
        "stopped being so."
    )


def _unlike_text(objectives: Sequence[str]) -> str:
    """What takes the place of a conclusion if the sweeps train different ``objectives``."""
    unlike = f"They train different objectives ({', '.join(dict.fromkeys(objectives))})"
    return f"{unlike}, so no setting explains the difference."


def _interval_text(interval: Interval | None, num_seeds: int, spec: str) -> str:
    """The interval of a share over seeds in percent, or why there is none."""
    if interval is not None:
        return f"95 % interval over seeds {100 * interval.low:{spec}} to {100 * interval.high:{spec}}"
    if num_seeds < FEWEST_SEEDS:
        return f"{count(num_seeds, 'seed')}, no interval below {FEWEST_SEEDS}"
    return "no interval: all seeds have the same"


def _area_text(comparison: Comparison, new: Difference) -> str:
    ends = _interval_text(new.area_interval, new.num_seeds, "+.1f")
    head = f"{new.name} against {comparison.sides[0].name}: the stable area changes by"
    return f"{head} {100 * new.area_change:+.1f} points ({ends})."


def _how_sure(comparison: Comparison, new: Difference) -> str:
    """What the test over seeds says of the difference, unless the sweeps train different objectives."""
    if objectives := comparison.changed.get("objective", ()):
        return _unlike_text(objectives)
    if new.p_value is None or new.least_p is None:
        return "How sure that is cannot be said without two seeds of each."
    num = len(comparison.differences)
    corrected = f", corrected for {num} comparisons" if num > 1 else ""
    p_value = f"p = {new.p_value:.2g} by permuting whole seeds{corrected}"
    if new.p_value < _SIGNIFICANT:
        return f"More than chance: {new.name} is {'more' if new.area_change > 0 else 'less'} stable here ({p_value})."
    if (least_p := min(1.0, num * new.least_p)) >= _SIGNIFICANT:
        needed = f": {math.ceil(1 + math.log2(num / _SIGNIFICANT))} can" if new.is_paired else ""
        which = count(new.num_seeds, "paired seed" if new.is_paired else "seed")
        return f"{which} cannot tell a difference from chance{needed} ({p_value}, at least {least_p:.2g})."
    return f"No more than chance would give ({p_value}): more seeds would tell."


# --- cells of grids -----------------------------------------------------------------------------------


def _lines_of_cells(comparison: Comparison) -> Iterator[str]:
    axes = " x ".join(axis.name for axis in comparison.axes if len(axis.values) > 1) or "one setting"
    yield f"shared: {count(comparison.num_cells, 'cell')} ({axes})"
    for side in comparison.sides:
        if side.num_left_out:
            yield f"  left out: {count(side.num_left_out, 'cell')} of {side.name} that the others do not have"
    if comparison.num_unknown:
        cells = count(comparison.num_unknown, "cell")
        yield f"  not compared: {cells} with seeds that have no result in one of them"
    yield from _differs_lines(comparison.changed, "cells left out")
    for side in comparison.sides:
        yield from _stable_lines(side, "shared map", "cell")
    yield from (_paragraph_of_cells(comparison, difference) for difference in comparison.differences)
    yield from _gains_of_values(comparison)


def _gains_of_values(comparison: Comparison) -> Iterator[str]:
    """What the values of an axis gain over the base; nothing for sweeps of their own."""
    if comparison.by is None:
        return
    prefix = f"{comparison.by}="
    gains = [(new.name.removeprefix(prefix), new.gains) for new in comparison.differences if new.gains is not None]
    base = comparison.sides[0].name.removeprefix(prefix)
    yield from gains_lines(comparison.by, base, gains, comparison.axes)


def _stable_lines(side: Side, of: str, noun: str) -> Iterator[str]:
    ends = _interval_text(side.area_interval, len(side.by_seed), ".1f")
    yield f"stable:  {side.area:.1%} of the {of} in {side.name} ({ends})"
    if side.num_degraded:
        yield f"  not counted: {count(side.num_degraded, noun)} degraded"


def _paragraph_of_cells(comparison: Comparison, new: Difference) -> str:
    """What changed from the first sweep."""
    pairs = _pairs_text(new.pairs) if new.pairs else "They share no seeds, so trials are not paired."
    sentences = [pairs]
    if comparison.edge_axis is not None:
        sentences.append(_shift_of_brackets(new, comparison.edge_axis))
    if new.num_turned:
        cells = count(new.num_turned, "cell has", "cells have")
        sentences.append(f"{cells} all seeds stable in one and none in the other.")
    return f"{new.name}: {' '.join(sentences)}"


def _shift_of_brackets(new: Difference, axis: Axis) -> str:
    edge, factors, resolution = f"The edge along {axis.name}", _factors(new), _resolution(new, axis)
    if not factors:
        return f"{edge} cannot be compared: none of {len(new.rows)} rows has exactly one edge in both."
    middle, rows = float(np.median(factors)), count(len(factors), "row")
    spread = f"from {min(factors):.3g} to {max(factors):.3g}"
    num_other = len(new.rows) - len(factors)
    rest = f"; {count(num_other, 'row')} with no edge or several in one of them" if num_other else ""
    if all(math.isclose(factor, 1.0, rel_tol=1e-9) for factor in factors):
        those = "the one row that has" if len(factors) == 1 else f"all of {rows} that have"
        what = f"is in the same bracket in {those} one"
        return f"{edge} {what} (brackets up to a factor {resolution:.3g}){rest}."
    return (
        f"{edge} moves by a factor {middle:.3g} (median of {rows}, {spread}; brackets up to a factor "
        f"{resolution:.3g}){rest}."
    )


# --- fitted surfaces ----------------------------------------------------------------------------------


def _lines_of_surfaces(comparison: Comparison) -> Iterator[str]:
    region = " x ".join(f"{axis.name} {covered_text(axis)}" for axis in comparison.axes)
    yield f"compared: {region}, which all cover"
    for side in comparison.sides:
        own = {axis.name: axis for axis in side.stability.axes}
        wider = [own[common.name] for common in comparison.axes if _is_wider(own[common.name], common)]
        if wider:
            also = ", ".join(f"{axis.name} {covered_text(axis)}" for axis in wider)
            yield f"  left out: the rest of {side.name}, which covers {also}"
    yield from _differs_lines(comparison.changed, "trials")
    for side in comparison.sides:
        yield from _stable_lines(side, "region", "trial")
    for side, difference in zip(comparison.sides[1:], comparison.differences, strict=True):
        yield _paragraph_of_surfaces(comparison, side, difference)
        yield from _row_lines(comparison, side, difference)


def _is_wider(axis: Axis, common: Axis) -> bool:
    """Whether a sweep covers more of an axis than the others; a list does not cover more than a range."""
    if axis.values:
        return len(axis.values) > len(common.values)
    return not common.values and axis.ends != common.ends


def _paragraph_of_surfaces(comparison: Comparison, side: Side, new: Difference) -> str:
    """What changed from the first sweep."""
    first = comparison.sides[0]
    sentences = [_shift_of_fits(_edge_axis(comparison), new.rows)]
    if new.pairs is not None:
        sentences.append(_pairs_text(new.pairs))
    nums = " and ".join(str(_surface(each).num_trials) for each in (first, side))
    fitted = f"Both surfaces are fitted, to {nums} trials."
    return f"{new.name}: {' '.join([*sentences, fitted])}"


def _surface(side: Side) -> SurfaceMap:
    assert isinstance(side.stability, SurfaceMap)
    return side.stability


def _shift_of_fits(along: Axis, rows: Sequence[RowShift]) -> str:
    edge = f"The edge along {along.name}"
    factors = [row.factor for row in rows if row.factor is not None]
    if not factors:
        return f"{edge} cannot be compared: none of {count(len(rows), 'row')} has one edge in both."
    unit = f" of 1 / (1 - {along.name})" if along.scale == "log1m" else ""
    if len(rows) == 1:
        return f"{edge} moves by a factor {factors[0]:.3g}{unit}."
    num_other = len(rows) - len(factors)
    rest = f"; {count(num_other, 'row')} without one edge in both left out" if num_other else ""
    return (
        f"{edge} moves by a factor {np.median(factors):.3g}{unit} (median of {count(len(factors), 'row')}, from "
        f"{min(factors):.3g} to {max(factors):.3g}{rest})."
    )


def _row_lines(comparison: Comparison, side: Side, new: Difference) -> list[str]:
    """A line for each row, from the top of the map down."""
    first, along = comparison.sides[0], _edge_axis(comparison)
    lines = []
    for row in reversed(new.rows):
        if row.factor is not None:
            text = _factor_text(row, row.factor, along)
        else:
            text = "; ".join(_row_of(*pair) for pair in ((row.before, first), (row.after, side)))
        lines.append((setting_text(row.before.setting, comparison.axes), text))
    return columns(lines, indent=2)


def _row_of(row: Row, side: Side) -> str:
    """What one sweep shows of a row; the places of several edges are left to `sweep boundary`."""
    what = surface_row_text(row, _surface(side)) if len(row.edges) < 2 else count(len(row.edges), "edge")
    return f"{what} in {side.name}"


def _factor_text(row: RowShift, factor: float, along: Axis) -> str:
    """The edges of a row that has one in both, and the factor between them."""
    places = [axis_number(along, edge.at) for of in (row.before, row.after) for edge in of.edges if edge.at is not None]
    return f"{along.name} {' to '.join(places)}: factor {factor:.3g}"
