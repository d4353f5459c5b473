"""A run that is watched, compared with a sweep: its place on the map, and what saved runs that went wrong there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.answers.boundary import BoundaryQuery
from orchestrator.answers.locate import LocateQuery
from orchestrator.answers.predict import PredictQuery
from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.files import LEDGER, sweep_folder
from orchestrator.base.space import format_value
from orchestrator.causes.remedies.saved import SavedRuns, saved_runs
from orchestrator.detection.run_alarms import Alarm
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.render.answer import Answer
from orchestrator.sweepfile.settings import run_settings

_LR = "lr"
_HELPED = ("spike", "lost", "nan")  # alarms about which the remedies of a sweep say something


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run lies, in ``lines``; ``answer`` has the numbers of a place on the map, of a row, or of a prediction.

    ``of`` is the command that gives this answer: locate, boundary or predict; None if none can.
    """

    lines: tuple[str, ...] = ()
    of: str | None = None
    answer: Answer | None = None


class Beside:
    """The sweep ``name``, and the ``settings`` NAME=VALUE of the run. Raises InputError for an unknown one."""

    def __init__(self, name: str, results: Path, settings: Sequence[str]) -> None:
        self._folder = sweep_folder(name, results)
        self._given = dict(run_settings(None, tuple(settings)).values) if settings else {}
        self._place = Place()  # the last one that was told
        self._told_lr, self._last_lr, self._last_step = math.nan, math.nan, -1  # NaN is none
        with LedgerReader(self._folder / LEDGER) as ledger:
            table = read_table(ledger)
            self.name, self._runs = table.name, saved_runs(table)

    @property
    def runs(self) -> SavedRuns:
        """What became of the sweep's runs that left their trend."""
        return self._runs

    def news(self, lr: float | None, step: int | None) -> Place | None:
        """Return the place of a run at ``step`` at first, and again when its highest rate ``lr`` has stopped rising.

        Else None: in a warmup the place would change with each line.
        """
        rate, is_first = math.nan if lr is None else lr, not self._place.lines
        if not is_first and step == self._last_step:
            return None
        is_settled, self._last_lr, self._last_step = rate == self._last_lr, rate, -1 if step is None else step
        if not is_first and (not is_settled or rate == self._told_lr):
            return None
        before, self._place, self._told_lr = self._place, self.place(lr), rate
        return self._place if self._place.lines != before.lines else None

    def place(self, lr: float | None) -> Place:
        """Return where the run lies on the map and how far its edge is; ``lr`` is the rate in its log, if any."""
        with LedgerReader(self._folder / LEDGER) as ledger:
            table = read_table(ledger)
            given = dict(self._given)
            if lr is not None and any(axis.name == _LR for axis in table.axes):
                given.setdefault(_LR, lr)
            return _located(table, given)

    def saved(self, alarm: Alarm, checkpoint: int | None) -> list[str]:
        """Return what saved such runs of the sweep, and the ``checkpoint`` to go back to."""
        return [*self._runs.lines(checkpoint)] if alarm.kind in _HELPED else []


def _located(table: SweepTable, given: dict[str, Any]) -> Place:
    """Return the place on the map, the edge of its row if only the rate is missing, or the predicted edge beyond it."""
    axes = {axis.name for axis in table.axes}
    problem: InputError | None = None
    try:
        if axes <= given.keys():
            located = LocateQuery(at=_settings(given, given.keys())).ask(table)
            if located.result.side != "outside":
                return Place(tuple(_until(located.lines(), "nearest cells:")), "locate", located)
    except InputError as error:
        problem = error
    if axes - given.keys() == {_LR}:
        try:
            row = BoundaryQuery(along=_LR, where={name: given[name] for name in axes - {_LR}}).ask(table)
            return Place(tuple(row.lines()), "boundary", row)
        except InputError:
            pass  # not a row of the map
    try:
        rate = given.get(_LR)
        lr = float(rate) if isinstance(rate, int | float) else None
        predicted = PredictQuery(at=_settings(given, axes - {_LR}), lr=lr).ask(table)
        return Place(tuple(predicted.lines()), "predict", predicted)
    except InputError as error:
        return Place(tuple(_unknown(table, given, problem or error)))


def _settings(given: dict[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in given.items() if name in names)


def _unknown(table: SweepTable, given: dict[str, Any], error: InputError) -> Iterator[str]:
    """Say why it is not known how far the edge is, and what to do."""
    if missing := [axis for axis in table.axes if axis.name not in given and axis.name != _LR]:
        names = [axis.name for axis in missing]
        yield f"{table.name}: where the run lies is not known: --set does not give {', '.join(names)}"
        meant = [did_you_mean(name, names) for name in given]
        yield f"  remedy: {next(filter(None, meant), f'--set {names[0]}=VALUE')}"
        return
    at = " ".join(f"{axis.name}={format_value(given[axis.name])}" for axis in table.axes if axis.name in given)
    first = error.problems[0]
    problem = Problem("", "", first) if isinstance(first, str) else first
    yield f"{table.name}: how far the edge is at {at} is not known: {problem.message}"
    if problem.remedy:
        yield f"  remedy: {problem.remedy}"


def _until(lines: Sequence[str], last: str) -> list[str]:
    return [*lines[: lines.index(last)]] if last in lines else [*lines]
