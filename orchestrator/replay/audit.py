"""What early stopping saved and how often it was wrong, from trials that train on after a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.intervals import wilson
from orchestrator.messages import TrialRow


@dataclass(frozen=True, slots=True)
class Audit:
    """The balance of early stopping in one sweep. Steps are member-steps.

    ``num_judged`` of the ``num_chosen`` audited trials (all trials if the sweep stops none) trained on after the
    verdict of lost; ``wrong`` are those that recovered. ``wrong_rate`` has a 95 % Wilson interval; both are None if
    none was judged. ``seconds_saved`` is time of one worker, None if no speed was measured.
    """

    num_finished: int
    num_stopped: int
    num_chosen: int
    num_judged: int
    wrong: tuple[TrialRow, ...]
    wrong_rate: float | None
    wrong_interval: tuple[float, float] | None
    steps_planned: int
    steps_saved: int
    steps_audited: int
    seconds_saved: float | None

    @property
    def num_wrong(self) -> int:
        """Trials that would have been stopped wrongly."""
        return len(self.wrong)

    @property
    def net_steps_saved(self) -> int:
        """Steps saved minus the steps spent on the audit."""
        return self.steps_saved - self.steps_audited


def audit(trials: Sequence[TrialRow], member_steps_per_second: float | None) -> Audit:
    """The audit of a sweep from the rows of its ledger."""
    finished = [row for row in trials if row.outcome is not None]
    # Trials that trained on after a verdict: audited, or all without early stopping; without non-finite ones.
    judged = [row for row in finished if _steps_after_verdict(row) > 0]
    # Their outcomes were judged at the end, including all steps after the verdict.
    wrong = tuple(row for row in judged if row.outcome not in ("diverged", "stalled"))
    stopped = [row for row in finished if row.saved_steps]
    saved = sum(row.saved_steps or 0 for row in stopped)
    audited = sum(_steps_after_verdict(row) for row in judged if row.is_audited)
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
        seconds_saved=(saved - audited) / member_steps_per_second if member_steps_per_second else None,
    )


def _steps_after_verdict(row: TrialRow) -> int:
    """Steps that a trial trained after its verdict of lost."""
    return row.steps_done - row.verdict_step - 1 if row.steps_done is not None and row.verdict_step is not None else 0


def audit_lines(balance: Audit) -> list[str]:
    """The audit in words."""
    planned = max(1, balance.steps_planned)
    lines = [
        f"stopped:  {balance.num_stopped} of {balance.num_finished} finished trials, "
        f"which saved {balance.steps_saved:,} of {balance.steps_planned:,} member-steps "
        f"({balance.steps_saved / planned:.0%})"
    ]
    if balance.wrong_rate is None or balance.wrong_interval is None:
        lines.append(
            "audited:  none was trained on after its verdict"
            + ("; none of the chosen trials was lost" if balance.num_chosen else "; none was chosen (stopping.audit)")
        )
    else:
        low, high = balance.wrong_interval
        lines += [
            f"audited:  {balance.num_judged} trials trained on after their verdict, "
            f"for {balance.steps_audited:,} member-steps",
            f"wrong:    {balance.num_wrong} of them came back: {balance.wrong_rate:.0%} "
            f"(95 % interval {low:.0%} to {high:.0%})",
        ]
    balance_line = f"balance:  {balance.net_steps_saved:,} member-steps saved in total"
    if balance.seconds_saved is not None:
        balance_line += f", about {abs(balance.seconds_saved):,.0f} s of one worker"
        balance_line += "" if balance.seconds_saved >= 0 else " lost"
    return [*lines, balance_line]
