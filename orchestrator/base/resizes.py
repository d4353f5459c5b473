"""Events of elastic trials: a restart from a checkpoint with another number of processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

FACT = "restart"  # of an attempt that resumed an elastic trial; a list has those of earlier attempts, too


@dataclass(frozen=True, slots=True)
class Resize:
    """A trial went on after ``step`` with ``after`` processes, where ``before`` had shared its batches."""

    trial_id: str
    step: int
    before: int
    after: int

    @property
    def change(self) -> str:
        """The change, for a curve."""
        return f"workers {self.before} to {self.after}"

    @property
    def facts(self) -> dict[str, str]:
        """The restart as a fact of its attempt, which is in the ledger."""
        return {FACT: json.dumps(asdict(self))}


def facts_of(restarts: Iterable[Resize]) -> dict[str, str]:
    """Return all restarts of a trial so far as a fact of its last attempt."""
    return {FACT: json.dumps([asdict(restart) for restart in restarts])}


def in_curve(restarts: Iterable[Resize], before: int) -> list[Resize]:
    """Return the ``restarts`` that losses before step ``before`` followed."""
    return [restart for restart in restarts if restart.step < before]


def resizes_in(attempts: Iterable[Mapping[str, str]], trial_id: str) -> list[Resize]:
    """Return the changes in a trial's curve, by the facts of its attempts, the oldest first.

    Each attempt resumed the one before. What an attempt trained after its last checkpoint is not in the curve, so a
    restart is forgotten if the next one begins at the same step.
    """
    restarts: list[Resize] = []
    for facts in attempts:
        known = json.loads(facts.get(FACT, "[]"))
        for numbers in known if isinstance(known, list) else [known]:
            if (restart := Resize(**numbers)).trial_id == trial_id:
                restarts = [*in_curve(restarts, restart.step), restart]
    return [restart for restart in restarts if restart.before != restart.after]
