"""A run that is watched, compared with a sweep: its place on the map, and what saved runs that went wrong there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.answers.locate import LocateQuery
from orchestrator.answers.predict import PredictQuery
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER, sweep_folder
from orchestrator.causes.remedies.saved import SavedRuns, saved_runs
from orchestrator.detection.run_alarms import Alarm
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.sweepfile.settings import run_settings

_LR = "lr"
_HELPED = ("spike", "lost", "nan")  # alarms about which the remedies of a sweep say something


class Beside:
    """The sweep ``name``, and the ``settings`` NAME=VALUE of the run. Raises InputError for an unknown one."""

    def __init__(self, name: str, results: Path, settings: Sequence[str]) -> None:
        self._folder = sweep_folder(name, results)
        self._given = dict(run_settings(None, tuple(settings)).values) if settings else {}
        self._place: list[str] = []  # the last one that was told
        self._told_lr, self._last_lr, self._last_step = math.nan, math.nan, -1  # NaN is none
        with LedgerReader(self._folder / LEDGER) as ledger:
            table = read_table(ledger)
            self.name, self._runs = table.name, saved_runs(table)

    @property
    def runs(self) -> SavedRuns:
        """What became of the sweep's runs that left their trend."""
        return self._runs

    def news(self, lr: float | None, step: int | None) -> list[str]:
        """Return the place of a run at ``step`` at first, and again when its highest rate ``lr`` has stopped rising.

        Else nothing: in a warmup the place would change with each line.
        """
        rate, is_first = math.nan if lr is None else lr, not self._place
        if not is_first and step == self._last_step:
            return []
        is_settled, self._last_lr, self._last_step = rate == self._last_lr, rate, -1 if step is None else step
        if not is_first and (not is_settled or rate == self._told_lr):
            return []
        before, self._place, self._told_lr = self._place, self.place(lr), rate
        return self._place if self._place != before else []

    def place(self, lr: float | None) -> list[str]:
        """Return where the run lies on the map and how far its edge is; ``lr`` is the rate in its log, if any."""
        with LedgerReader(self._folder / LEDGER) as ledger:
            table = read_table(ledger)
            given = dict(self._given)
            if lr is not None and any(axis.name == _LR for axis in table.axes):
                given.setdefault(_LR, lr)
            return _located(table, given)

    def saved(self, alarm: Alarm) -> list[str]:
        """Return what saved such runs of the sweep, and the checkpoint to go back to."""
        return [*self._runs.lines(alarm.step)] if alarm.kind in _HELPED else []


def _located(table: SweepTable, given: dict[str, Any]) -> list[str]:
    """Return the place on the map, or the edge that is predicted for sizes beyond it."""
    axes = {axis.name for axis in table.axes}
    at = tuple(f"{name}={value}" for name, value in given.items())
    problem: InputError | None = None
    try:
        if axes <= given.keys():
            answer = LocateQuery(at=at).ask(table)
            if answer.result.side != "outside":
                return _until(answer.lines(), "nearest cells:")
    except InputError as error:
        problem = error
    sizes = tuple(f"{name}={value}" for name, value in given.items() if name in axes - {_LR})
    try:
        rate = given.get(_LR)
        lr = float(rate) if isinstance(rate, int | float) else None
        return PredictQuery(at=sizes, lr=lr).ask(table).lines()
    except InputError as error:
        missing = ", ".join(sorted(axes - given.keys()))
        why = f"; --set does not give {missing}" if missing else ""
        return [f"{table.name}: where the run lies is not known{why}: {(problem or error).problems[0]}"]


def _until(lines: Sequence[str], last: str) -> list[str]:
    return [*lines[: lines.index(last)]] if last in lines else [*lines]
