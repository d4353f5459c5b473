"""The stability map as text, for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

from rich.text import Text

from orchestrator.base.space import Axis
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import OSCILLATING, RIGHT, TOO_SLOW, UNSURE
from orchestrator.base.words import wrapped
from orchestrator.maps.axes import axis_values, value_labels
from orchestrator.maps.cell_map import CellMap, map_of_trials
from orchestrator.render.states import STATES

_MAX_WIDTH, _MAX_ROWS = 80, 40  # a larger map is not shown
_MAX_HEAD = 24
_LR_ADVICE = {TOO_SLOW: " (raise)", OSCILLATING: " (lower)", RIGHT: "", UNSURE: ""}
_LEAST_FILLED = 6  # a map is shown if one place in this many has a cell


def text_map(rows: Sequence[TrialResult], aside: Container[str] = ()) -> Text | None:
    """Return the stability map over the first two axes that are not ``aside``, or None if `drawn_map` has none.

    Over further axes it shows the worst cell. Axes that advance with another one are to be left ``aside``.
    """
    values = {name: found for name, found in axis_values([row.cell for row in rows]).items() if name not in aside}
    names = list(values)
    if not names:
        return None
    axes = {name: Axis(name, "values", of_axis) for name, of_axis in values.items()}
    y_name = names[1] if len(names) > 1 else None
    return drawn_map(map_of_trials(rows, axes, names[0], y_name))


def drawn_map(stability: CellMap) -> Text | None:
    """Return a map as text of at most 80 columns, or None if it does not fit, or would be nearly empty."""
    xs, ys = stability.x_values, stability.y_values
    heads = [_head(label) for label in value_labels(ys)] if stability.y is not None else [""]
    margin = max(map(len, heads), default=0)
    gap = " " if margin + 2 * len(xs) < _MAX_WIDTH else ""
    if not xs or margin + 2 + len(xs) > _MAX_WIDTH or len(ys) > _MAX_ROWS:
        return None
    if len(stability.cells) * _LEAST_FILLED < len(xs) * len(ys):
        return None  # scattered cells: nearly every row and column has one
    text = Text(no_wrap=True)
    if stability.y is not None:
        text.append(f"{stability.y.name}\n")
    for y, head in reversed(list(zip(ys, heads, strict=True))):
        text.append(f"{head:>{margin}}  ")
        for i, x in enumerate(xs):
            look = STATES[_state(stability, (x, y))]
            text.append(gap if i else "")
            text.append(look.letter, style=look.colour)
        text.append("\n")
    labels = value_labels(xs)
    note = f", {stability.note}" if stability.note else ""
    shown = dict.fromkeys(_state(stability, key) for key in stability.cells)
    below = [f"{stability.x.name}: {labels[0]} .. {labels[-1]}{note}"]
    # A letter and its word stay on one line.
    below.append("  ".join(f"{STATES[state].letter} {STATES[state].word}".replace(" ", "\xa0") for state in shown))
    words = Counter(cell.lr_health for cell in stability.cells.values() if cell.lr_health)
    if words:
        said = ", ".join(f"{words[word]} {word}{advice}" for word, advice in _LR_ADVICE.items() if words[word])
        below.append(f"learning rates: {said}")
    for line in below:
        parts = wrapped(f"{'':>{margin}}  {line}", margin + 4, _MAX_WIDTH)
        text.append("".join(f"{part}\n" for part in parts).replace("\xa0", " "))
    return text


def _head(label: str) -> str:
    """A label that says where it was cut."""
    return label if len(label) <= _MAX_HEAD else f"{label[: _MAX_HEAD - 2]}.."


def _state(stability: CellMap, key: tuple[Any, Any]) -> str:
    state = stability.state(key)
    is_running = key in stability.cells and "running" in stability.cells[key].outcomes
    return "running" if state == "not_run" and is_running else state
