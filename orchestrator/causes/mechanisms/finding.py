"""The finding of a mechanism about one trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from orchestrator.causes.evidence import Evidence
from orchestrator.maps.neighbours import Neighbour

NOT_MEASURED = "the curvature was not measured"

Verdict = Literal["supported", "excluded", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the evidence supports or excludes a mechanism, or does not suffice: ``unknown``.

    ``reason`` is a sentence without a full stop; ``numbers`` are measurements, in words. ``began_step`` is the start of
    the mechanism's effect, if it had one; ``onset_step`` is that of the trial.
    """

    mechanism: str
    verdict: Verdict
    reason: str
    numbers: tuple[str, ...] = ()
    began_step: int | None = None
    onset_step: int | None = None

    @property
    def when(self) -> str:
        """When it began relative to the onset, in words; empty if it did not."""
        if self.began_step is None:
            return ""
        if self.onset_step is None:
            return f"from step {self.began_step} on"
        lead = self.onset_step - self.began_step
        relative = "at the onset" if lead == 0 else f"{steps(abs(lead))} {'before' if lead > 0 else 'after'} the onset"
        return f"from step {self.began_step} on, {relative}"


class MakeFinding(Protocol):
    """Creates findings of one mechanism on one trial's evidence."""

    def __call__(
        self, verdict: Verdict, reason: str, numbers: list[str] | None = None, began: int | None = None
    ) -> Finding:
        """The finding, with measurements and the step at which it began."""


def finding_for(key: str, evidence: Evidence) -> MakeFinding:
    """The function that creates findings of the mechanism ``key`` on this evidence."""

    def make(verdict: Verdict, reason: str, numbers: list[str] | None = None, began: int | None = None) -> Finding:
        return Finding(key, verdict, reason, tuple(numbers or ()), began, evidence.onset)

    return make


def seeds_text(cell: Neighbour) -> str:
    """How many seeds of a cell are stable, in words."""
    return f"{cell.num_stable} of {cell.num_finished} seeds stable"


def steps(number: float) -> str:
    """A number of steps in words."""
    return f"{number:.0f} step{'' if round(number) == 1 else 's'}"
