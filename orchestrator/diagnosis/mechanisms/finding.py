"""What a mechanism has to say about one trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from orchestrator.diagnosis.evidence import Evidence
from orchestrator.maps.neighbours import Neighbour

NOT_MEASURED = "the curvature was not measured"

Verdict = Literal["supported", "excluded", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the evidence supports or excludes a mechanism, or is not enough to say: ``unknown``.

    ``reason`` is a sentence without its stop, ``numbers`` are what was measured, in words. ``began_step`` is when it
    began, where it did; ``onset_step`` that of the trial, to tell before from after.
    """

    mechanism: str
    verdict: Verdict
    reason: str
    numbers: tuple[str, ...] = ()
    began_step: int | None = None
    onset_step: int | None = None

    @property
    def when(self) -> str:
        """When it began relative to the onset, in words; nothing where it did not."""
        if self.began_step is None:
            return ""
        if self.onset_step is None:
            return f"from step {self.began_step} on"
        lead = self.onset_step - self.began_step
        relative = "at the onset" if lead == 0 else f"{steps(abs(lead))} {'before' if lead > 0 else 'after'} the onset"
        return f"from step {self.began_step} on, {relative}"


class MakeFinding(Protocol):
    """Makes findings of one mechanism on one trial's evidence."""

    def __call__(
        self, verdict: Verdict, reason: str, numbers: list[str] | None = None, began: int | None = None
    ) -> Finding:
        """The finding, with what was measured and the step at which it began."""


def finding_for(key: str, evidence: Evidence) -> MakeFinding:
    """What makes findings of the mechanism ``key`` on this evidence: verdict, reason, numbers, began_step."""

    def make(verdict: Verdict, reason: str, numbers: list[str] | None = None, began: int | None = None) -> Finding:
        return Finding(key, verdict, reason, tuple(numbers or ()), began, evidence.onset)

    return make


def seeds_text(cell: Neighbour) -> str:
    """How many seeds of a cell are stable, in words."""
    return f"{cell.num_stable} of {cell.num_finished} seeds stable"


def steps(number: float) -> str:
    """A number of steps in words."""
    return f"{number:.0f} step{'' if round(number) == 1 else 's'}"
