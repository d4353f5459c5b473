"""What other views of the cells need besides the page's data: the fitted surface as places, and shares as bars."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.answers.importance import TITLES
from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis
from orchestrator.maps.axes import led
from orchestrator.maps.importance import Importance
from orchestrator.maps.surface_map import as_range, surface_map
from orchestrator.maps.table import SweepTable
from orchestrator.render.labels import axis_place

_ACROSS = 33  # places on a range
_MOST_TRIALS = 3000  # that a page fits a surface to: more take long, and fill the plane themselves


def surface_html(table: SweepTable) -> str:
    """The fitted P(stable) over the first two axes as an element that the page's script draws; empty without one.

    There is none with fewer or more than two axes, since further ones have no place on a plane, and with few trials.
    """
    axes = sorted(table.axes, key=lambda axis: axis.name in led(table.axes))
    if len(axes) != 2 or len(table.trials) > _MOST_TRIALS:
        return ""
    try:
        found = surface_data(table, axes)
    except InputError:
        return ""
    content = html.escape(json.dumps(found, allow_nan=False, separators=(",", ":")))
    return f'<div hidden data-surface="{content}"></div>'


def surface_data(table: SweepTable, axes: Sequence[Axis]) -> dict[str, Any]:
    """Places on the scales of two axes and P(stable) at them, by rows of the second. Raises InputError."""
    surface = surface_map(table, fills_grids=True)
    reach = {axis.name: axis for axis in surface.reach}
    columns, rows = (_values(reach[axis.name]) for axis in axes)
    x, y = axes
    latent = surface.latent([{x.name: a, y.name: b} for b in rows for a in columns])
    stable_YX = latent.probability().reshape(len(rows), len(columns))
    return {
        "x": x.name,
        "y": y.name,
        "xs": [axis_place(x, value, x.values) for value in columns],
        "ys": [axis_place(y, value, y.values) for value in rows],
        "stable": [[round(float(value), 3) for value in row] for row in stable_YX],
    }


def _values(axis: Axis) -> list[Any]:
    """Values over a whole range, or listed ones."""
    whole = as_range(axis)
    return list(whole.values) or [whole.at(float(unit)) for unit in np.linspace(0, 1, _ACROSS)]


def shares_html(found: Importance) -> str:
    """The share of each axis in what moves stability and the loss, as bars."""
    names = {"stability": "stability", "loss": f"the {found.measure.kind}"}
    groups = [
        f"<h4>what moves {html.escape(names[target])}</h4>{_bars(found.axes, of_target)}"
        for target, of_target in found.shares.items()
        if any(shares is not None for shares in of_target.values())
    ]
    return f'<div class="shares">{"".join(groups)}</div>' if groups else ""


def _bars(axes: Sequence[str], of_target: Mapping[str, Mapping[str, float] | None]) -> str:
    """A row for each axis with a bar for each way to compute its share, the axis with the largest shares first."""
    known = {name: shares for name, shares in of_target.items() if shares is not None}
    order = sorted(axes, key=lambda axis: -sum(shares[axis] for shares in known.values()))
    rows = []
    for axis in order:
        bars = "".join(
            f'<span class="track" title="{TITLES[name]}"><span class="share" '
            f'style="width: {100 * shares[axis]:.1f}%"></span></span>'
            f'<span class="of">{shares[axis]:.0%} <small>{TITLES[name]}</small></span>'
            for name, shares in known.items()
        )
        rows.append(f'<dt>{html.escape(axis)}</dt><dd class="bars">{bars}</dd>')
    return f"<dl>{''.join(rows)}</dl>"
