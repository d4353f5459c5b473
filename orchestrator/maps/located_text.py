"""Where a run lies, in words and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.base.cell import Cell
from orchestrator.base.space import Axis, format_value
from orchestrator.base.vocabulary import DEGRADED
from orchestrator.base.words import count, plural, shortened
from orchestrator.maps.axis_values import value_label
from orchestrator.maps.boundary import Margin, margin_json
from orchestrator.maps.fitted import value_text
from orchestrator.maps.fitted_margins import fitted_margin_text
from orchestrator.maps.located import Caution, Located, NearCell
from orchestrator.maps.recommendation import margin_text
from orchestrator.maps.ways_back import Way

_SHOWN = 8  # cautions


def located_lines(found: Located, folder: Path) -> Iterator[str]:
    """The answer in words; ``folder`` is that of the sweep's results."""
    yield f"{found.name}: {Cell(found.place.setting).name}"
    yield from _side_lines(found)
    for margin in found.margins:
        yield f"  {_margin_text(margin, found)}"
    if any(margin.is_open for margin in found.margins):
        yield "  open: nothing is known beyond what was tried"
    for way in found.ways:
        yield f"  {_way_text(way, found)}"
    if found.side not in ("stable", "outside") and not found.margins and not found.ways:
        yield "  no value of a single axis leads to a stable place"
    for note in found.notes:
        yield f"note: {note}; the run's value is taken for it"
    cautions = [f"caution: {_caution_text(caution)}" for caution in found.cautions]
    yield from shortened(cautions, _SHOWN, "--json has all of them")
    if found.not_given:
        settings = count(len(found.not_given), "other setting")
        yield f"{settings} of the sweep not given, taken to be equal (--json lists them)"
    yield "nearest cells:"
    for cell in found.nearest:
        yield f"  {Cell(cell.setting).name}: {_seeds_text(cell)}"
    command = f"sweep diagnose {shlex.quote(str(folder))} --trial {found.nearest[0].trial_ids[0]}"
    yield f"curves of the first: `{command}`, or in {folder / 'report.html'}"


def _side_lines(found: Located) -> Iterator[str]:
    if found.side == "outside":
        for outside in found.outside:
            value = format_value(outside.value)
            yield f"outside the axes: {outside.axis} = {value}, where the sweep has {outside.has}"
        yield "  nothing is extrapolated: how far the edge is from there is not known"
        return
    if found.stable is not None:
        at, low, high = found.stable
        words = {
            "stable": "inside stable territory",
            "not stable": "outside stable territory",
            "at the edge": "at the edge: the interval reaches from one side to the other",
        }
        yield f"{words[found.side]}: P(stable) is {at:.2g} ({low:.2g} .. {high:.2g}) by a fitted surface"
        return
    num, one = found.num_around, found.num_around == 1
    cells = "its cell is" if one else f"the {num} cells around it are"
    learned = f"; {found.num_degraded} of {num} {plural(found.num_degraded, 'is', 'are')} degraded"
    words = {
        "stable": f"inside stable territory: {cells} stable on all seeds{learned if found.num_degraded else ''}",
        "not stable": f"outside stable territory: {cells} not stable"
        if one
        else f"outside stable territory: none of the {num} cells around it is stable",
        "at the edge": f"at the edge: of the {num} cells around it some are stable and some are not",
        "not known": "not known: a cell around it has no outcome on all seeds",
    }
    yield words[found.side]


def _seeds_text(cell: NearCell) -> str:
    num_seeds = sum(cell.outcomes.values())
    num_stable = cell.outcomes.get("stable", 0) + cell.outcomes.get(DEGRADED, 0)
    loss = "none" if cell.final_loss is None else f"{cell.final_loss:.4g}"
    return f"{cell.state}, {num_stable} of {num_seeds} seeds stable, median final loss {loss}"


def _margin_text(margin: Margin, found: Located) -> str:
    return margin_text(margin, found.axes) if found.fitted is None else fitted_margin_text(margin, found.fitted)


def _way_text(way: Way, found: Located) -> str:
    axis = _axis(way.axis, found)
    at = value_label(axis, way.stable_from) if found.fitted is None else value_text(axis, way.stable_from)
    return f"{way.axis} {'up' if way.is_upwards else 'down'}: stable from {at} (factor {way.factor:.3g})"


def _axis(name: str, found: Located) -> Axis:
    axes = found.axes if found.fitted is None else found.fitted.axes
    return next(axis for axis in axes if axis.name == name)


def _caution_text(caution: Caution) -> str:
    what = f"{caution.place}: {caution.name} = {format_value(caution.run)}"
    if caution.has:
        return f"{what}, where the sweep has {format_value(caution.sweep)}"
    return f"{what} is no setting of the sweep" + (f"; {caution.remedy}" if caution.remedy else "")


def located_json(found: Located) -> dict[str, Any]:
    """The whole answer; a factor may be infinite."""
    stable = None
    if found.stable is not None:
        stable = dict(zip(("at", "low", "high"), found.stable, strict=True))
    return {
        "sweep": found.name,
        "setting": dict(found.place.setting),
        "side": found.side,
        "is_fitted": found.fitted is not None,
        "num_cells_around": found.num_around,
        "num_degraded_around": found.num_degraded,
        "p_stable": stable,
        "margins": [margin_json(margin) for margin in found.margins],
        "ways": [
            {
                "axis": way.axis,
                "is_upwards": way.is_upwards,
                "stable_from": way.stable_from,
                "factor": way.factor,
            }
            for way in found.ways
        ],
        "outside": [{"axis": each.axis, "value": each.value, "has": each.has} for each in found.outside],
        "cautions": [
            {"name": each.name, "place": each.place, "run": each.run, "sweep": each.sweep, "is_known": each.has}
            for each in found.cautions
        ],
        "not_given": list(found.not_given),
        "notes": list(found.notes),
        "nearest": [
            {
                "setting": dict(cell.setting),
                "state": cell.state,
                "outcomes": dict(cell.outcomes),
                "median_final_loss": cell.final_loss,
                "trials": list(cell.trial_ids),
            }
            for cell in found.nearest
        ],
    }
