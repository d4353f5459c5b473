"""Messages between driver and workers (a pack to train, reports on its members), and rows of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands that read no curve start without it
    import numpy as np

    from objectives.protocol import Rounding

# One member's curve: column name -> 1-D array, all of equal length, "step" among them.
Trace = Mapping[str, "np.ndarray"]

# What a map calls a stable trial that learned less than this share of what the best of its sweep did.
DEGRADED, LEARNED_ENOUGH = "degraded", 0.5
# Words on a trial's learning rate: raise it, lower it, leave it, and that it cannot be told.
TOO_SLOW, OSCILLATING, RIGHT, UNSURE = "too slow", "oscillating", "right", "unknown"
PRUNED = "pruned"  # the outcome of a trial that was stopped since it was slow
IMPORTED = "imported"  # the objective of runs that were trained elsewhere
# The objectives whose trials a user's own code trains: what their settings, steps and columns mean is not known here.
CUSTOM_KINDS = ("command", "python", IMPORTED)


@dataclass(frozen=True, slots=True)
class Member:
    """One trial inside a pack."""

    trial_id: str
    config: Mapping[str, Any]
    seed: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a running pack as bytes, with the steps that each running trial has completed in it."""

    content: bytes = field(repr=False)
    ages: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """How to run trials of a custom trainer: ``workers`` processes each, with ``gpus_per_worker``.

    Commands run in ``folder``, and each trial has its folder in ``trials_folder``. If the file ``checkpoint`` exists,
    ``resume_arguments`` are added. A trial that must end has ``grace_s`` seconds after SIGTERM; one that reports no
    loss for ``silence_s`` is ended. With ``preload`` they are forks of a process that has imported these modules, with
    "auto" the script's. There is a report every ``report_s`` seconds.
    """

    folder: str
    workers: int
    gpus_per_worker: float
    checkpoint: str | None
    resume_arguments: tuple[str, ...]
    grace_s: float
    silence_s: float
    preload: str | tuple[str, ...] | None = None
    trials_folder: str = ""
    report_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Steps between readings, and between curvatures of ``products`` Hessian products; every ``curves``-th loss."""

    every: int | None = None
    curvature: int | None = None
    products: int = 4
    curves: int = 1


@dataclass(frozen=True, slots=True)
class Rival:
    """An earlier trial that slow ones are compared with: its loss at each rung that it reached."""

    losses: tuple[float, ...]
    ran_to_its_end: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """A rung: after ``steps`` a trial whose loss is above ``loss`` is slow, beside ``num_rivals`` earlier trials."""

    steps: int
    loss: float
    num_rivals: int


@dataclass(frozen=True, slots=True)
class Pack:
    """Trials to train in one process: a ``StackedPack`` or a ``LaunchedPack``.

    ``bars`` are in ascending order of their steps; empty where slow trials are not stopped.
    """

    pack_id: str
    steps: int
    members: tuple[Member, ...] = field(repr=False)
    stopping: Mapping[str, Any] = field(repr=False)
    cpus: int = 1
    gpus: float = 0.0
    bars: tuple[Bar, ...] = field(default=(), repr=False)

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
        """Steps that trials have behind them in the checkpoint from which the pack resumes."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedPack(Pack):
    """Trials of an objective, ``width`` at a time as one stacked model; None for the fastest width.

    ``steps_ahead`` are the member-steps that this worker can expect, in this and later packs: compiling must pay off
    over them. ``resume`` is the state of an earlier attempt at the same members; those in ``skip`` are not trained
    further. A checkpoint is written every ``checkpoint_s`` seconds or ``checkpoint_steps``. The held-out loss of a
    member is measured after every ``validate_every`` of its steps, None for after the last one alone.
    """

    objective: str
    folder: str = ""  # of the module of a custom objective
    width: int | None
    rounding: Rounding | None = None  # of results that it must repeat to the bit; None for the fastest way
    steps_ahead: int = 0
    validate_every: int | None = None
    telemetry: Telemetry = Telemetry()
    checkpoint_s: float | None = None
    checkpoint_steps: int | None = None
    resume: Checkpoint | None = field(default=None, repr=False)
    skip: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def trained_ids(self) -> list[str]:
        """Ids of the members that this attempt trains."""
        return [trial_id for trial_id in self.trial_ids if trial_id not in self.skip]

    @property
    def resumed_ages(self) -> Mapping[str, int]:
        """Steps that trials have behind them in the checkpoint from which the pack resumes."""
        return self.resume.ages if self.resume is not None else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedPack(Pack):
    """One trial of a custom trainer."""

    launch: Launch


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
class Finished:
    """One member's result. Losses are finite or None; ``reason`` says why one is None.

    ``verdict_step`` is the step at which it was judged lost, even if it trained on because it ``is_audited``.
    ``episodes`` are onset and recovery step of each episode off its trend, recovery None while it lasted.
    ``norm_rises`` are the steps at which its gradient norm rose, ``fired`` what rules of its control did.
    ``curve_digest`` is a hash of steps and losses of a custom trainer's run. ``slow_step`` is the step at which it was
    found slow, and pruned unless it ``is_audited``; ``rung_losses`` are its losses at rungs. From ``overfit_step`` on
    the validation loss rose while the training loss did not. At ``plateau_step`` it had stopped improving, see there.
    """

    trial_id: str
    outcome: str
    onset_step: int | None
    num_spikes: int | None
    steps_done: int | None
    initial_loss: float | None
    best_loss: float | None
    final_loss: float | None
    peak_loss: float | None
    validation_loss: float | None
    reason: str
    verdict_step: int | None = None
    is_audited: bool = False
    episodes: tuple[tuple[int, int | None], ...] = ()
    peak_factor: float | None = None
    off_share: float | None = None
    risen_share: float | None = None
    norm_rises: tuple[int, ...] = ()
    fired: tuple[Mapping[str, Any], ...] = ()
    curve_digest: str | None = None
    slow_step: int | None = None
    rung_losses: tuple[float, ...] = ()
    best_validation_loss: float | None = None
    best_validation_step: int | None = None
    overfit_step: int | None = None
    plateau_step: int | None = None


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
    finished: tuple[Finished, ...] = ()
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


@dataclass(frozen=True, slots=True)
class TrialRow:
    """The ledger's record of one trial; the fields are the columns of its table."""

    trial_id: str
    cell: Mapping[str, Any]  # axis -> value, in the order of the axes
    seed: int
    config: Mapping[str, Any] = field(repr=False)  # the full resolved configuration
    objective: str
    status: str
    steps: int  # configured length
    position: int | None = None  # order in the sweep; None if no longer in the sweep
    num_attempts: int = 0
    outcome: str | None = None  # None without a result
    onset_step: int | None = None  # first step off its trend
    num_spikes: int | None = None
    steps_done: int | None = None
    initial_loss: float | None = None
    best_loss: float | None = None
    final_loss: float | None = None
    peak_loss: float | None = None  # highest loss within its spikes
    peak_factor: float | None = None  # tallest spike, as a factor of the level before it
    off_share: float | None = None  # share of the steps off the trend
    risen_share: float | None = None  # of what it learned, given up in a slow rise
    validation_loss: float | None = None
    best_validation_loss: float | None = None  # lowest of its validations
    best_validation_step: int | None = None
    overfit_step: int | None = None  # from where on its validation loss alone rose: a note
    verdict_step: int | None = None  # step of the verdict of lost, if any
    slow_step: int | None = None  # step at which it was found slow, if it was
    plateau_step: int | None = None  # step at which its validation loss had stopped improving, if it had
    is_audited: bool = False  # whether it trains on after any of these
    episodes: tuple[tuple[int, int | None], ...] = ()  # onset and recovery of each episode off its trend
    norm_rises: tuple[int, ...] = ()  # steps at which the gradient norm had risen by half: notes
    fired: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)  # what the rules of its control did, in order
    curve_digest: str | None = None  # hash of steps and losses, of a custom trainer's run
    rung_losses: tuple[float, ...] = ()  # where slow trials are stopped, at each rung that it reached
    reason: str | None = None  # why this outcome, or what went wrong
    error: str | None = None  # tail of the traceback of an errored trial
    pack_id: str | None = None  # the last attempt
    started_at: float | None = None  # seconds since 1970, of the last attempt
    finished_at: float | None = None
    # Computed for all trials of a sweep together, None in a row read alone: what it learned of what the best trial did,
    # and by the trials beside it along the learning rate a word, and its final loss less the lowest.
    learned_share: float | None = None
    lr_health: str | None = None
    lr_regret: float | None = None

    @property
    def is_judged(self) -> bool:
        """Whether its outcome is that of a whole training: of a pruned trial it is not known."""
        return self.outcome not in (None, PRUNED)

    @property
    def is_degraded(self) -> bool:
        """Whether it learned less than half of what the best one did, stable or stalled at too low a learning rate."""
        if self.outcome == "stalled":
            return self.lr_health == TOO_SLOW
        return self.outcome == "stable" and self.learned_share is not None and self.learned_share < LEARNED_ENOUGH

    @property
    def saved_steps(self) -> int | None:
        """Configured steps that early stopping saved; None without a result.

        A custom trainer that was not stopped may print its last loss before its last step, or count something else.
        """
        if self.steps_done is None:
            return None
        ran_on = self.objective in CUSTOM_KINDS and self.verdict_step is None and self.outcome != PRUNED
        return 0 if ran_on else max(0, self.steps - self.steps_done)

    @property
    def label(self) -> str:
        """The outcome, ``degraded`` for a calm trial that is, or the status where there is no outcome."""
        return DEGRADED if self.is_degraded else self.outcome or self.status


@dataclass(frozen=True, slots=True)
class PackRow:
    """The ledger's record of one attempt at training some trials together."""

    pack_id: str
    trial_ids: tuple[str, ...]
    executor: str
    started_at: float  # seconds since 1970
    ended_at: float | None
    ended: str | None  # done, errored, lost or interrupted; None while it runs
    member_steps: int
    seconds: float
    environment: Mapping[str, str] = field(repr=False)
    resumed_from: str | None  # the earlier attempt whose checkpoint it resumed


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A file in ``checkpoints/`` and the steps that each trial has completed in it."""

    name: str
    sha256: str
    ages: Mapping[str, int]
