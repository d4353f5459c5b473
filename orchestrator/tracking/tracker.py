"""What the mirror asks of an experiment tracker, and which trackers there are.

A tracker is a class with the methods of ``Tracker`` in a module of this room, and a line in ``TRACKERS``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from orchestrator.errors import SweepError
from orchestrator.sweepfile.sections import TrackingConfig

# Where the class of each is: MODULE:CLASS. Imported only when a sweep uses it, since trackers are slow to import.
TRACKERS = {"mlflow": "orchestrator.tracking.mlflow:MlflowTracker"}


class TrackingError(SweepError):
    """A tracker cannot be reached or refuses; never the end of a sweep."""


class Point(NamedTuple):
    """One number of a curve, or a result at step 0; always finite."""

    name: str
    value: float
    step: int


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """All that a tracker is told of a trial."""

    trial_id: str
    name: str
    version: str  # changes whenever anything else here does
    status: str  # the ledger's
    values: Mapping[str, Any]  # of the axes and the seed; None where an axis says so
    tags: Mapping[str, str]
    points: Sequence[Point]
    started_s: float | None  # since 1970
    finished_s: float | None
    position: int  # in the sweep, from 0


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """All that a tracker is told of a sweep as a whole."""

    tags: Mapping[str, str]
    git_commit: str  # empty where it is not known
    counts: Mapping[str, float]
    finished_s: float  # when its last trial so far ended, since 1970; 0 before any
    is_over: bool  # whether none of its trials is still to train


class Tracker(Protocol):
    """One sweep in a tracker: its trials, and itself as their parent.

    The mirror sees to it that one process at a time writes a sweep. What is written twice is there once.
    """

    title: ClassVar[str]  # its name in messages
    where: str  # the store, as it may be printed: without passwords

    def __init__(self, folder: Path, tracking: TrackingConfig, sign_of_life: Callable[[], None]) -> None:
        """Connect to the store for the sweep with results in ``folder``.

        ``sign_of_life`` is called whenever the store has answered, so that a slow one is told from one that hangs.
        Like all writing, raises TrackingError, and nothing else, when the store cannot be used.
        """

    @property
    def known(self) -> Mapping[str, str]:
        """Trials that the store has, and the version of each that is whole there; "" where none is."""

    def write_trial(self, trial: TrialRecord) -> None:
        """Write all of a trial, in place of what was there of it."""

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the parent with ``artifacts``, and end whatever else of the sweep the store believes to run."""

    @classmethod
    def load(cls) -> None:
        """Import now what takes seconds; raises nothing: whoever needs it says what is wrong."""

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """``where``, without connecting."""

    @classmethod
    def is_there(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Whether the store may hold something, as far as can be told without connecting."""


def tracker_class(name: str = "mlflow") -> type[Tracker]:
    """The class of a tracker in ``TRACKERS``."""
    module, _, found = TRACKERS[name].partition(":")
    return getattr(importlib.import_module(module), found)
