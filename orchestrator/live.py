"""What a person sees while a sweep runs: the map filling in, throughput, time left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestrator.errors import printable
from orchestrator.outcomes import OUTCOMES, cell_state
from orchestrator.reports import Finished
from orchestrator.runner import Progress
from orchestrator.space import format_value

_SECONDS_PER_LINE = 10.0
_SECONDS_PER_FRAME = 0.5
_MAX_WIDTH, _MAX_ROWS = 80, 40  # of a text map; beyond them it is left out
_MAX_HEAD = 24
# Letter-like marks that differ without colour, and on a terminal with ASCII alone.
_MARKS = {
    "stable": ("o", "blue"),
    "spiked": ("^", "yellow"),
    "diverged": ("X", "red"),
    "stalled": ("-", "magenta"),
    "errored": ("!", "red"),
    "running": (":", "default"),
    "not_run": (".", "bright_black"),
}
_MEANINGS = {"stable": "all stable", "not_run": "not run"}


class LiveView:
    """Draws progress on a terminal, or plain lines where there is none. An observer of the run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._next = 0.0
        self._num_notes_said = 0

    def began(self, progress: Progress) -> None:
        """Training begins."""
        workers = f"{progress.workers} worker{'s' if progress.workers != 1 else ''}"
        self._console.print(f"training {progress.to_train} trials on {workers}", highlight=False)
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def changed(self, progress: Progress, finished: Sequence[Finished]) -> None:
        """Show where the run stands, at most twice a second (plain: every ten seconds)."""
        for note in progress.notes[self._num_notes_said :]:
            self._console.print(printable(note), highlight=False, markup=False, soft_wrap=True)
        self._num_notes_said = len(progress.notes)
        now = time.monotonic()
        if now < self._next:
            return
        if self._live is not None:
            self._next = now + _SECONDS_PER_FRAME
            map_text = text_map([(t.cell, _label(progress, t.trial_id)) for t in progress.sweep.trials])
            line = Text(progress_line(progress))
            self._live.update(Group(map_text, line) if map_text else line, refresh=True)
        else:
            self._next = now + _SECONDS_PER_LINE
            self._console.print(progress_line(progress), highlight=False, soft_wrap=True)

    def ended(self, progress: Progress) -> None:
        """Training is over."""
        if self._live is not None:
            self._live.stop()
        else:
            self._console.print(progress_line(progress), highlight=False, soft_wrap=True)


def progress_line(progress: Progress) -> str:
    """One line: trials done, outcomes, throughput, time left."""
    counts = progress.counts
    done = len(progress.outcomes)
    words = [f"{done}/{len(progress.statuses)} trials"]
    words += [f"{name} {counts[name]}" for name in (*OUTCOMES, "errored", "lost") if counts[name]]
    speed = progress.member_steps_per_second
    if speed:
        words.append(f"{speed:,.0f} member-steps/s")
        if progress.steps_left:
            words.append(f"{format_seconds(progress.steps_left / speed)} left")
    return " | ".join([format_seconds(progress.seconds), *words])


def format_seconds(seconds: float) -> str:
    """Minutes and seconds, with hours when there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def text_map(labelled_cells: Sequence[tuple[Mapping[str, Any], str]]) -> Text | None:
    """The stability map over the first two axes as text of at most 80 columns, or None when it would not fit.

    ``labelled_cells`` holds, for every trial, its cell and its outcome (or status). Further axes are pooled.
    """
    names = list(labelled_cells[0][0]) if labelled_cells else []
    if not names:
        return None
    columns = list(dict.fromkeys(cell[names[0]] for cell, _ in labelled_cells))
    rows = list(dict.fromkeys(cell[names[1]] for cell, _ in labelled_cells)) if len(names) > 1 else [None]
    heads = [format_value(row)[:_MAX_HEAD] if len(names) > 1 else "" for row in rows]
    margin = max(len(head) for head in heads)
    gap = " " if margin + 2 * len(columns) < _MAX_WIDTH else ""
    if margin + 2 + len(columns) > _MAX_WIDTH or len(rows) > _MAX_ROWS:
        return None
    labels: dict[tuple[Any, Any], list[str]] = {}
    for cell, label in labelled_cells:
        labels.setdefault((cell[names[0]], cell[names[1]] if len(names) > 1 else None), []).append(label)
    text = Text(no_wrap=True)
    if len(names) > 1:
        text.append(f"{names[1]}\n")
    for row, head in reversed(list(zip(rows, heads, strict=True))):
        text.append(f"{head:>{margin}}  ")
        for i, column in enumerate(columns):
            mark, colour = _MARKS[_state(labels.get((column, row), []))]
            text.append(gap if i else "")
            text.append(mark, style=colour)
        text.append("\n")
    pooled = f", over all values of {', '.join(names[2:])}" if len(names) > 2 else ""
    ends = f"{names[0]}: {format_value(columns[0])} .. {format_value(columns[-1])}{pooled}"
    text.append(f"{'':>{margin}}  {ends}\n")
    shown = dict.fromkeys(_state(cell_labels) for cell_labels in labels.values())
    key = "  ".join(f"{_MARKS[state][0]} {_MEANINGS.get(state, state)}" for state in shown)
    text.append(f"{'':>{margin}}  {key}\n")
    return text


def _label(progress: Progress, trial_id: str) -> str:
    return progress.outcomes.get(trial_id, progress.statuses[trial_id])


def _state(labels: Sequence[str]) -> str:
    state = cell_state(labels)
    return "running" if state == "not_run" and "running" in labels else state
