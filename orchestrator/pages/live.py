"""The page of a sweep while it runs, from its ledger: what has changed is read again, the rest is kept."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.files import LEDGER, frozen_text, is_locked
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.curve_metrics import OF_TELEMETRY
from orchestrator.maps.sentence import Sentence, sentence_of
from orchestrator.maps.table import KnownNoise, read_table
from orchestrator.pages.answers import answers_html
from orchestrator.pages.card import highlights, num_ended, summary_html
from orchestrator.pages.curves import POINTS, TITLES, curves_and_readings
from orchestrator.pages.data import KnownCells, table_data
from orchestrator.pages.report import page_html
from orchestrator.sweepfile.strict_yaml import question_of

_SHORTEST_REST_S = 1.0
_REST = 0.5  # the data rest so many times as long as they took
_REST_OF_ANSWERS = 4  # they take longer, and the trials need the processor
_COMING = '<p data-tab="edge choose why">Being computed.</p>'
_KEPT = 4  # versions of the data to which a page may have the newest changes


class LivePage:
    """The page of the sweep in ``folder``, what is new on it, and what follows from it. Any thread may ask."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read nothing yet; ``clock`` measures how long to rest, in seconds."""
        self._folder, self._clock = folder, clock
        self._lock, self._lock_of_answers = threading.Lock(), threading.Lock()
        self._metrics: dict[tuple[str, str | None], dict[str, float]] = {}  # of a trial's attempt with a result
        self._noise: KnownNoise = {}
        self._cells: KnownCells = {}
        self._rows: Sequence[TrialResult] = ()
        self._mark: Any = None  # what the trials were when the data was made
        self._name, self._summary = folder.name, ""
        self._sentence: Sentence | None = None
        self._origin, self._number = secrets.token_hex(4), 0  # pages may outlive a server
        self._versions: dict[str, dict[str, Any] | None] = {}
        self._due = 0.0
        self._answers, self._state_of_answers, self._answers_due = "", "", 0.0

    def page(self) -> str:
        """The whole page as of now, or of the moment before. Raises StorageError, InputError."""
        with self._lock:
            self._refresh()
            name, data, summary, version = self._name, self._newest(), self._summary, self._version
        question, answers = question_of(frozen_text(self._folder)), self._answers or _COMING  # for which it asks
        sections = {"question": question, "summary": summary, "answers": answers}
        return page_html(name, data, sections, version=version)

    def news(self, since: str) -> dict[str, Any]:
        """What has changed on a page of the version ``since``, or all of its data where that is not known any more.

        Raises StorageError, InputError.
        """
        with self._lock:
            self._refresh()
            found: dict[str, Any] = {"version": self._version, "summary": self._summary}
            newest = self._newest()
            if since == self._version:
                return found
            before = self._versions.get(since)
            if before is not None and newest is not None:
                return found | {"changes": list(changes(before, newest))}
            return found | {"data": newest}

    def answers(self) -> str:
        """What follows from the map, as HTML; of a moment before. Raises StorageError, InputError."""
        with self._lock_of_answers:
            if not self._answers or self._clock() >= self._answers_due:
                began = self._clock()
                with LedgerReader(self._folder / LEDGER) as ledger:
                    state = ledger.state()
                    if state != self._state_of_answers:
                        self._answers, self._state_of_answers = self._answers_of(ledger), state
                self._answers_due = self._next(began, _REST_OF_ANSWERS)
            return self._answers

    @property
    def _version(self) -> str:
        return f"{self._origin}.{self._number}"

    def _newest(self) -> dict[str, Any] | None:
        return self._versions[self._version]

    def _next(self, began: float, rest: float) -> float:
        now = self._clock()
        return now + max(_SHORTEST_REST_S, rest * (now - began))

    def _refresh(self) -> None:
        """Read what is new in the ledger, unless it was read a moment ago."""
        if self._versions and self._clock() < self._due:
            return
        began = self._clock()
        is_running = is_locked(self._folder)  # before the ledger is read, so that it has all that an ended run wrote
        with LedgerReader(self._folder / LEDGER) as ledger:
            mark = (ledger.statuses(), ledger.facts(), is_running)
            if mark != self._mark:
                self._remake(ledger, mark[1], is_running=is_running)
                self._mark = mark
            self._summary = summary_html(ledger, self._rows, self._sentence, is_running=is_running)
        self._due = self._next(began, _REST)

    def _remake(self, ledger: LedgerReader, facts: dict[str, str], *, is_running: bool) -> None:
        """Make the data of the page anew, as its next version."""
        table = read_table(ledger, self._noise)
        self._rows, self._name = table.trials, facts.get("name", self._folder.name)
        if table.is_grid or self._sentence is None or not is_running:  # a surface takes seconds of the trials
            self._sentence = sentence_of(table, is_running=is_running)
        data = None
        if table.axes and self._rows:
            metrics = [self._metrics_of(ledger, row) for row in self._rows]
            data = table_data(facts, self._rows, table.axes, metrics, self._cells, ledger.resizes())
            data |= highlights(table, data, self._sentence)
            data |= {"curves": None, "curve_titles": TITLES, "num_points": POINTS, "diagnoses": None}
        self._number += 1
        self._versions[self._version] = data
        for version in list(self._versions)[:-_KEPT]:
            del self._versions[version]

    def _metrics_of(self, ledger: LedgerReader, row: TrialResult) -> dict[str, float]:
        """The metrics from a trial's curves, which are read once."""
        if row.outcome is None:
            return {}
        attempt = (row.trial_id, row.pack_id)
        if attempt not in self._metrics:
            _, self._metrics[attempt] = curves_and_readings(ledger, row, POINTS)
        return self._metrics[attempt]

    def _answers_of(self, ledger: LedgerReader) -> str:
        """The answers, and of how many trials they are while some are missing: the map may be newer."""
        table = read_table(ledger, self._noise)
        stability = None
        if table.axes:
            measured: dict[str, dict[str, float]] = {name: {} for name in (*OF_TELEMETRY, *table.printed_metrics)}
            for row in table.trials:
                of_row = self._metrics_of(ledger, row)
                for name in measured.keys() & of_row.keys():
                    measured[name][row.trial_id] = of_row[name]
            stability = cell_map(table, measured=measured)
        ended, num = num_ended(table.trials), len(table.trials)
        text = f"The answers below are from when {ended} of {num} trials had ended."
        moment = f'<p class="moment" data-tab="edge choose why remedies">{text}</p>\n' if ended < num else ""
        return moment + answers_html(table, stability, frozen_text(self._folder))


_MOST_CHANGED = 0.5  # of the entries of a column: beyond that all of it is sent
_LEAST = 16  # entries of a list that is compared entry by entry

# {"path", "value"}, or of a column {"path", "at", "to"}: the places that changed and what is there now.
Change = dict[str, Any]


def changes(before: Any, after: Any, path: tuple[str | int, ...] = ()) -> Iterator[Change]:
    """What turns ``before`` into ``after``, two values of JSON; ``path`` leads to them."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in after:
            yield from changes(before[key], after[key], (*path, key))
        return
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        if after and all(isinstance(entry, dict) for entry in itertools.chain(before, after)):
            for i, entry in enumerate(after):
                yield from changes(before[i], entry, (*path, i))
            return
        at = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        if len(after) >= _LEAST and len(at) <= _MOST_CHANGED * len(after):
            yield {"path": list(path), "at": at, "to": [after[i] for i in at]}
            return
    yield {"path": list(path), "value": after}
