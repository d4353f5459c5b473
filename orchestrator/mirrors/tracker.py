"""The interface of an experiment tracker, and the records that it stores.

To add a tracker, write a class with the methods of ``Tracker`` in a module of this room and list it in
``orchestrator/base/vocabulary.py``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from orchestrator.base.environment import install_command, is_installed
from orchestrator.base.errors import InputError, Problem, SweepError
from orchestrator.base.vocabulary import TRACKERS
from orchestrator.sweepfile.sections import TrackingConfig

MAP_AXES = "sweep.map_axes"  # tag: comma-separated params of cells that a map can be drawn over


class TrackingError(SweepError):
    """A tracker is unreachable or rejects a request. It never ends a sweep."""


class Point(NamedTuple):
    """One finite number of a curve, or a result at step 0."""

    name: str
    value: float
    step: int


@dataclass(frozen=True, slots=True)
class CellKey:
    """The identity of a cell in a tracker."""

    cell_id: str  # a hash of the values, and of the settings outside the axes
    name: str
    values: Mapping[str, Any]
    started_s: float | None = None  # when its first trial started, since 1970
    position: int = 0  # in the sweep, from 0


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A cell, without its trials."""

    key: CellKey
    metrics: Mapping[str, float]
    finished_s: float  # when its latest trial ended, since 1970; 0 before any did
    is_over: bool


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial: its values, curves and results."""

    trial_id: str
    name: str
    version: str  # changes whenever another field does
    status: str  # as in the ledger
    cell: CellKey
    values: Mapping[str, Any]  # axes and seed, with log columns; an axis may be None
    tags: Mapping[str, str]
    points: Sequence[Point]
    started_s: float | None  # since 1970
    finished_s: float | None
    position: int  # in the sweep, from 0
    shares: Mapping[str, float] = field(default_factory=dict)  # see SweepRecord; those known so far


class Text(NamedTuple):
    """A text that trials were trained on: its name, SHA-256 and size."""

    name: str
    sha256: str
    num_bytes: int


PREDICTED = "predicted_"  # begins the names of metrics that change with the question
DIAGNOSIS, NO_CAUSE = "diagnosis", "no cause"  # the tag of a trial with its cause, and what it says without one


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """Findings about a trial after its end: why it failed, and which remedies would have saved it.

    ``table`` has a row per remedy and step; ``picture`` is an image file.
    """

    trial_id: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    table: Sequence[Mapping[str, Any]]
    picture: Path | None


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """A finding about the sweep as a whole, which joins its record; ``sentence`` says it in its description."""

    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    sentence: str


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """A sweep as a whole, with its cells.

    ``metrics`` are counts, the edge and what follows from it. ``shares`` are results of a trial that depend on other
    trials, by trial and name; they change as trials finish.
    """

    tags: Mapping[str, str]
    git_commit: str  # empty if unknown
    settings: Mapping[str, str]  # shared by all trials; an axis has its range
    metrics: Mapping[str, float]
    cells: Sequence[CellRecord]
    finished_s: float  # when its latest trial ended, since 1970; 0 before any did
    is_over: bool  # every trial has ended
    num_finished: int = 0  # trials
    texts: Sequence[Text] = ()
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    answers: Sequence[TrialAnswer] = ()
    description: Sequence[str] = ()  # sentences: how much is stable, the edge, and the setting to take


class Tracker(Protocol):
    """One sweep in a tracker: its trials, and the sweep as their parent.

    Only one process at a time writes a sweep; the mirror ensures it. Writes are idempotent.
    """

    name: ClassVar[str]  # in a sweep file; also the extra that installs it
    title: ClassVar[str]  # in messages
    library: ClassVar[str]  # the module that it imports
    where: str  # the store, for display: without passwords

    def __init__(self, folder: Path, tracking: TrackingConfig, on_response: Callable[[], None]) -> None:
        """Connect to the store for the sweep with results in ``folder``.

        ``on_response`` is called whenever the store responds: it distinguishes a slow store from one that hangs.
        Raises TrackingError, and no other error, if the store is unusable. The same holds for the writing methods.
        """

    @property
    def known(self) -> Mapping[str, str]:
        """Versions of the trials in the store; "" for incomplete ones."""

    def write_trial(self, trial: TrialRecord) -> None:
        """Write a whole trial, replacing its previous version in the store."""

    def write_running(self, trial: TrialRecord) -> None:
        """Append points of a running trial. Optional; `write_trial` follows at its end."""

    def write_machine(self) -> None:
        """Append the current load of this machine. Optional."""

    def write_results(self, sweep: SweepRecord) -> None:
        """Write what of the sweep has no need of artifacts and answers, while these are made. Optional."""

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the parent with ``artifacts``, update the trials' ``shares`` and ``answers``, and end stray runs.

        Stray runs belong to the sweep but are not in the ledger, and the store lists them as running.
        """

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """Return ``where`` without connecting."""

    @classmethod
    def may_exist(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Return whether the store may have the sweep. Does not connect."""


def import_library(tracker: type[Tracker]) -> None:
    """Import a tracker's library now, which may take seconds. Errors are left to the first use."""
    with contextlib.suppress(Exception):
        importlib.import_module(tracker.library)


def tracker_class(name: str = "mlflow") -> type[Tracker]:
    """Return the class of a tracker in ``TRACKERS``. Raises InputError if it is unknown or its library is missing."""
    if name not in TRACKERS:
        raise InputError(Problem("", "tracking.to", f"{name!r} is unknown", f"choose from {', '.join(TRACKERS)}"))
    module, _, attribute = TRACKERS[name].partition(":")
    tracker: type[Tracker] = getattr(importlib.import_module(module), attribute)
    if not is_installed(tracker.library):
        remedy = f"{install_command(name)}, or remove it from tracking.to"
        message = f"{tracker.title} needs the package {tracker.library}, which is not installed"
        raise InputError(Problem("", "tracking.to", message, remedy))
    return tracker


def table_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the values of ``rows``; a missing value is None."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return columns, [[row.get(column) for column in columns] for row in rows]
