"""What the values of an axis gain over the base, as tables of 80 columns and as JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.base.space import Axis
from orchestrator.base.words import WIDTH, count, wrapped
from orchestrator.maps.axes import value_label
from orchestrator.maps.gains import Gains, LowestLoss

_GAP = 2  # characters between the columns of a table
_TAIL = 30  # characters that are kept free for the text at the end of a row
_NONE = "-"

Named = tuple[str, Gains]  # the label of a value, and what it gains


def gains_content(found: Gains | None) -> dict[str, Any] | None:
    """What became of the runs of the base; null without pairs."""
    if found is None:
        return None
    saved_low, saved_high = found.saved_interval or (None, None)
    harmed_low, harmed_high = found.harmed_interval or (None, None)
    change_low, change_high = found.loss_change_interval or (None, None)
    best, base = found.best, found.best_of_base
    return {
        "num_pairs": found.num_pairs,
        "unstable": found.unstable,
        "saved": found.saved,
        "saved_low": saved_low,
        "saved_high": saved_high,
        "saved_loss": found.saved_loss,
        "stable": found.stable,
        "harmed": found.harmed,
        "harmed_low": harmed_low,
        "harmed_high": harmed_high,
        "num_losses": found.num_losses,
        "loss_change": found.loss_change,
        "loss_change_low": change_low,
        "loss_change_high": change_high,
        "best_loss": None if best is None else best.loss,
        "best_setting": None if best is None else dict(best.cell),
        "best_loss_base": None if base is None else base.loss,
        "best_setting_base": None if base is None else dict(base.cell),
    }


def gains_lines(along: str, base: str, found: Sequence[Named], axes: Sequence[Axis]) -> Iterator[str]:
    """The values of the axis ``along`` against ``base``, the best first: runs saved and harmed, losses, best cells."""
    if not found:
        return
    rows = sorted(found, key=_rank)
    measure = found[0][1].measure
    yield ""
    yield from wrapped(
        f"Against {along}={base}, on {_num_pairs(rows)} of the same cell and seed: runs saved (not stable there, "
        "stable here), runs harmed (stable there, not here), and the median change of the "
        f"{measure.words}{measure.note} where both are stable, each with its interval of 95 % over seeds, from six "
        "seeds on."
    )
    yield from _table([(along, "saved", "harmed", f"change of {measure.kind}"), *(_turned(*row) for row in rows)])
    yield ""
    yield from wrapped(
        f"Median {measure.words}: of the saved runs, and of the best cell, which has the {measure.best} of all cells "
        "that are stable on every seed."
    )
    first = rows[0][1].best_of_base
    bests = [(base, None, first), *((label, found.saved_loss, found.best) for label, found in rows)]
    losses = [(label, _loss(saved), _loss(None if best is None else best.loss)) for label, saved, best in bests]
    yield from _table([(along, "saved", "best"), *losses], ["cell", *(_cell(best, axes) for _, _, best in bests)])


def _num_pairs(rows: Sequence[Named]) -> str:
    nums = sorted({found.num_pairs for _, found in rows})
    return count(nums[0], "trial") if len(nums) == 1 else f"{nums[0]} to {nums[-1]} trials"


def _rank(row: Named) -> tuple[float, float, float, float]:
    """Most saved first, then fewest harmed, then the lowest loss; by shares, since a few runs may lack a partner."""
    found = row[1]
    return (
        -found.saved / found.unstable if found.unstable else 0.0,
        found.harmed / found.stable if found.stable else 0.0,
        math.inf if found.loss_change is None else found.measure.cost(found.loss_change),
        math.inf if found.best is None else found.measure.cost(found.best.loss),
    )


def _turned(label: str, found: Gains) -> tuple[str, ...]:
    return (
        label,
        _share(found.saved, found.unstable, found.saved_interval),
        _share(found.harmed, found.stable, found.harmed_interval),
        _change(found),
    )


def _share(num: int, of: int, interval: tuple[float, float] | None) -> str:
    if not of:
        return _NONE
    ends = _NONE if interval is None else "-".join(f"{100 * end:.0f}" for end in interval) + "%"
    return f"{num}/{of} {ends:>7}"


def _change(found: Gains) -> str:
    if found.loss_change is None:
        return _NONE
    ends = _NONE
    if found.loss_change_interval is not None:
        ends = " to ".join(map(_signed, found.loss_change_interval))
    return f"{_signed(found.loss_change)} ({ends})"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + _short(value, 2)


def _loss(value: float | None) -> str:
    return _NONE if value is None else _short(value, 3)


def _short(value: float, digits: int) -> str:
    """A loss with ``digits`` digits: 0.012, 1.2e-5."""
    rounded = float(f"{value:.{digits}g}") + 0.0  # no -0
    if value == 0 or 0.01 <= abs(rounded) < 1000:
        return f"{rounded:g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _cell(best: LowestLoss | None, axes: Sequence[Axis]) -> str:
    """The values of the axes that have more than one."""
    if best is None:
        return "no cell is stable on every seed"
    wide = [axis for axis in axes if len(axis.values) > 1]
    return " ".join(f"{axis.name}={value_label(axis, best.cell[axis.name])}" for axis in wide) or _NONE


def _table(rows: Sequence[tuple[str, ...]], tails: Sequence[str] = ()) -> Iterator[str]:
    """Rows of a label and cells, the head first; ``tails`` are texts at the ends of the rows.

    A label that is too long for its column has a line of its own above the cells.
    """
    widths = [_GAP + max(map(len, column)) for column in list(zip(*rows, strict=True))[1:]]
    room = WIDTH - sum(widths) - (min(_TAIL, max(map(len, tails))) + _GAP if tails else 0)
    width = max((len(label) for label, *_ in rows if len(label) <= room), default=0)
    for (label, *cells), tail in zip(rows, tails or [""] * len(rows), strict=True):
        if len(label) > width:
            yield from wrapped(label)
            label = ""
        line = f"{label:<{width}}" + "".join(f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True))
        if not tail:
            yield line
            continue
        start, *others = textwrap.wrap(tail, WIDTH - len(line) - _GAP, break_on_hyphens=False)
        yield f"{line}{' ' * _GAP}{start}"
        yield from (" " * (len(line) + _GAP) + other for other in others)
