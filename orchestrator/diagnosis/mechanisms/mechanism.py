"""What a mechanism is: everything that is known of one way in which training becomes unstable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.diagnosis.evidence import Evidence
from orchestrator.diagnosis.mechanisms.finding import Finding, MakeFinding, finding_for
from orchestrator.diagnosis.mechanisms.moves import Move

# A setting, and the values of a small sweep whose cells would tell.
Probe = tuple[str, Sequence[Any]]


def no_probe(evidence: Evidence) -> Probe | None:
    """No cell would tell."""
    return None


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A way in which training becomes unstable.

    ``find`` looks for it in the evidence, and makes its findings with the function that it is given. ``label`` and
    ``colour`` are those of a cell of a map that it rules; a short label tells mechanisms apart without colour.
    ``moves`` are what may help against it, the best first. ``probe`` says which cells would tell where the evidence
    is not enough. A ``is_companion`` goes with an instability and is not the cause of one.
    """

    key: str
    title: str
    find: Callable[[Evidence, MakeFinding], Finding]
    label: str
    colour: str
    moves: tuple[Move, ...]
    probe: Callable[[Evidence], Probe | None] = no_probe
    is_companion: bool = False

    def look(self, evidence: Evidence) -> Finding:
        """What the evidence says of it."""
        return self.find(evidence, finding_for(self.key, evidence))
