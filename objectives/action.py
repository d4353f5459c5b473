"""What a training loop of the user's own should do at a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["none", "change", "skip", "rollback", "stop"]


@dataclass(frozen=True, slots=True)
class Action:
    """What a training loop should do with the update that follows the report of ``step``; true if it should stop.

    ``kind`` is the strongest thing that happens now. ``factor``, of the learning rate, and ``clip``, the largest
    gradient norm, hold for this update, whether or not a rule fired at this step. With ``skip`` the update is left out.
    With ``rollback_to`` it is too, and the loop returns to its newest checkpoint at or before that step. ``reason``
    says why a rule fired or the run is lost, ``words`` is a line for a log; both are empty at other steps.
    """

    step: int
    kind: Kind = "none"
    factor: float = 1.0
    clip: float | None = None
    skip: bool = False
    rollback_to: int | None = None
    reason: str = ""
    words: str = ""

    def __bool__(self) -> bool:
        """Return whether the run should stop."""
        return self.kind == "stop"
