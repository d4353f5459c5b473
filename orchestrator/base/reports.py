"""What a worker reports on a pack: curves, results and how it ended."""

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


@dataclass(frozen=True, slots=True)
class Completed:
    """Every member has a result."""


@dataclass(frozen=True, slots=True)
class Paused:
    """It stopped on request; its unfinished members are trained further by a later run."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The trainer raised, exited or hung: the running members are errored.

    ``error`` is the tail of a traceback or the output, its last line the cause. Those that ``waited`` can go elsewhere.
    """

    error: str
    waited: tuple[str, ...] = ()
    is_hung: bool = False  # it said nothing for too long


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Memory ran out with ``at_a_time`` members; fewer may fit. Otherwise as ``Failed``."""

    error: str
    at_a_time: int
    waited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The checkpoint from which it should resume cannot be used."""

    error: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Something outside of the trainer ended it, or it hung; another attempt may succeed."""

    error: str
    is_hung: bool = False  # it said nothing for too long


Ending = Completed | Paused | Failed | OutOfMemory | Refused | Lost


@dataclass(frozen=True, slots=True)
class Report:
    """News of one pack: curves and telemetry since the last report, and members that finished.

    The gradient norm of ``num_risen`` members is up by half now. The first report has the ``environment``, the last one
    the ``ending`` of the pack. ``member_steps`` counts all of this attempt so far, ``steps_in_hand`` those of members
    that still train, ``at_a_time`` of them together. From one ``is_from_start`` on, curves replace those before: a
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
        """What went wrong with the pack, None in most reports."""
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
