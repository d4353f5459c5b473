"""The live view of a running sweep: the map filling in, throughput, time left."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestrator.base.cell import Trial
from orchestrator.base.errors import printable
from orchestrator.base.space import Axis
from orchestrator.base.trial_result import MemberResult, TrialResult
from orchestrator.base.vocabulary import OSCILLATING, OUTCOMES, PRUNED, RIGHT, TOO_SLOW, UNSURE
from orchestrator.commands.notebook_frame import NotebookFrame
from orchestrator.driver.limits import PAUSE_S
from orchestrator.driver.progress import Progress
from orchestrator.driver.words import format_seconds
from orchestrator.maps.axis_values import value_labels
from orchestrator.maps.related_cells import led
from orchestrator.maps.stability import StabilityMap, axis_values, make_map
from orchestrator.render.style import STATES

_SECONDS_PER_LINE = 10.0
_MAX_WIDTH, _MAX_ROWS = 80, 40  # of a text map; a larger one is not shown
_MAX_HEAD = 24
_LR_WAYS = {TOO_SLOW: " (raise)", OSCILLATING: " (lower)", RIGHT: "", UNSURE: ""}
_LEAST_FILLED = 6  # a map is shown where one place in so many has a cell


class LiveView:
    """Draws progress on a terminal or in a notebook, or plain lines where there is neither. An observer of the run."""

    def __init__(self, console: Console, frame_s: float = 0.5) -> None:
        """A view on ``console``; at most one picture in ``frame_s``."""
        self._console, self._frame_s = console, frame_s
        self._live: Live | None = None
        self._frame: NotebookFrame | None = None
        self._next = 0.0
        self._has_said_stop = False
        self._num_notes_said = 0

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Say that workers start, which takes seconds; on a terminal something moves meanwhile."""
        if self._console.is_terminal:
            with self._console.status("starting workers ..."):
                yield
        else:
            self._console.print("starting workers ...")
            yield

    def began(self, progress: Progress) -> None:
        """Training starts."""
        workers = f"{progress.workers} worker{'s' if progress.workers != 1 else ''}"
        what = f"{progress.to_train} trials" + (f" of at most {most}" if (most := progress.sweep.max_trials) else "")
        self._console.print(f"training {what} on {workers}", highlight=False)
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        elif self._console.is_jupyter:
            from IPython.display import display  # there where rich has found a notebook

            self._frame = NotebookFrame(display)

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Show the state of the run, at most every ``frame_s`` (plain: every ten seconds)."""
        for note in progress.notes[self._num_notes_said :]:
            self._console.print(printable(note), highlight=False, markup=False, soft_wrap=True)
        self._num_notes_said = len(progress.notes)
        if progress.stopped_by is not None and not self._has_said_stop:
            self._has_said_stop = True
            self._console.print(stop_line(progress), highlight=False, soft_wrap=True)
        now = time.monotonic()
        if now < self._next:
            return
        if (picture := self._live or self._frame) is not None:
            self._next = now + self._frame_s
            rows = [_row(progress, trial) for trial in progress.trials.values()]
            map_text = text_map(rows, led(progress.sweep.axes))
            line = Text(progress_line(progress))
            picture.update(Group(map_text, line) if map_text else line, refresh=True)
        else:
            self._next = now + _SECONDS_PER_LINE
            self._console.print(progress_line(progress), highlight=False, soft_wrap=True)

    def ended(self, progress: Progress) -> None:
        """Training has ended."""
        if self._live is not None:
            self._live.stop()
        elif self._frame is not None:  # it stays in the notebook, below which the result follows
            self._frame.update(Text(progress_line(progress)))
        else:
            self._console.print(progress_line(progress), highlight=False, soft_wrap=True)


def stop_line(progress: Progress) -> str:
    """The answer to a signal."""
    num = len(progress.running)
    what = f"{num} pack{'s' if num != 1 else ''} may write checkpoints for {PAUSE_S:.0f} s; " if num else ""
    return f"stopping: {what}another signal (Ctrl-C) stops at once"


def progress_line(progress: Progress) -> str:
    """One line: trials done, the share of all steps, outcomes, throughput, time left."""
    counts = progress.counts
    done = len(progress.outcomes)
    most = progress.sweep.max_trials
    words = [f"{done}/{len(progress.statuses)} trials" + (f" (at most {most})" if most else "")]
    if progress.member_steps:
        words.append(f"{progress.share_done:.0%} of the steps")
    elif not done:
        words.append("workers import and load")
    words += [f"{name} {counts[name]}" for name in (*OUTCOMES, PRUNED, "errored", "lost") if counts[name]]
    if progress.num_risen:
        words.append(f"gradient norm up in {progress.num_risen}")
    speed = progress.member_steps_per_second
    if speed:
        words.append(f"{speed:,.0f} member-steps/s")
        if progress.steps_left:
            words.append(f"{format_seconds(progress.steps_left / speed)} left")
    return " | ".join([format_seconds(progress.seconds), *words])


def text_map(rows: Sequence[TrialResult], aside: Container[str] = ()) -> Text | None:
    """The stability map over the first two axes that are not ``aside`` as text of at most 80 columns.

    None where it does not fit, or would be nearly empty.

    Over further axes it shows the worst cell. Axes that advance with another one are to be left ``aside``.
    """
    values = {name: found for name, found in axis_values([row.cell for row in rows]).items() if name not in aside}
    names = list(values)
    if not names:
        return None
    xs, ys = values[names[0]], values[names[1]] if len(names) > 1 else (None,)
    heads = [_head(label) for label in value_labels(ys)] if len(names) > 1 else [""]
    margin = max(len(head) for head in heads)
    gap = " " if margin + 2 * len(xs) < _MAX_WIDTH else ""
    if margin + 2 + len(xs) > _MAX_WIDTH or len(ys) > _MAX_ROWS:
        return None
    axes = {name: Axis(name, "values", of_axis) for name, of_axis in values.items()}
    y_name = names[1] if len(names) > 1 else None
    if len({tuple(row.cell.values()) for row in rows}) * _LEAST_FILLED < len(xs) * len(ys):
        return None  # scattered cells: nearly every row and column has one
    stability = make_map(rows, axes, names[0], y_name, "final_loss", "worst", "")
    text = Text(no_wrap=True)
    if y_name is not None:
        text.append(f"{y_name}\n")
    for y, head in reversed(list(zip(ys, heads, strict=True))):
        text.append(f"{head:>{margin}}  ")
        for i, x in enumerate(xs):
            look = STATES[_state(stability, (x, y))]
            text.append(gap if i else "")
            text.append(look.letter, style=look.colour)
        text.append("\n")
    labels = value_labels(xs)
    note = f", {stability.note}" if stability.note else ""
    text.append(f"{'':>{margin}}  {names[0]}: {labels[0]} .. {labels[-1]}{note}\n")
    shown = dict.fromkeys(_state(stability, key) for key in stability.cells)
    key = "  ".join(f"{STATES[state].letter} {STATES[state].word}" for state in shown)
    text.append(f"{'':>{margin}}  {key}\n")
    words = Counter(cell.lr_health for cell in stability.cells.values() if cell.lr_health)
    if words:
        said = ", ".join(f"{words[word]} {word}{way}" for word, way in _LR_WAYS.items() if words[word])
        text.append(f"{'':>{margin}}  learning rates: {said}\n")
    return text


def _head(label: str) -> str:
    """A label that says where it was cut."""
    return label if len(label) <= _MAX_HEAD else f"{label[: _MAX_HEAD - 2]}.."


def _row(progress: Progress, trial: Trial) -> TrialResult:
    """What is known of a trial without reading the ledger."""
    identity, sweep = trial.trial_id, progress.sweep
    status, outcome = progress.statuses[identity], progress.outcomes.get(identity)
    return TrialResult(
        trial_id=identity,
        cell=trial.cell,
        seed=trial.seed,
        config=trial.config,
        objective=sweep.objective.name,
        status=status,
        steps=trial.steps,
        outcome=outcome,
    )


def _state(stability: StabilityMap, key: tuple[Any, Any]) -> str:
    state = stability.state(key)
    is_running = key in stability.cells and "running" in stability.cells[key].outcomes
    return "running" if state == "not_run" and is_running else state
