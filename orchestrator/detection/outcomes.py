"""From the detector's record of a member to its outcome."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord
from orchestrator.messages import Finished

Outcome = Literal["stable", "spiked", "diverged", "stalled"]
OUTCOMES: tuple[Outcome, ...] = ("stable", "spiked", "diverged", "stalled")
_WORSE_FIRST: tuple[Outcome, ...] = ("diverged", "stalled", "spiked")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one training run, its onset and the reason."""

    outcome: Outcome
    onset_step: int | None
    num_spikes: int
    peak_loss: float | None
    reason: str


def judge(record: MemberRecord, config: StoppingConfig) -> Verdict:
    """The outcome of a finished (or stopped) member, from its state at the end.

    diverged: not finite, far above its own past, or off its trend for longer than its patience.
    stalled: it never lowered its loss by ``stall_drop``.
    spiked: it left its trend at least once, or had a verdict of lost, and recovered.
    stable: none of these.
    """
    recovered = [episode for episode in record.episodes if episode.recovery_step is not None]
    peak = max((episode.peak_loss for episode in record.episodes), default=None)

    def verdict(outcome: Outcome, onset_step: int | None, reason: str) -> Verdict:
        return Verdict(outcome, onset_step, len(recovered), peak, reason)

    if not record.is_finite or (record.lost == "far" and record.is_far):
        return verdict("diverged", record.lost_onset_step, record.lost_reason or "lost")
    if record.is_far or record.is_away:
        onset = record.up_since_step
        if record.episodes and record.episodes[-1].recovery_step is None:
            onset = record.episodes[-1].onset_step
        how = "it ended far above its past" if record.is_far else "it left its trend and had not come back at its end"
        return verdict("diverged", onset, how)
    initial = record.initial_loss
    if initial is not None:
        best = initial if record.best_loss is None else min(record.best_loss, initial)
        if initial - best <= config.stall_drop * abs(initial):
            return verdict("stalled", None, record.lost_reason or f"the loss never fell by {config.stall_drop:.0%}")
    if record.episodes:
        is_back = record.episodes[-1].recovery_step is not None
        how = "it left its trend and recovered" if is_back else "it had just left its trend when it ended"
        return verdict("spiked", record.episodes[0].onset_step, how)
    if record.lost is not None:
        return verdict("spiked", record.lost_onset_step, f"{record.lost_reason}, but it came back")
    return verdict("stable", None, "it stayed on its trend")


def finished_of(
    trial_id: str, record: MemberRecord, stopping: StoppingConfig, steps_done: int, validation: float
) -> Finished:
    """The result of a trial that ended after ``steps_done`` steps; ``validation`` is NaN where there is none."""
    verdict = judge(record, stopping)
    return Finished(
        trial_id=trial_id,
        outcome=verdict.outcome,
        onset_step=verdict.onset_step,
        num_spikes=verdict.num_spikes,
        steps_done=steps_done,
        initial_loss=record.initial_loss,
        best_loss=record.best_loss,
        final_loss=record.recent_loss if record.is_finite else None,
        peak_loss=verdict.peak_loss,
        validation_loss=validation if math.isfinite(validation) else None,
        reason=verdict.reason,
        verdict_step=record.lost_step,
        episodes=tuple((episode.onset_step, episode.recovery_step) for episode in record.episodes),
    )


def cell_state(labels: Sequence[str]) -> str:
    """The state of a cell from the outcomes (or statuses, where there is no outcome) of all its seeds.

    stable: all seeds are stable. An outcome other than stable: the most common one, the worse in a tie, of a cell whose
    seeds are all trained. unknown: some seeds have a result and some are outstanding, or those that finished are stable
    and others errored. errored and not_run: no seed has a result, with or without an error. So an infrastructure fault
    never makes an edge, and an untrained seed never makes a cell stable.
    """
    counts = Counter(labels)
    num_finished = sum(counts[outcome] for outcome in OUTCOMES)
    if not num_finished:
        return "errored" if counts["errored"] else "not_run"
    if num_finished + counts["errored"] < len(labels):
        return "unknown"
    unstable = [outcome for outcome in _WORSE_FIRST if counts[outcome]]
    if unstable:
        return max(unstable, key=lambda outcome: counts[outcome])
    return "unknown" if counts["errored"] else "stable"


def is_known(state: str) -> bool:
    """Whether a cell of this state is known to be stable or known not to be."""
    return state in OUTCOMES
