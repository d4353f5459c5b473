"""What early stopping saved in a sweep, and how often it was wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.query import Query, Say, flat, reported, silent
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line

if TYPE_CHECKING:
    from orchestrator.maps.audit import Audit, PlateauAudit, SlowAudit
    from orchestrator.maps.energy import Energy
    from orchestrator.maps.table import SweepTable

_WRONG_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery(Query["SweepTable"]):
    """Show what early stopping saved in a sweep, and how often it was wrong.

    Trials that `stopping.audit` chooses train on after the verdict that would have stopped them, which shows whether it
    was right. For example `sweep audit lr_warmup`.
    """

    panel: ClassVar[str] = "upkeep"
    section: ClassVar[str] = "Early stopping"

    def ask(self, subject: SweepTable, say: Say = silent) -> AuditAnswer:
        """Return the balance of early stopping."""
        from orchestrator.maps.audit import audit
        from orchestrator.maps.energy import energy_of

        result = audit(subject.trials, subject.ledger.member_steps_per_second())
        return AuditAnswer(subject.name, result, energy_of(subject.trials, subject.facts))


@dataclass(frozen=True, slots=True)
class AuditAnswer(Answer):
    """The balance of early stopping in one sweep."""

    sweep: str
    result: Audit = flat()
    energy: Energy | None = None

    @reported
    def joules_saved(self) -> float | None:
        """Energy that stopping saved in total, at the mean of a trained step; None if none was measured."""
        rate = None if self.energy is None else self.energy.joules_per_step
        return None if rate is None else self.result.net_steps_saved * rate

    def blocks(self) -> Iterator[Block]:
        """Yield what was saved, what was wrong, and the trials that would have been stopped wrongly."""
        yield from map(Line, self._sentences())
        for row in self.result.wrong[:_WRONG_SHOWN]:
            yield Line(f"{row.name}: lost at step {row.verdict_step}, ended {row.outcome}", 1)
        for row in self.result.slow.wrong[:_WRONG_SHOWN] if self.result.slow is not None else ():
            yield Line(f"{row.name}: slow at step {row.slow_step}, ended with a loss of {row.final_loss:.4g}", 1)

    def _sentences(self) -> Iterator[str]:
        result = self.result
        share = result.steps_saved / max(1, result.steps_planned)
        yield (
            f"stopped:  {result.num_stopped} of {result.num_finished} finished trials, which saved "
            f"{result.steps_saved:,} of {result.steps_planned:,} member-steps ({share:.0%})"
        )
        if result.wrong_rate is None or result.wrong_interval is None:
            why = "none of the chosen trials was lost" if result.num_chosen else "none was chosen (stopping.audit)"
            yield f"audited:  none was trained on after its verdict; {why}"
        else:
            yield (
                f"audited:  {count(result.num_judged, 'trial')} trained on after their verdict, for "
                f"{result.steps_after_verdicts:,} member-steps"
            )
            yield f"wrong:    {result.num_wrong} recovered: {_rate(result.wrong_rate, result.wrong_interval)}"
        if result.slow is not None:
            yield from _slow(result.slow)
        if result.plateaus is not None:
            yield from _plateaus(result.plateaus)
        seconds = ""
        if result.seconds_saved is not None:
            seconds = f", about {abs(result.seconds_saved):,.0f} s of one worker"
            seconds += "" if result.seconds_saved >= 0 else " lost"
        yield f"balance:  {result.net_steps_saved:,} member-steps saved in total{seconds}"
        if (energy := self.energy) is not None:
            saved = "" if self.joules_saved is None else f", and stopping saved about {energy.text(self.joules_saved)}"
            yield f"energy:   diverged trials took {energy.text(energy.lost_joules)}{energy.coverage}{saved}"


def _plateaus(plateaus: PlateauAudit) -> Iterable[str]:
    ended = f"plateau:  {plateaus.num_ended} ended because their validation loss had stopped improving"
    if plateaus.wrong_rate is None or plateaus.wrong_interval is None:
        return [f"{ended}; none trained on beyond that (stopping.audit)"]
    return [
        f"{ended}, and {plateaus.num_judged} trained on beyond that",
        f"wrong:    {plateaus.num_wrong} of these had a lower one later: "
        f"{_rate(plateaus.wrong_rate, plateaus.wrong_interval)}",
    ]


def _slow(slow: SlowAudit) -> Iterable[str]:
    pruned = f"slow:     {slow.num_pruned} finished trials were pruned"
    if slow.wrong_rate is None or slow.wrong_interval is None:
        return [f"{pruned}; no slow trial trained on for a comparison with others (stopping.audit)"]
    return [
        f"{pruned}, and {slow.num_judged} slow ones trained on, for {slow.steps_audited:,} member-steps",
        f"wrong:    {len(slow.wrong)} of these ended in the better half: {_rate(slow.wrong_rate, slow.wrong_interval)}",
    ]


def _rate(share: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{share:.0%} (95 % interval {low:.0%} to {high:.0%})"
