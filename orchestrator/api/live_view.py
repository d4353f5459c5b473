"""The live view of a running sweep: the map filling in, throughput, time left."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.base.errors import printable
from orchestrator.base.space import Trial
from orchestrator.base.trial_result import MemberResult, TrialResult
from orchestrator.base.vocabulary import COLLAPSED, OUTCOMES, PRUNED
from orchestrator.base.words import count, format_seconds
from orchestrator.driver.progress import PAUSE_S, Progress
from orchestrator.maps.axes import led
from orchestrator.render.text_map import text_map

_SECONDS_PER_LINE = 10.0


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
        most = f" of at most {progress.sweep.max_trials}" if progress.sweep.max_trials else ""
        what, workers = count(progress.to_train, "trial"), count(progress.workers, "worker")
        self._console.print(f"training {what}{most} on {workers}", highlight=False)
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        elif self._console.is_jupyter:
            from IPython.display import display  # there where rich has found a notebook

            self._frame = NotebookFrame(display)

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Show the state of the run, at most every ``frame_s`` (plain: every ten seconds)."""
        for note in progress.notes[self._num_notes_said :]:
            self._say(note)
        self._num_notes_said = len(progress.notes)
        if progress.stopped_by is not None and not self._has_said_stop:
            self._has_said_stop = True
            self._say(stop_line(progress))
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
            self._say(progress_line(progress))

    def ended(self, progress: Progress) -> None:
        """Training has ended."""
        if self._live is not None:
            self._live.stop()
        elif self._frame is not None:  # it stays in the notebook, below which the result follows
            self._frame.update(Text(progress_line(progress)))
        else:
            self._say(progress_line(progress))

    def _say(self, text: str) -> None:
        """Print a line, which breaks between words on a terminal."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=not self._console.is_terminal)


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
    words += [f"{name} {counts[name]}" for name in (*OUTCOMES, COLLAPSED, PRUNED, "errored", "lost") if counts[name]]
    if progress.is_provisional:
        words.append("not compared yet")
    if progress.num_risen:
        words.append(f"gradient norm up in {progress.num_risen}")
    if progress.num_nonfinite:
        words.append(f"NaN or infinity in {progress.num_nonfinite}")
    if progress.peak_memory:
        words.append(f"memory {progress.peak_memory / 1024:.1f} GiB")
    speed = progress.member_steps_per_second
    if speed:
        words.append(f"{speed:,.0f} member-steps/s")
        if progress.steps_left:
            words.append(f"{format_seconds(progress.steps_left / speed)} left")
    return " | ".join([format_seconds(progress.seconds), *words])


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


_FORMAT = '<pre style="white-space:pre;overflow-x:auto;line-height:normal">{code}</pre>'
_WIDTH = 115  # columns
# As IPython's `display`: takes a picture by media type, and returns a handle whose `update` replaces it.
Display = Callable[..., Any]


class NotebookFrame:
    """What rich's ``Live`` is on a terminal, which in a notebook would need widgets."""

    def __init__(self, display: Display) -> None:
        """A frame that appears with its first picture."""
        self._display = display
        self._handle: Any = None

    def update(self, picture: RenderableType, *, refresh: bool = True) -> None:
        """Show ``picture`` in place of the last one."""
        if self._handle is None:
            self._handle = self._display(bundle(picture), raw=True, display_id=True)
        else:
            self._handle.update(bundle(picture), raw=True)


def bundle(picture: RenderableType) -> Mapping[str, str]:
    """``picture`` as a notebook takes it: plain text, and HTML with colours."""
    console = Console(file=io.StringIO(), record=True, force_jupyter=False, width=_WIDTH)
    console.print(picture, highlight=False)
    return {
        "text/plain": console.export_text(clear=False),
        "text/html": console.export_html(inline_styles=True, code_format=_FORMAT),
    }
