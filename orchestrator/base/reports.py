"""Reports of a worker on its pack: curves, results, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.base.packs import Checkpoint
from orchestrator.base.trial_result import MemberResult

if TYPE_CHECKING:  # commands that read no curve start without it
    import numpy as np

# One member's curve: column name -> 1-D array, all of equal length, "step" among them.
Trace = Mapping[str, "np.ndarray"]
_MAX_CAUSE = 300  # characters


@dataclass(frozen=True, slots=True)
class Completed:
    """Every member has a result."""


@dataclass(frozen=True, slots=True)
class Paused:
    """It stopped on request; a later run continues unfinished members."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The trainer raised, exited or hung: the running members are errored.

    ``error`` is the tail of a traceback or of the output, with the cause in its last line. Members that ``waited`` can
    be trained elsewhere.
    """

    error: str
    waited: tuple[str, ...] = ()
    is_hung: bool = False  # silent for too long


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Memory ran out with ``at_a_time`` members; fewer may fit. See ``Failed``."""

    error: str
    at_a_time: int
    waited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The checkpoint to resume from cannot be used."""

    error: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Something outside the trainer ended it, or it hung; another attempt may succeed."""

    error: str
    is_hung: bool = False  # silent for too long


def last_line(error: str) -> str:
    """Return the last line of an ending's error, which names the cause."""
    return error.strip().splitlines()[-1]


def cause_of(error: str) -> str:
    """Return the last line of an ending's error, cut to a length that can be shown."""
    return last_line(error)[:_MAX_CAUSE]


Ending = Completed | Paused | Failed | OutOfMemory | Refused | Lost


@dataclass(frozen=True, slots=True)
class Report:
    """Curves and telemetry of one pack since its last report, and members that finished.

    The gradient norm of ``num_risen`` members is up by half now. The first report has the ``environment``, the last one
    the ``ending`` of the pack. ``member_steps`` counts all steps of this attempt so far, ``steps_in_hand`` the steps of
    members that still train, ``at_a_time`` members together. A report that ``is_from_start`` replaces earlier curves: a
    custom trainer that restarts reports from its first point.
    """

    pack_id: str
    member_steps: int
    steps_in_hand: int
    seconds: float
    traces: Mapping[str, Trace] = field(default_factory=dict, repr=False)
    finished: tuple[MemberResult, ...] = ()
    ending: Ending | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint: Checkpoint | None = None
    at_a_time: int = 0
    is_from_start: bool = False
    telemetry: Mapping[str, Trace] = field(default_factory=dict, repr=False)
    num_risen: int = 0

    @property
    def error(self) -> str | None:
        """The error of the pack, or None."""
        return None if self.ending is None or isinstance(self.ending, Completed | Paused) else self.ending.error


@dataclass(frozen=True, slots=True)
class PackStarted:
    """An executor has started to train a pack."""

    pack_id: str


@dataclass(frozen=True, slots=True)
class PackLost:
    """A pack ended without a last report: its process died."""

    pack_id: str
    reason: str


Event = PackStarted | Report | PackLost
