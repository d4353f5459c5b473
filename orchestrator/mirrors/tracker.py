"""The interface of an experiment tracker.

A tracker is a class with the methods of ``Tracker`` in a module of this room, and a line in the table of
``catalogue.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from orchestrator.base.errors import InputError, Problem, SweepError
from orchestrator.base.extras import install_command, is_installed
from orchestrator.base.vocabulary import TRACKERS
from orchestrator.sweepfile.sections import TrackingConfig


class TrackingError(SweepError):
    """A tracker cannot be reached or rejects a request; this never ends a sweep."""


class Point(NamedTuple):
    """One number of a curve, or a result at step 0; always finite."""

    name: str
    value: float
    step: int


@dataclass(frozen=True, slots=True)
class CellKey:
    """A cell of the sweep: its id, which also depends on the settings that are no axes, its name and its values.

    ``started_s`` is when its first trial started, and ``position`` its place in the sweep.
    """

    cell_id: str
    name: str
    values: Mapping[str, Any]
    started_s: float | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class CellRecord:
    """All that a tracker gets of a cell, but its trials."""

    key: CellKey
    metrics: Mapping[str, float]
    finished_s: float  # when its last trial so far ended; 0 before any
    is_over: bool


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """All that a tracker gets of a trial."""

    trial_id: str
    name: str
    version: str  # changes whenever any other field here does
    status: str  # as in the ledger
    cell: CellKey
    values: Mapping[str, Any]  # of the axes and the seed, with companions on their scales; an axis may have None
    tags: Mapping[str, str]
    points: Sequence[Point]
    started_s: float | None  # since 1970
    finished_s: float | None
    position: int  # in the sweep, from 0
    shares: Mapping[str, float] = field(default_factory=dict)  # see SweepRecord, as far as known


class Text(NamedTuple):
    """A text that trials were trained on: its name, the SHA-256 of its bytes, and how many."""

    name: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """What was found out about a trial after its end: why it failed, and what forks of it say would have saved it.

    ``table`` has a row for each remedy and step, ``picture`` is a file.
    """

    trial_id: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    table: Sequence[Mapping[str, Any]]
    picture: Path | None


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """All that a tracker gets of a sweep as a whole. ``metrics`` are counts, the edge and what follows from it.

    ``shares`` are results of trials that depend on the others: by trial, name and value. They change as trials finish.
    """

    tags: Mapping[str, str]
    git_commit: str  # empty if unknown
    settings: Mapping[str, str]  # of all trials; an axis has its range
    metrics: Mapping[str, float]
    cells: Sequence[CellRecord]
    finished_s: float  # when its last trial so far ended, since 1970; 0 before any
    is_over: bool  # whether no trial is left to train
    num_finished: int = 0  # trials
    texts: Sequence[Text] = ()
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    answers: Sequence[TrialAnswer] = ()


class Tracker(Protocol):
    """One sweep in a tracker: its trials, and the sweep as their parent.

    The mirror ensures that one process at a time writes a sweep. Writing the same thing twice stores it once.
    """

    name: ClassVar[str]  # in a sweep file, and of the extra that installs it
    title: ClassVar[str]  # its name in messages
    library: ClassVar[str]  # what it imports
    where: str  # the store, for display: without passwords

    def __init__(self, folder: Path, tracking: TrackingConfig, sign_of_life: Callable[[], None]) -> None:
        """Connect to the store for the sweep with results in ``folder``.

        ``sign_of_life`` is called on every response of the store, to distinguish a slow store from one that hangs.
        Raises TrackingError, and nothing else, when the store cannot be used; so do the writing methods.
        """

    @property
    def known(self) -> Mapping[str, str]:
        """Trials in the store, with the version of each that is complete there, "" for the others."""

    def write_trial(self, trial: TrialRecord) -> None:
        """Write a whole trial, replacing what the store has of it."""

    def write_running(self, trial: TrialRecord) -> None:
        """Add the points of a trial that still trains; `write_trial` follows at its end. May do nothing."""

    def write_machine(self) -> None:
        """Add the load of this machine, which trains the sweep now. May do nothing."""

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the parent with ``artifacts``, the trials' ``shares`` and ``answers``, and end stray runs.

        Stray runs are other runs of the sweep that the store lists as running.
        """

    @classmethod
    def load(cls) -> None:
        """Do the slow imports now; raises nothing: later use reports the error."""

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """``where``, without connecting."""

    @classmethod
    def is_there(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Whether the store may have content, as far as known without connecting."""


def with_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record, with the logarithms that are among them as numbers."""
    return {name: float(value) if name.startswith("log10_") else value for name, value in values.items()}


def tracker_class(name: str = "mlflow") -> type[Tracker]:
    """The class of a tracker in ``TRACKERS``. Raises InputError for an unknown name, and without its library."""
    if name not in TRACKERS:
        raise InputError(Problem("", "tracking.to", f"{name!r} is unknown", f"choose from {', '.join(TRACKERS)}"))
    module, _, attribute = TRACKERS[name].partition(":")
    found: type[Tracker] = getattr(importlib.import_module(module), attribute)
    if not is_installed(found.library):
        remedy = f"{install_command(name)}, or remove it from tracking.to"
        what = f"{found.title} needs the package {found.library}, which is not installed"
        raise InputError(Problem("", "tracking.to", what, remedy))
    return found
