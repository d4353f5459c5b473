"""The result of a trial: as a worker reports it, and as the ledger records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.base.vocabulary import CUSTOM_KINDS, DEGRADED, LEARNED_ENOUGH, PRUNED, TOO_SLOW


@dataclass(frozen=True, slots=True)
class MemberResult:
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
class TrialResult:
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
