"""Packs, which a worker trains in one process, and its reports: curves, results, and how a pack ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from objectives.protocol import Rounding
from orchestrator.base.trial_result import MemberResult

if TYPE_CHECKING:  # commands that read no curve start without it
    import numpy as np

# One member's curve: column name -> 1-D array, all of equal length, "step" among them.
Trace = Mapping[str, "np.ndarray"]
_MAX_CAUSE = 300  # characters


@dataclass(frozen=True, slots=True)
class Member:
    """One trial inside a pack."""

    trial_id: str
    config: Mapping[str, Any]
    seed: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a running pack as bytes, and the steps that each running trial has completed."""

    content: bytes = field(repr=False)
    ages: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KeptState:
    """The weights of a trial after ``step`` steps, as the bytes of a file."""

    trial_id: str
    step: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keep:
    """Which states of the weights are kept: after ``every`` steps and at the end, the ``last`` ones of a trial."""

    every: int
    last: int


@dataclass(frozen=True, slots=True)
class Launch:
    """How to run trials of a custom trainer: ``workers`` processes each, with ``gpus_per_worker``.

    Commands run in ``folder``, and each trial has its folder in ``trials_folder``. If the file ``checkpoint`` exists,
    ``resume_arguments`` are added. A trial that must end has ``grace_s`` seconds after SIGTERM; one that reports no
    loss for ``silence_s`` is ended. With ``preload``, processes are forked from one that has imported these modules;
    "auto" means the script's imports. A trial whose last lines match ``diverged_if`` has diverged. There
    is a report every ``report_s`` seconds. ``maximizes`` says whether more of its score is better. An elastic trial
    takes the largest of ``sizes``, which ascend, whose processes find a place, in place of ``workers``.
    """

    folder: str
    workers: int
    gpus_per_worker: float
    checkpoint: str | None
    resume_arguments: tuple[str, ...]
    grace_s: float
    silence_s: float
    preload: str | tuple[str, ...] | None = None
    diverged_if: str | None = None
    trials_folder: str = ""
    report_s: float = 1.0
    maximizes: bool = False
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Steps between readings, steps between curvatures and how they are measured, and every n-th loss kept."""

    every: int | None = None
    curvature: int | None = None
    products: int = 4
    by: Literal["products", "forwards"] = "products"
    curves: int = 1

    @property
    def num_products(self) -> int:
        """Hessian-vector products of a measurement of the curvature, 0 for forward passes alone."""
        return 0 if self.by == "forwards" else self.products


@dataclass(frozen=True, slots=True)
class ReferenceTrial:
    """An earlier trial with which slow ones are compared: its loss at each rung that it reached."""

    losses: tuple[float, ...]
    ran_to_its_end: bool


@dataclass(frozen=True, slots=True)
class RungThreshold:
    """A rung: after ``steps``, a trial with a loss above ``loss`` is slow compared with ``num_references`` trials."""

    steps: int
    loss: float
    num_references: int


@dataclass(frozen=True, slots=True)
class Pack:
    """Trials to train in one process: a ``StackedPack`` or a ``LaunchedPack``.

    ``rung_thresholds`` ascend in their steps; empty if slow trials are not stopped.
    """

    pack_id: str
    steps: int
    members: tuple[Member, ...] = field(repr=False)
    stopping: Mapping[str, Any] = field(repr=False)
    cpus: int = 1
    gpus: float = 0.0
    rung_thresholds: tuple[RungThreshold, ...] = field(default=(), repr=False)

    @property
    def trial_ids(self) -> list[str]:
        """Ids of the members in order."""
        return [member.trial_id for member in self.members]

    @property
    def trained_ids(self) -> list[str]:
        """Ids of the members that this attempt trains."""
        return self.trial_ids

    @property
    def resumed_ages(self) -> Mapping[str, int]:
        """Steps that trials have completed in the checkpoint that the pack resumes."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedPack(Pack):
    """Trials of an objective, ``width`` at a time as one stacked model; None chooses the fastest width.

    ``rounding`` fixes results bit for bit, whatever the width. ``resume`` is the state of an earlier attempt at the
    same members; members in ``skip`` are not trained further. A checkpoint is written every ``checkpoint_s`` seconds
    or ``checkpoint_steps``. The held-out loss of a member is measured after every ``validate_every`` of its steps, or
    only after the last one for None. ``workers`` processes share the batches of a member, which trains alone then.
    An elastic trial takes the largest of ``sizes``, which ascend, whose processes find a place.
    """

    objective: str
    folder: str = ""  # with the module of a custom objective
    width: int | None
    rounding: Rounding = field(default_factory=Rounding)
    validate_every: int | None = None
    telemetry: Telemetry = Telemetry()
    checkpoint_s: float | None = None
    checkpoint_steps: int | None = None
    resume: Checkpoint | None = field(default=None, repr=False)
    skip: frozenset[str] = field(default=frozenset(), repr=False)
    keep: Keep | None = None
    workers: int = 1
    sizes: tuple[int, ...] = ()

    @property
    def trained_ids(self) -> list[str]:
        """Ids of the members that this attempt trains."""
        return [trial_id for trial_id in self.trial_ids if trial_id not in self.skip]

    @property
    def resumed_ages(self) -> Mapping[str, int]:
        """Steps that trials have completed in the checkpoint that the pack resumes."""
        return self.resume.ages if self.resume is not None else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedPack(Pack):
    """One trial of a custom trainer."""

    launch: Launch


# --- reports ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Completed:
    """Every member has a result."""


@dataclass(frozen=True, slots=True)
class Paused:
    """It stopped for a ``reason``; a later run continues unfinished members, or this one if it ``goes_on``."""

    reason: str = "the run was stopped"
    goes_on: bool = False


MORE_PLACES = Paused("there are places for more processes", goes_on=True)


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

    The gradient norm of ``num_risen`` members is up by half now, and ``num_nonfinite`` had a loss or gradient norm in
    their last 100 steps that was not finite. ``peak_memory`` is the most that a process has had so far, in MiB. The
    first report has the ``environment``, the last one the ``ending`` of the pack. ``member_steps`` counts all steps of
    this attempt so far, ``steps_in_hand`` the steps of members that still train, ``at_a_time`` members together. A
    report that ``is_from_start`` replaces earlier curves: a custom trainer that restarts reports from its first point.
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
    states: tuple[KeptState, ...] = ()
    at_a_time: int = 0
    is_from_start: bool = False
    telemetry: Mapping[str, Trace] = field(default_factory=dict, repr=False)
    num_risen: int = 0
    num_nonfinite: int = 0
    peak_memory: float | None = field(default=None, compare=False)

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
