"""A comparison of fitted surfaces in words: the region, the differences, and how certain they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestrator.base.space import Axis
from orchestrator.base.words import count, interval
from orchestrator.maps.comparison_text import differs_lines, pairs_content, pairs_text, unlike_text
from orchestrator.maps.fitted import FittedRow, axis_number, row_text, setting_text
from orchestrator.maps.fitted_comparison import (
    FittedComparison,
    FittedDifference,
    FittedSide,
    RowShift,
    covered_text,
)


def fitted_comparison_content(found: FittedComparison) -> dict[str, Any]:
    """The whole comparison of fitted surfaces."""
    return {
        "is_fitted": True,
        "axes": [axis.name for axis in found.region],
        "along": found.along.name,
        "differs": {name: list(values) for name, values in found.changed.items()},
        "sweeps": [
            {
                "name": side.name,
                "stable_share": side.area,
                "interval": side.area_interval,
                "num_degraded": side.num_degraded,
            }
            for side in found.sides
        ],
        "differences": [
            {
                "name": new.name,
                "change": new.area_change,
                "interval": new.area_interval,
                "pairs": pairs_content(new.pairs),
                "rows": [
                    {"setting": dict(row.before.setting), "factor": row.factor, "low": row.low, "high": row.high}
                    for row in new.rows
                ],
            }
            for new in found.differences
        ],
    }


def fitted_comparison_lines(comparison: FittedComparison) -> list[str]:
    """The comparison in words."""
    region = " x ".join(f"{axis.name} {covered_text(axis)}" for axis in comparison.region)
    lines = [f"compared: {region}, which all cover"]
    for side in comparison.sides:
        wider = [axis for axis, common in _beside(side, comparison) if _is_wider(axis, common)]
        if wider:
            also = ", ".join(f"{axis.name} {covered_text(axis)}" for axis in wider)
            lines.append(f"  left out: the rest of {side.name}, which covers {also}")
    lines += differs_lines(comparison.changed)
    if not comparison.changed:
        lines.append("differs: nothing but the trials")
    for side in comparison.sides:
        low, high = side.area_interval
        lines.append(f"stable:  {side.area:.1%} of the region in {side.name} (95 % interval {low:.1%} to {high:.1%})")
        if side.num_degraded:
            how = "not counted as stable" if comparison.rule.counts_degraded else "counted as stable"
            lines.append(f"  {count(side.num_degraded, 'trial')} degraded, {how}")
    for side, difference in zip(comparison.sides[1:], comparison.differences, strict=True):
        lines.append(_paragraph(comparison, side, difference))
        lines += _row_lines(comparison, side, difference)
    return lines


def _beside(side: FittedSide, comparison: FittedComparison) -> list[tuple[Axis, Axis]]:
    """The axes of a sweep, each with the part of it that all sweeps cover."""
    own = {axis.name: axis for axis in side.fitted.axes}
    return [(own[common.name], common) for common in comparison.region]


def _is_wider(axis: Axis, common: Axis) -> bool:
    """Whether a sweep covers more of an axis than the others; a list against a range does not."""
    if axis.values:
        return len(axis.values) > len(common.values)
    return not common.values and axis.ends != common.ends


def _paragraph(comparison: FittedComparison, side: FittedSide, new: FittedDifference) -> str:
    """What changed from the first sweep and how certain that is."""
    first = comparison.sides[0]
    change, (low, high) = 100 * new.area_change, (100 * end for end in new.area_interval)
    sentences = [
        f"{new.name} against {first.name}: the stable area changes by {change:+.1f} points (95 % interval {low:+.1f} "
        f"to {high:+.1f}).",
        _shift_text(comparison.along, new.rows),
    ]
    if new.pairs is not None:
        sentences.append(pairs_text(new.pairs))
    objectives = comparison.changed.get("objective", ())
    sentences.append(unlike_text(objectives) if objectives else _how_sure(new))
    sentences.append(f"Both surfaces are fitted, to {first.fitted.num_trials} and {side.fitted.num_trials} trials.")
    return " ".join(sentences)


def _shift_text(along: Axis, rows: Sequence[RowShift]) -> str:
    edge = f"The edge along {along.name}"
    factors = [row.factor for row in rows if row.factor is not None]
    if not factors:
        return f"{edge} cannot be compared: none of {count(len(rows), 'row')} has one edge in both."
    unit = f" of 1 / (1 - {along.name})" if along.scale == "log1m" else ""
    if len(rows) == 1:
        return f"{edge} moves by a factor {factors[0]:.3g}{unit} (95 % interval {_factor_interval(rows[0])})."
    num_moved = sum(row.has_moved for row in rows)
    num_other = len(rows) - len(factors)
    rest = f"; {count(num_other, 'row')} without one edge in both left out" if num_other else ""
    return (
        f"{edge} moves by a factor {np.median(factors):.3g}{unit} (median of {count(len(factors), 'row')}, from "
        f"{min(factors):.3g} to {max(factors):.3g}; more than the fits leave open in {num_moved} of them{rest})."
    )


def _how_sure(new: FittedDifference) -> str:
    low, high = new.area_interval
    if low > 0 or high < 0:
        return f"More than the fits leave open: {new.name} is {'more' if new.area_change > 0 else 'less'} stable here."
    if any(row.has_moved for row in new.rows):
        return "The area changes by no more than the fits leave open, but the edge does."
    return "No more than the fits leave open: more trials would tell."


def _row_lines(comparison: FittedComparison, side: FittedSide, new: FittedDifference) -> list[str]:
    """A line for each row, from the top of the map down."""
    first = comparison.sides[0]
    names = [setting_text(row.before.setting, comparison.region) for row in new.rows]
    width = max(map(len, names))
    lines = []
    for name, row in reversed(list(zip(names, new.rows, strict=True))):
        if row.factor is not None:
            found = _factor_text(row, row.factor, comparison.along)
        else:
            found = "; ".join(_told(*pair) for pair in ((row.before, first), (row.after, side)))
        lines.append(f"  {name:<{width}}  {found}")
    return lines


def _told(row: FittedRow, side: FittedSide) -> str:
    """What one sweep shows of a row; the places of several edges are left to `sweep boundary`."""
    what = row_text(row, side.fitted) if len(row.edges) < 2 else count(len(row.edges), "edge")
    return f"{what} in {side.name}"


def _factor_text(row: RowShift, factor: float, along: Axis) -> str:
    """The edges of a row that has one in both, and the factor between them with its interval."""
    places = [axis_number(along, edge.at) for of in (row.before, row.after) for edge in of.edges if edge.at is not None]
    return f"{along.name} {' to '.join(places)}: factor {factor:.3g} ({_factor_interval(row)})"


def _factor_interval(row: RowShift) -> str:
    return interval(row.low, row.high, to=" .. ")
