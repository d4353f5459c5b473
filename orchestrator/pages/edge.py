"""The edge against another axis as the page draws it: places on the axes' scales, and texts."""

from __future__ import annotations

import html
import json
import math
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, number_text
from orchestrator.maps.axes import value_label
from orchestrator.maps.edge_line import EdgeLines, edge_lines, edge_table, kind_of_edge
from orchestrator.maps.edges import Edge, Row
from orchestrator.maps.table import SweepTable
from orchestrator.render.edge_line import ends_of
from orchestrator.render.html import frame_html
from orchestrator.render.labels import AxisScale, scale_label, tick_texts
from orchestrator.render.style import GREY, SEED_COLOURS

_MOST_TICKS = 8
_TICKS_OF_A_RANGE = 6
_MOST_ROWS = 400  # of the table
_DIGITS = 3


def edge_section(table: SweepTable) -> str:
    """The edge as HTML: what the page's script draws, and its numbers as a table; an empty text without an edge.

    There is none with one axis, without a row that crosses it, and where a further axis has too many values to be
    drawn.
    """
    try:
        found = edge_lines(table)
    except InputError:
        return ""
    if not found.sides:
        return ""
    content = html.escape(json.dumps(edge_data(found), allow_nan=False, separators=(",", ":")))
    rows = edge_table(found)
    every = math.ceil(len(rows) / _MOST_ROWS)
    return (
        f'<section class="answer" data-tab="edge"><h2>{html.escape(_title(found))}</h2>\n'
        f'<figure class="edge" id="edge" data-edge="{content}"></figure>\n'
        f"<details><summary>The edge as a table</summary>{frame_html(rows.iloc[::every])}</details></section>"
    )


def _title(found: EdgeLines) -> str:
    notes = f" ({'; '.join(found.notes)})" if found.notes else ""
    return f"Edge along {found.along.name} against {found.across.name}{notes}"


def edge_data(found: EdgeLines) -> dict[str, Any]:
    """The lines of ``found`` with their places on both axes; every number is finite or null."""
    across, along = AxisScale.of(found.across), AxisScale.of(found.along)
    directions = [edge.is_stable_below for line in found.lines for _, edge in line.edges]
    is_stable_low = 2 * sum(directions) >= len(directions)
    colours = [SEED_COLOURS[i % len(SEED_COLOURS)] if len(found.lines) > 1 else GREY for i in range(len(found.lines))]
    return {
        "is_curve": found.is_curve,
        "is_fitted": found.is_fitted,
        "across": _axis(across),
        "along": _axis(along),
        "lines": [
            {
                "label": line.label,
                "colour": colour,
                "points": [point for row in line.rows for point in _points(row, found, across, along, is_stable_low)],
            }
            for line, colour in zip(found.lines, colours, strict=True)
        ],
    }


def _axis(scale: AxisScale) -> dict[str, Any]:
    """Name, ends and ticks of an axis."""
    axis = scale.axis
    values = axis.values or tuple(axis.at(float(unit)) for unit in np.linspace(0, 1, _TICKS_OF_A_RANGE))
    values = values[:: math.ceil(len(values) / _MOST_TICKS)]
    low, high = scale.ends
    texts = tick_texts(axis, values)
    ticks = [[scale.place(value), text] for value, text in zip(values, texts, strict=True)]
    return {"name": scale_label(axis), "low": low, "high": high, "ticks": ticks}


def _points(
    row: Row, found: EdgeLines, across: AxisScale, along: AxisScale, is_stable_low: bool
) -> list[dict[str, Any]]:
    """The edges of a row with their intervals; without one, on which side of the axis it lies, if that is known."""
    here = row.setting[found.across.name]
    x, where = across.place(here), f"{found.across.name} {_text(found.across, here)}"
    if not row.edges:
        beyond = {"stable throughout": is_stable_low, "not stable throughout": not is_stable_low}.get(row.kind)
        return [{"x": x, "is_beyond_high": beyond, "words": f"{where}: {row.kind}"}]
    return [{"x": x, **_places(edge, along), "words": f"{where}: {_words(edge, found.along)}"} for edge in row.edges]


def _places(edge: Edge, along: AxisScale) -> dict[str, Any]:
    low, high = ends_of(along, edge)
    middle = None if edge.basis == "fit" else (low + high) / 2
    return {"at": middle if edge.at is None else along.place(edge.at), "low": low, "high": high}


def _words(edge: Edge, along: Axis) -> str:
    at = "" if edge.at is None else f" {edge.at:.3g}"
    ends = ("the end" if edge.basis == "fit" and end is None else _text(along, end) for end in (edge.low, edge.high))
    return f"edge{at} ({' to '.join(ends)}), {kind_of_edge(edge)}"


def _text(axis: Axis, value: Any) -> str:
    """A value of an axis, which need not be a listed one."""
    return value_label(axis, value) if value in axis.values else number_text(value, _DIGITS)
