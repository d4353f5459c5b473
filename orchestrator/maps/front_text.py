"""A front in words: its settings, what each step along it costs and gives, and what they beat."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

from orchestrator.base.words import shortened
from orchestrator.maps.front import MARGIN, Front, FrontCell

_SHOWN = 5  # beaten settings that are listed


def front_lines(found: Front) -> Iterator[str]:
    """The answer and its evidence in words."""
    members, beaten = found.members, found.beaten
    left = Counter(cell.state for cell in found.cells if cell.kind == "no candidate")
    others = ", ".join(f"{count} {state}" for state, count in left.most_common())
    if not members:
        yield f"none: no cell of {len(found.cells)} can be compared, which needs all seeds stable ({others})"
        return
    num = len(members) + len(beaten)
    which = "this one" if len(members) == 1 else f"these {len(members)}"
    yield f"{found.name}: low {_words(found.metric)} against {_aim(found)}"
    yield f"no setting beats {which} in both, of {num} that are stable on all seeds:"
    yield f"  {_numbers(members[0], found)}: the lowest loss"
    for before, here in itertools.pairwise(members):
        yield f"  {_numbers(here, found)}: {_step(before, here, found)}"
    if len({cell.numbers[1] for cell in (*members, *beaten)}) == 1 and num > 1:
        yield f"all {num} have the same {_words(found.against)}, so there is nothing to weigh"
    if beaten:
        yield f"beaten by one of these: {len(beaten)}"
        lines = [f"  {_numbers(cell, found)}: by {cell.beaten_by.name}" for cell in beaten if cell.beaten_by]
        yield from shortened(lines, _SHOWN)
    if any(found.against == MARGIN and math.isinf(cell.numbers[1]) for cell in members):
        yield "open: every direction is stable to the end of what was tried; more values on the axes would tell"
    if found.fitted is not None:
        yield f"margins by a surface fitted to {found.fitted.num_trials} trials, as far as its 95 % interval is stable"
    if others:
        yield f"no candidates: {left.total()} of {len(found.cells)} cells ({others})"


def _aim(found: Front) -> str:
    if found.against == MARGIN:
        return f"a wide margin to the edge{'' if found.along is None else f' along {found.along}'}"
    if found.target is not None:
        return f"few steps to a training loss of {found.target:.4g}"
    return f"{'high' if found.is_high else 'low'} {_words(found.against)}"


def _numbers(cell: FrontCell, found: Front) -> str:
    loss, other = cell.numbers
    return f"{cell.name}: {_words(found.metric)} {loss:.4g}, {_against_text(other, cell, found)}"


def _against_text(other: float, cell: FrontCell, found: Front) -> str:
    if found.against != MARGIN:
        return f"{_words(found.against)} {other:.6g}"
    return "margin open" if math.isinf(other) else f"margin {other:.3g} ({cell.limit})"


def _step(before: FrontCell, here: FrontCell, found: Front) -> str:
    """What ``here`` costs in loss and gives, beside the member of the front before it."""
    (loss_before, other_before), (loss, other) = before.numbers, here.numbers
    if loss == loss_before:
        return "as good as the one before"
    share = f" ({100 * (loss / loss_before - 1):.3g} %)" if loss_before > 0 else ""
    cost = f"costs {loss - loss_before:.3g}{share} of loss"
    if found.against != MARGIN:
        return f"{cost} for {_change(other - other_before)} {_words(found.against)}"
    if math.isinf(other):
        return f"{cost} for an open margin"
    return f"{cost} for a margin {other / other_before:.3g} times as wide"


def _change(difference: float) -> str:
    return f"{abs(difference):.4g} {'more' if difference > 0 else 'less'}"


def _words(name: str) -> str:
    return name.replace("_", " ")
