"""A comparison of sweeps in words: the shared cells, the differences, and how certain they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from orchestrator.base.space import format_value, to_hashable
from orchestrator.base.words import count
from orchestrator.maps.comparison import Comparison, Difference, EdgeShift, Side
from orchestrator.maps.gains_text import gains_content, gains_lines
from orchestrator.maps.paired_trials import Pairs

_SIGNIFICANT = 0.05
_FEW_SEEDS = 5  # from this number on, a bootstrap has some hundred different draws


def comparison_content(found: Comparison) -> dict[str, Any]:
    """The whole comparison of grids."""
    return {
        "is_fitted": False,
        "axes": [axis.name for axis in found.axes],
        "num_cells": found.num_cells,
        "num_unknown": found.num_unknown,
        "differs": {name: list(values) for name, values in found.changed.items()},
        "sweeps": [
            {
                "name": side.name,
                "stable_share": side.area,
                "interval": side.area_interval,
                "num_degraded": side.num_degraded,
                "num_left_out": side.num_left_out,
            }
            for side in found.sides
        ],
        "differences": [
            {
                "name": new.name,
                "change": new.area_change,
                "interval": new.area_interval,
                "num_seeds": new.num_seeds,
                "num_turned": new.num_turned,
                "pairs": pairs_content(new.pairs),
                "edge": None if new.shift is None else asdict(new.shift),
                "gains": gains_content(new.gains),
            }
            for new in found.differences
        ],
    }


def pairs_content(pairs: Pairs | None) -> dict[str, Any] | None:
    """Trials that two sweeps share; null if they share none."""
    return None if pairs is None else asdict(pairs)


def comparison_lines(comparison: Comparison) -> list[str]:
    """The comparison in words."""
    first = comparison.sides[0]
    axes = " x ".join(axis.name for axis in comparison.axes if len(axis.values) > 1) or "one setting"
    lines = [f"shared: {comparison.num_cells} cells ({axes})"]
    lines += [
        f"  left out: {count(side.num_left_out, 'cell')} of {side.name} that the others do not have"
        for side in comparison.sides
        if side.num_left_out
    ]
    if comparison.num_unknown:
        cells = count(comparison.num_unknown, "cell")
        lines.append(f"  not compared: {cells} with seeds that have no result in one of them")
    lines += differs_lines(comparison.changed)
    if not comparison.changed:
        lines.append("differs: nothing but the cells left out")
    for side in comparison.sides:
        lines.append(f"stable:  {side.area:.1%} of the shared map in {side.name}{_interval_text(side.area_interval)}")
        if side.num_degraded:
            how = "not counted as stable" if comparison.rule.counts_degraded else "counted as stable"
            lines.append(f"  of it {count(side.num_degraded, 'cell')} degraded, {how}")
    objectives = comparison.changed.get("objective", ())
    lines += [paragraph(first, difference, objectives) for difference in comparison.differences]
    return [*lines, *_gains_of_values(comparison)]


def _gains_of_values(comparison: Comparison) -> Iterator[str]:
    """What the values of an axis gain over the base; nothing for sweeps of their own."""
    if comparison.along is None:
        return
    prefix = f"{comparison.along}="
    found = [(new.name.removeprefix(prefix), new.gains) for new in comparison.differences if new.gains is not None]
    base = comparison.sides[0].name.removeprefix(prefix)
    yield from gains_lines(comparison.along, base, found, comparison.axes, comparison.rule)


def differs_lines(changed: Mapping[str, Sequence[Any]]) -> list[str]:
    """A line for each field that differs, with its value in each sweep."""
    return [
        f"differs: {field} = {', '.join(format_value(to_hashable(value)) for value in values)}"
        for field, values in changed.items()
    ]


def _interval_text(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return " (one seed: no interval)"
    low, high = interval
    return f" (95 % interval over seeds {low:.1%} to {high:.1%})"


def paragraph(first: Side, new: Difference, objectives: Sequence[str] = ()) -> str:
    """What changed from ``first`` to the other sweep and how certain that is; ``objectives`` are those that differ."""
    change = 100 * new.area_change
    sentences = [f"{new.name} against {first.name}:"]
    if new.area_interval is not None:
        low, high = (100 * end for end in new.area_interval)
        rough = f", rough with {new.num_seeds} seeds" if new.num_seeds < _FEW_SEEDS else ""
        sentences.append(
            f"the stable area changes by {change:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}{rough})."
        )
    else:
        sentences.append(f"the stable area changes by {change:+.1f} points; without two seeds it has no interval.")
    sentences.append(pairs_text(new.pairs) if new.pairs else "They share no seeds, so trials are not paired.")
    if new.shift is not None:
        sentences.append(_shift_text(new.shift))
    sentences.append(unlike_text(objectives) if objectives else _how_sure(new))
    return " ".join(sentences)


def pairs_text(pairs: Pairs) -> str:
    """What became of the trials that both sweeps have."""
    return (
        f"Of {pairs.num} trials of the same cell and seed, {pairs.num_gained} became stable and {pairs.num_lost} "
        f"stopped being so (McNemar's exact p = {pairs.p_value:.2g}, trials taken as independent)."
    )


def unlike_text(objectives: Sequence[str]) -> str:
    """What is said in place of a conclusion where the sweeps train different ``objectives``."""
    unlike = f"They train different objectives ({', '.join(dict.fromkeys(objectives))})"
    return f"{unlike}, so no setting explains the difference."


def _shift_text(shift: EdgeShift) -> str:
    scale = f"The edge along {shift.axis}"
    if not shift.factors:
        return f"{scale} cannot be compared: none of {shift.num_rows} rows has exactly one edge in both."
    middle = float(np.median(shift.factors))
    spread = f"from {min(shift.factors):.3g} to {max(shift.factors):.3g}"
    moved = sum(not math.isclose(factor, 1.0, rel_tol=1e-9) for factor in shift.factors)
    rest = f"; {count(shift.num_other, 'row')} with no edge or several in one of them" if shift.num_other else ""
    if not moved:
        what = f"is in the same bracket in all of {count(len(shift.factors), 'row')} that have one"
        return f"{scale} {what} (brackets up to a factor {shift.resolution:.3g}){rest}."
    return (
        f"{scale} moves by a factor {middle:.3g} (median of {count(len(shift.factors), 'row')}, {spread}; "
        f"brackets up to a factor {shift.resolution:.3g}){rest}."
    )


def _how_sure(new: Difference) -> str:
    if new.pairs is None or new.area_interval is None:
        return "How sure that is cannot be said without two seeds that both have."
    excludes_zero = new.area_interval[0] > 0 or new.area_interval[1] < 0
    if new.pairs.p_value < _SIGNIFICANT and excludes_zero:
        return f"More than chance: {new.name} is {'more' if new.area_change > 0 else 'less'} stable here."
    if new.pairs.p_value >= _SIGNIFICANT and not excludes_zero:
        if new.num_turned:
            moved = f"{count(new.num_turned, 'cell')} with all seeds stable in one of them and none in the other"
            return f"The area changes by no more than chance would give, but not the map: {moved}."
        if not new.pairs.num_gained and not new.pairs.num_lost:
            return "No difference was seen on these trials."
        return "No more than chance would give: more seeds would tell."
    return "The two tests disagree: take it as a hint, and add seeds."
