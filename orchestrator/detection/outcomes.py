"""The outcome of a training, from the record of the detector."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

from orchestrator.base.trial_result import MemberResult
from orchestrator.base.vocabulary import ENOUGH_LOSSES, Outcome
from orchestrator.detection.config import StoppingConfig, falls_over_decades
from orchestrator.detection.detector import MemberRecord
from orchestrator.detection.episodes import JUMP_STEPS
from orchestrator.detection.excursions import Episode
from orchestrator.detection.slow import RungProgress
from orchestrator.detection.validations import Validations
from orchestrator.detection.verdicts import LEARNED

# A run that ends off its trend below this share of its initial loss has kept what it learned: a loss that falls over
# decades may rise by many of them without losing anything that matters.
_ALL_KEPT = 1e-4
_BROKEN = 2  # non-finite gradients at the end; a single one may be a step that a loss scaler skips


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one training run, its onset and the reason.

    ``peak_factor`` is the tallest excursion as a factor of the level before it, ``off_share`` the share of the steps
    off the trend, ``risen_share`` the share of what it learned that a slow rise gave up. Every outcome except stable,
    unknown and pruned has an onset.
    """

    outcome: Outcome
    onset_step: int | None
    num_spikes: int
    peak_loss: float | None
    reason: str
    peak_factor: float | None = None
    off_share: float = 0.0
    risen_share: float | None = None


def judge(record: MemberRecord, config: StoppingConfig) -> Verdict:
    """Return the outcome of a finished or stopped member, from its state at the end.

    diverged: not finite, skipped or rolled back to its end, far above its own past, off its trend without coming back
    (unless almost nothing of the initial loss is left anyway), or slowly back to where it began.
    unknown: a loss that went below zero, or grew from a low start to a plateau, so that its distance from its past is
    undefined; a loss of 0 with a finite gradient; or fewer than ten losses.
    stalled: it never lowered its loss by ``stall_drop``, without a blow-up: after one nothing came back.
    spiked: it left its trend at least once, or was judged lost, and recovered.
    stable: none of these.
    """
    episodes = record.episodes
    factors = _factors(episodes)

    def verdict(outcome: Outcome, onset_step: int | None, reason: str) -> Verdict:
        ran_on = outcome in ("stable", "spiked")
        return Verdict(
            outcome,
            onset_step,
            max(record.num_episodes, len(episodes)),
            max((episode.peak_loss for episode in episodes), default=None),
            reason + (_slow_rise_text(record) if ran_on else ""),
            max(factors, default=None),
            record.off_share,
            record.risen_share if ran_on else None,
        )

    if not record.is_finite or (record.lost == "far" and record.is_far):
        return verdict("diverged", record.lost_onset_step, record.lost_reason or "lost")
    if record.undone_reason is not None:
        return verdict("diverged", record.undone_since_step, record.undone_reason)
    if record.num_broken >= _BROKEN:
        return verdict("diverged", record.broken_since_step, "it ended on gradient norms that are not finite")
    if record.num_steps < ENOUGH_LOSSES:
        losses = "1 loss is" if record.num_steps == 1 else f"{record.num_steps} losses are"
        return verdict("unknown", None, f"{losses} too few to judge")
    if record.is_signed:
        why = "its first loss is exactly 0" if record.initial_loss == 0 else "the loss went below zero"
        return verdict("unknown", None, f"{why}: only values that are not finite are judged")
    if record.has_grown:
        return verdict("unknown", None, "the loss grew from a low start and settled: no past to compare it with")
    if record.zero_since_step is not None and not falls_over_decades(config):
        zeros = f"its loss is exactly 0 since step {record.zero_since_step}"
        if record.has_norm_at_zero:
            return verdict("unknown", None, f"{zeros}, and its gradient norm is finite: that is not what it trains on")
        zeros += ", as where one that is not finite is replaced"
        has_level = record.num_steps - record.num_zeros >= ENOUGH_LOSSES
        return verdict("diverged" if has_level else "unknown", record.zero_since_step if has_level else None, zeros)
    if record.is_far or record.is_away:
        onset = record.up_since_step
        if episodes and episodes[-1].recovery_step is None:
            onset = episodes[-1].onset_step
        onset = record.first_step if onset is None else onset
        if not record.is_far and _has_kept_all(record):
            return verdict(
                "spiked", onset, f"it had left its trend when it ended, at a loss of {record.recent_loss:.2g}"
            )
        how = "it ended far above its past" if record.is_far else "it left its trend and had not come back at its end"
        return verdict("diverged", onset, how)
    initial = record.initial_loss
    if initial is not None:
        best = initial if record.best_loss is None else min(record.best_loss, initial)
        has_fallen = initial - best > config.stall_drop * abs(initial)
        if not has_fallen or _has_frozen(record, initial, best, config.stall_drop):
            reason = record.lost_reason or f"the loss never fell by {config.stall_drop:.0%}"
            if record.blew_up:
                return verdict("diverged", episodes[0].onset_step, f"it blew up at its start, and then {reason}")
            return verdict("stalled", record.first_step, reason)
        if (record.risen_share or 0.0) >= 1:
            return verdict("diverged", record.risen_since_step, "it slowly gave up all that it had learned")
        if record.worse_share is not None:
            lost = f"it rose slowly and lost {record.worse_share:.0%} of what it had learned"
            return verdict("diverged", record.worse_since_step, f"{lost}, for a third of its steps")
    if episodes:
        return verdict("spiked", episodes[0].onset_step, _spike_text(record))
    if record.lost is not None:
        return verdict("spiked", record.lost_onset_step, f"{record.lost_reason}, but it came back")
    return verdict("stable", None, "it stayed on its trend")


def _has_frozen(record: MemberRecord, initial: float, best: float, drop: float) -> bool:
    """Return whether a run that blew up at its start came back about as high as it began, and never fell from there."""
    start = record.start_loss
    if not record.blew_up or start is None:
        return False
    return initial - best <= LEARNED * abs(initial) and start - best <= drop * abs(start)


def _has_kept_all(record: MemberRecord) -> bool:
    level, initial = record.recent_loss, record.initial_loss
    return level is not None and initial is not None and 0 <= level <= _ALL_KEPT * initial


def _factors(episodes: Sequence[Episode]) -> list[float]:
    """Return the height of each episode as a factor of the level before it, if that is above zero."""
    factors = [episode.peak_loss / episode.level for episode in episodes if episode.level > 0]
    return [factor for factor in factors if math.isfinite(factor)]


def _spike_text(record: MemberRecord) -> str:
    """Return the reason of a spiked run; for recurring jumps, with their number, usual height and interval."""
    episodes = record.episodes
    if episodes[-1].recovery_step is None:
        return "it had just left its trend when it ended"
    jumps = [episode for episode in episodes if episode.is_jump]
    if not jumps:
        return "it left its trend and recovered"
    factors = _factors(jumps)
    height = f" to {median(factors):.2g} times its level" if factors else ""
    short = [episode.onset_step for episode in episodes if episode.is_jump or episode.num_steps <= JUMP_STEPS]
    gaps = [after - before for before, after in itertools.pairwise(short)]
    every = f", one every {median(gaps):.0f} steps" if gaps else ""
    return f"it jumped{height} again and again ({len(short)} times{every}) and recovered"


def _slow_rise_text(record: MemberRecord) -> str:
    """Return the addition to the reason of a run that slowly gave up much of what it learned."""
    if record.risen_share is None:
        return ""
    return f"; since step {record.risen_since_step} it has given up {record.risen_share:.0%} of what it had learned"


def member_result(
    trial_id: str,
    record: MemberRecord,
    stopping: StoppingConfig,
    steps_done: int,
    validation: float,
    progress: RungProgress = RungProgress(),
    validations: Validations | None = None,
    *,
    is_plateaued: bool = False,
    has_score: bool = False,
    diverged: str | None = None,
) -> MemberResult:
    """Return the result of a trial that ended after ``steps_done`` steps; ``validation`` is NaN without one.

    ``validations`` were made during training. ``is_plateaued`` says that the trial was ended because they had stopped
    improving; ``diverged`` says why it counts as diverged whatever its losses look like. A finite run whose loss cannot
    be judged is stable if it ``has_score``: what it learned is then for the score to say.
    """
    verdict = judge(record, stopping)
    if has_score and verdict.outcome == "unknown" and record.num_steps >= ENOUGH_LOSSES:
        verdict = replace(verdict, outcome="stable", reason=f"{verdict.reason}, and its score says what it learned")
    if diverged is not None:
        onset = max(0, steps_done - 1) if verdict.onset_step is None else verdict.onset_step
        reason = f"{diverged}; until then {verdict.reason}"
        verdict = replace(verdict, outcome="diverged", onset_step=onset, risen_share=None, reason=reason)
    validations = validations or Validations()
    overfits = _ran_on(verdict) and validations.overfits(record, stopping)
    if overfits:
        verdict = replace(verdict, reason=f"{verdict.reason}; {_overfitting_text(validations)}")
    if validations.plateau_step is not None:
        how = "ended" if is_plateaued else "not ended"
        verdict = replace(verdict, reason=f"{verdict.reason}; {_plateau_text(validations, stopping, how)}")
    if progress.is_pruned:
        verdict = replace(
            verdict, outcome="pruned", onset_step=None, reason=f"{progress.reason}; until then {verdict.reason}"
        )
    elif progress.slow_step is not None:
        verdict = replace(verdict, reason=f"{verdict.reason}; audited: {progress.reason}")
    return MemberResult(
        trial_id=trial_id,
        steps_done=steps_done,
        initial_loss=record.initial_loss,
        best_loss=record.best_loss,
        final_loss=record.recent_loss if record.is_finite else None,
        validation_loss=validation if math.isfinite(validation) else None,
        best_validation_loss=validations.best_loss,
        best_validation_step=validations.best_step,
        overfit_step=validations.best_step if overfits else None,
        plateau_step=validations.plateau_step,
        slow_step=progress.slow_step,
        rung_losses=progress.losses,
        verdict_step=record.lost_step,
        norm_rises=record.norm_rises,
        num_nonfinite=record.counts.nonfinite,
        nonfinite_share=record.counts.nonfinite_share,
        num_skipped=record.counts.skipped,
        data_share=record.counts.data_share,
        episodes=tuple((episode.onset_step, episode.recovery_step) for episode in record.episodes),
        **{field.name: getattr(verdict, field.name) for field in fields(verdict)},
    )


def _ran_on(verdict: Verdict) -> bool:
    """Return whether the training ended on its trend, without a slow rise."""
    return verdict.outcome in ("stable", "spiked") and verdict.risen_share is None


def _overfitting_text(validations: Validations) -> str:
    return (
        f"since step {validations.best_step} it overfits: its validation loss rose from {validations.best_loss:.4g} "
        f"to {validations.end_loss():.4g}"
    )


def _plateau_text(validations: Validations, stopping: StoppingConfig, how: str) -> str:
    return (
        f"{how} at step {validations.plateau_step}, where {stopping.validation_patience} validations in a row had "
        "not been the best"
    )
