"""Advice: which setting to change, in which direction and why, checked against the sweep's cells."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.space import format_value
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.moves import LOWER_LR, Move
from orchestrator.causes.small_sweep import written_sweep
from orchestrator.maps.neighbours import Neighbour, above, below, neighbours

_WIDTH = 106


@dataclass(frozen=True, slots=True)
class Advice:
    """A move, and the evidence for it in the sweep's cells.

    ``here`` is the trial's cell, ``nearest`` the next cell in the direction of the move, ``stable`` the next stable one
    there or None. ``sweep_file`` is a small sweep to try where no cell answers, None with a ``refusal``: why it cannot
    be written.
    """

    move: Move
    here: Neighbour | None
    nearest: Neighbour | None
    stable: Neighbour | None
    sweep_file: str | None
    refusal: str = ""


def advise(evidence: Evidence, mechanism: str | None, folder: Path) -> list[Advice]:
    """What to change in a trial of the sweep in ``folder`` that ``mechanism`` led off its trend.

    Where none is known to have (None), a lower learning rate if the sweep shows that to be stable. Leaves out settings
    that the trial does not have, and those that already have the advised value.
    """
    moves = MECHANISMS[mechanism].moves if mechanism is not None else _moves_without_cause(evidence)
    return [
        advice
        for move in moves
        if _acts(evidence, move.setting) and (advice := check(evidence, move, folder)) is not None
    ]


def _moves_without_cause(evidence: Evidence) -> tuple[Move, ...]:
    lower = below(evidence.cells("lr"), evidence.config.get("lr"))
    return (LOWER_LR,) if evidence.onset is not None and any(cell.is_stable for cell in lower) else ()


def _acts(evidence: Evidence, setting: str) -> bool:
    """Whether the setting acts in the trial, with no other in its place."""
    if setting in ("beta2", "beta2_half_life") and setting != evidence.memory_setting:
        return False
    return setting in evidence.config


def check(evidence: Evidence, move: Move, folder: Path) -> Advice | None:
    """Evidence on a move from the sweep's cells, or a small sweep where there are none; None if already done."""
    own = evidence.config[move.setting]
    cells = neighbours(evidence.sisters, evidence.trial, move.setting)
    there = [cell for cell in cells if cell.value != own]
    if move.direction != "switch":
        there = below(cells, own) if move.direction == "lower" else above(cells, own)
    nearest = there[0] if there else None
    values = [] if nearest else _tried(own, move, evidence)
    if nearest is None and not values:
        return None
    sweep_file, refusal = None, ""
    if nearest is None:
        try:
            sweep_file = written_sweep(folder, evidence.trial, move.direction, move.setting, values)
        except InputError as error:
            refusal = refusal_of(error)
    return Advice(
        move=move,
        here=next((cell for cell in cells if cell.value == own), None),
        nearest=nearest,
        stable=next((cell for cell in there if cell.is_stable), None),
        sweep_file=sweep_file,
        refusal=refusal,
    )


def refusal_of(error: InputError) -> str:
    """What is wrong, without the file and the remedy."""
    first = error.problems[0]
    return first if isinstance(first, str) else ": ".join(part for part in (first.key, first.message) if part)


def _tried(own: Any, move: Move, evidence: Evidence) -> list[Any]:
    """The values of a small sweep that lie in the direction of the move."""
    values = list(dict.fromkeys(move.values(evidence)))
    if move.direction == "switch":
        return [value for value in values if value != own]
    is_lower = move.direction == "lower"
    return [value for value in values if own is None or (value < own if is_lower else value > own)]


def advice_lines(advice: Sequence[Advice], outcome: str) -> list[str]:
    """Advice in words, with the first small sweep that would answer what the sweep does not."""
    lines: list[str] = []
    shown_file = False
    for one in advice:
        lines += textwrap.wrap(f"{one.move.direction} {one.move.setting}: {one.move.reason}", _WIDTH)
        if one.nearest is not None:
            lines += [f"  {text}" for text in _checked(one, outcome)]
        elif one.sweep_file is None:
            lines.append(f"  no cell of this sweep tells, and a small sweep would be refused: {one.refusal}")
        elif shown_file:
            lines.append("  no cell of this sweep shows whether it helps; a small sweep would")
        else:
            lines += ["  no cell of this sweep tells; this sweep would:", *indented(one.sweep_file)]
            shown_file = True
    return lines


def indented(sweep_file: str) -> list[str]:
    """A sweep file as an indented paragraph."""
    return ["", *(f"    {line}" for line in sweep_file.splitlines()), ""]


def _checked(one: Advice, outcome: str) -> list[str]:
    assert one.nearest is not None
    lines = [_compared(one, one.nearest)]
    if one.stable is None:
        where = f"in this direction of {one.move.setting}"
        lines.append(f"no cell of this sweep is stable {where}: its cells speak against this advice")
    elif one.stable is not one.nearest:
        lines.append(_compared(one, one.stable))
    here = one.here.loss if one.here is not None else None
    if outcome == "spiked" and one.stable is not None and here is not None and here < (one.stable.loss or float("inf")):
        lines.append("a spike is not a failure: the cell that spikes has the lower final loss")
    return lines


def _compared(one: Advice, there: Neighbour) -> str:
    """beta2 0.999 -> 0.99 at these settings: 3 of 3 seeds stable here, final loss 2.41 -> 2.38."""
    own = one.here.value if one.here is not None else None
    change = f"{one.move.setting} {format_value(own)} -> {format_value(there.value)}"
    seeds = f"{there.num_stable} of {there.num_finished} seeds stable here"
    return f"{change} at these settings: {seeds}, final loss {_loss(one.here)} -> {_loss(there)}"


def _loss(cell: Neighbour | None) -> str:
    return "not finite" if cell is None or cell.loss is None else f"{cell.loss:.4g}"
