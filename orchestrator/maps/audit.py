"""What early stopping saved and how often it was wrong, from trials that train on where others are stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.base.intervals import wilson
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import PRUNED

_RAN_ON = ("stable", "spiked")


@dataclass(frozen=True, slots=True)
class SlowAudit:
    """The balance of pruning slow trials.

    ``num_pruned`` were, and ``num_judged`` were found slow and trained on, ``steps_audited`` further because
    they were audited. ``wrong`` are the ones ending with a loss below ``middle``, the median final loss of the trials
    that were never slow; ``wrong_rate`` and its 95 % Wilson interval are None if nothing can be compared.
    """

    num_pruned: int
    num_judged: int
    steps_audited: int
    middle: float | None
    wrong: tuple[TrialResult, ...]
    wrong_rate: float | None
    wrong_interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class PlateauAudit:
    """Trials whose validation loss had stopped improving: how many ended there, and how many trained on.

    ``num_wrong`` of the ``num_judged`` that trained on had a lower validation loss later; the rate and its 95 % Wilson
    interval are None if none trained on.
    """

    num_ended: int
    num_judged: int
    num_wrong: int
    wrong_rate: float | None
    wrong_interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Audit:
    """The balance of early stopping in one sweep. Steps are member-steps.

    ``num_judged`` of the ``num_chosen`` audited trials (all trials if the sweep stops none) trained on after the
    verdict of lost; ``wrong`` are the recovered ones. ``wrong_rate`` has a 95 % Wilson interval; both are None if
    none was judged. ``seconds_saved`` is time of one worker, None if no speed was measured. ``slow`` is None if no
    trial was found slow, ``plateaus`` where no validation loss had stopped improving. ``steps_audited`` are those after
    a verdict, after a trial was slow or after its plateau, each once.
    """

    num_finished: int
    num_stopped: int
    num_chosen: int
    num_judged: int
    wrong: tuple[TrialResult, ...]
    wrong_rate: float | None
    wrong_interval: tuple[float, float] | None
    steps_planned: int
    steps_saved: int
    steps_audited: int
    steps_after_verdicts: int
    seconds_saved: float | None
    slow: SlowAudit | None = None
    plateaus: PlateauAudit | None = None

    @property
    def num_wrong(self) -> int:
        """Trials that would have been stopped wrongly."""
        return len(self.wrong)

    @property
    def net_steps_saved(self) -> int:
        """Steps saved minus the steps spent on the audit."""
        return self.steps_saved - self.steps_audited


def audit(trials: Sequence[TrialResult], member_steps_per_second: float | None) -> Audit:
    """The audit of a sweep from the rows of its ledger."""
    finished = [row for row in trials if row.outcome is not None]
    # Trials that trained on after a verdict: audited, or all without early stopping; without non-finite ones.
    judged = [row for row in finished if _steps_after(row, row.verdict_step) > 0]
    # Their outcomes were judged at the end, including all steps after the verdict.
    wrong = tuple(row for row in judged if row.outcome not in ("diverged", "stalled"))
    stopped = [row for row in finished if row.saved_steps]
    saved = sum(row.saved_steps or 0 for row in stopped)
    audited = sum(_steps_after(row, _first_stop(row)) for row in finished if row.is_audited)
    return Audit(
        num_finished=len(finished),
        num_stopped=len(stopped),
        num_chosen=sum(row.is_audited for row in finished),
        num_judged=len(judged),
        wrong=wrong,
        wrong_rate=len(wrong) / len(judged) if judged else None,
        wrong_interval=wilson(len(wrong), len(judged)) if judged else None,
        steps_planned=sum(row.steps for row in finished),
        steps_saved=saved,
        steps_audited=audited,
        steps_after_verdicts=sum(_steps_after(row, row.verdict_step) for row in judged if row.is_audited),
        seconds_saved=(saved - audited) / member_steps_per_second if member_steps_per_second else None,
        slow=_slow_audit(finished) if any(row.slow_step is not None for row in finished) else None,
        plateaus=_plateau_audit(finished) if any(row.plateau_step is not None for row in finished) else None,
    )


def _slow_audit(finished: Sequence[TrialResult]) -> SlowAudit:
    slow = [row for row in finished if row.slow_step is not None and row.outcome != PRUNED]
    others = [row.final_loss for row in finished if row.slow_step is None and row.outcome in _RAN_ON]
    middle = median(known) if (known := [loss for loss in others if loss is not None]) else None
    wrong = tuple(
        row
        for row in slow
        if row.outcome in _RAN_ON and row.final_loss is not None and middle is not None and row.final_loss < middle
    )
    has_rate = bool(slow) and middle is not None
    return SlowAudit(
        num_pruned=sum(row.outcome == PRUNED for row in finished),
        num_judged=len(slow),
        steps_audited=sum(_steps_after(row, row.slow_step) for row in slow if row.is_audited),
        middle=middle,
        wrong=wrong,
        wrong_rate=len(wrong) / len(slow) if has_rate else None,
        wrong_interval=wilson(len(wrong), len(slow)) if has_rate else None,
    )


def _plateau_audit(finished: Sequence[TrialResult]) -> PlateauAudit:
    met = [row for row in finished if row.plateau_step is not None]
    # The best step of a score is not recorded.
    has_best = [row for row in met if row.best_validation_step is not None]
    judged = [row for row in has_best if _steps_after(row, row.plateau_step) > 0]
    wrong = [row for row in judged if (row.best_validation_step or 0) > (row.plateau_step or 0)]
    rate, interval = (len(wrong) / len(judged), wilson(len(wrong), len(judged))) if judged else (None, None)
    return PlateauAudit(len(met) - len(judged), len(judged), len(wrong), rate, interval)


def _first_stop(row: TrialResult) -> int | None:
    """The step where a trial would have been stopped: as lost, as slow, or by its validation losses."""
    steps = (row.verdict_step, row.slow_step, row.plateau_step)
    return min((step for step in steps if step is not None), default=None)


def _steps_after(row: TrialResult, step: int | None) -> int:
    """Steps that a trial trained after ``step``, 0 where there is no such step."""
    return row.steps_done - step - 1 if row.steps_done is not None and step is not None else 0
