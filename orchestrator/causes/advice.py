"""Advice: a setting to change, its direction and the reason, checked against the sweep's cells."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.space import format_value
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import LOWER_LR, Move
from orchestrator.causes.small_sweep import small_sweep
from orchestrator.maps.neighbours import Neighbour, above, below, neighbours

_WIDTH = 106


@dataclass(frozen=True, slots=True)
class Advice:
    """A move, and the evidence for it in the sweep's cells.

    ``here`` is the trial's cell, ``nearest`` the next cell in the direction of the move, ``stable`` the next stable one
    there or None. ``sweep_file`` is a small sweep to try if no cell answers; if it cannot be written, it is None and
    ``refusal`` says why.
    """

    move: Move
    here: Neighbour | None
    nearest: Neighbour | None
    stable: Neighbour | None
    sweep_file: str | None
    refusal: str = ""


def advise(evidence: Evidence, mechanism: str | None, folder: Path) -> list[Advice]:
    """What to change in a trial of the sweep in ``folder`` that ``mechanism`` led off its trend.

    Without a known mechanism, a lower learning rate if the sweep shows that to be stable. Leaves out settings that do
    not act in the trial, and settings that already have the advised value.
    """
    if mechanism is not None:
        moves = MECHANISMS[mechanism].moves
    else:
        lower = below(evidence.cells("lr"), evidence.config.get("lr"))
        moves = (LOWER_LR,) if evidence.onset is not None and any(cell.is_stable for cell in lower) else ()
    checked = [check(evidence, move, folder) for move in moves if _acts(evidence, move.setting)]
    return [advice for advice in checked if advice is not None]


def _acts(evidence: Evidence, setting: str) -> bool:
    """Whether the trial uses the setting, and not another one instead."""
    if setting in ("beta2", "beta2_half_life") and setting != evidence.memory_setting:
        return False
    return setting in evidence.config


def check(evidence: Evidence, move: Move, folder: Path) -> Advice | None:
    """Check a move against the sweep's cells, or write a small sweep if there are none; None if already done."""
    own = evidence.config[move.setting]
    cells = neighbours(evidence.sisters, evidence.trial, move.setting)
    if move.direction == "switch":
        candidates = [cell for cell in cells if cell.value != own]
    else:
        candidates = (below if move.direction == "lower" else above)(cells, own)
    nearest = candidates[0] if candidates else None
    sweep_file, refusal = None, ""
    if nearest is None:
        values = _values(own, move, evidence)
        if not values:
            return None
        try:
            sweep_file = small_sweep(folder, evidence.trial, move.direction, move.setting, values)
        except InputError as error:
            refusal = refusal_of(error)
    return Advice(
        move=move,
        here=next((cell for cell in cells if cell.value == own), None),
        nearest=nearest,
        stable=next((cell for cell in candidates if cell.is_stable), None),
        sweep_file=sweep_file,
        refusal=refusal,
    )


def refusal_of(error: InputError) -> str:
    """The key and message of an error, without its file and remedy."""
    first = error.problems[0]
    return first if isinstance(first, str) else ": ".join(part for part in (first.key, first.message) if part)


def _values(own: Any, move: Move, evidence: Evidence) -> list[Any]:
    """The values of a small sweep that lie in the direction of the move."""
    values = list(dict.fromkeys(move.values(evidence)))
    if move.direction == "switch":
        return [value for value in values if value != own]
    is_lower = move.direction == "lower"
    return [value for value in values if own is None or (value < own if is_lower else value > own)]


def advice_lines(advice: Sequence[Advice], outcome: str) -> list[str]:
    """Advice in words, with the first small sweep that would answer what the sweep does not."""
    lines: list[str] = []
    is_file_shown = False
    for item in advice:
        lines += textwrap.wrap(f"{item.move.direction} {item.move.setting}: {item.move.reason}", _WIDTH)
        if item.nearest is not None:
            lines += [f"  {text}" for text in _results(item, item.nearest, outcome)]
        elif item.sweep_file is None:
            lines.append(f"  no cell of this sweep shows whether it helps, a small sweep is refused: {item.refusal}")
        elif is_file_shown:
            lines.append("  no cell of this sweep shows whether it helps; a small sweep would")
        else:
            lines += ["  no cell of this sweep shows whether it helps; this sweep would:", *indented(item.sweep_file)]
            is_file_shown = True
    return lines


def indented(sweep_file: str) -> list[str]:
    """A sweep file as an indented paragraph."""
    return ["", *(f"    {line}" for line in sweep_file.splitlines()), ""]


def _results(advice: Advice, nearest: Neighbour, outcome: str) -> list[str]:
    lines = [_comparison(advice, nearest)]
    if advice.stable is None:
        lines.append(f"no cell in this direction of {advice.move.setting} is stable: the sweep contradicts this advice")
    elif advice.stable is not nearest:
        lines.append(_comparison(advice, advice.stable))
    here = advice.here.loss if advice.here is not None else None
    is_lower = here is not None and advice.stable is not None and here < (advice.stable.loss or math.inf)
    if outcome == "spiked" and is_lower:
        lines.append("a spike is not a failure: the cell that spikes has the lower final loss")
    return lines


def _comparison(advice: Advice, cell: Neighbour) -> str:
    """beta2 0.999 -> 0.99 at these settings: 3 of 3 seeds stable, final loss 2.41 -> 2.38."""
    own = advice.here.value if advice.here is not None else None
    change = f"{advice.move.setting} {format_value(own)} -> {format_value(cell.value)}"
    seeds = f"{cell.num_stable} of {cell.num_finished} seeds stable"
    return f"{change} at these settings: {seeds}, final loss {_loss(advice.here)} -> {_loss(cell)}"


def _loss(cell: Neighbour | None) -> str:
    return "not finite" if cell is None or cell.loss is None else f"{cell.loss:.4g}"
