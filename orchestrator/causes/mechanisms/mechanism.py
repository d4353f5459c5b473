"""A mechanism: all facts about one way in which training becomes unstable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.finding import Finding, MakeFinding, finding_for
from orchestrator.causes.mechanisms.moves import Move

# A setting, and the values of a small sweep whose cells would decide.
Probe = tuple[str, Sequence[Any]]


def no_probe(evidence: Evidence) -> Probe | None:
    """No cell would decide."""
    return None


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A way in which training becomes unstable.

    ``find`` looks for it in the evidence, and creates its findings with the function passed to it. ``label`` and
    ``colour`` mark the cells of a map that it rules; a short label distinguishes mechanisms without colour. ``moves``
    are possible remedies, the best first. ``probe`` names cells that would decide where the evidence does not suffice.
    A mechanism with ``is_companion`` accompanies an instability and is not a cause.
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
        """Its finding on the evidence."""
        return self.find(evidence, finding_for(self.key, evidence))
