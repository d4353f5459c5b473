"""The replicates of one remedy from one fork step: how many it saved, and their loss."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.base.intervals import exact_interval
from orchestrator.base.query import hidden, reported
from orchestrator.causes.remedies.remedy import Remedy

_LONGEST_LOSS = 6  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The replicates of one remedy from one fork step.

    ``saved`` replicates are stable and learned at least half of what the best fork did; ``recovered`` ones left their
    trend and came back. ``final_loss`` is the median over the replicates, None if half ended without a finite loss.
    ``own_loss`` is the final loss of the replicate with the original's data, and ``own_passed`` says whether it was
    still on its trend when the original's first spike was over, None if that spike never ended. ``spent_steps`` were
    trained after the fork. ``different`` counts replicates that ended differently: 1 if the data play no part in
    training. ``outcomes`` counts the replicates by their label. Replicates that are ``fresh`` chose nothing.
    """

    remedy: Remedy = hidden()
    fork_step: int
    tried: int
    saved: int
    recovered: int
    final_loss: float | None
    own_loss: float | None
    spent_steps: int
    different: int = hidden()
    own_passed: bool | None
    outcomes: Mapping[str, int]
    is_fresh: bool = hidden(default=False)

    @reported
    def name(self) -> str:
        """The name of the remedy."""
        return self.remedy.name

    @reported
    def low(self) -> float:
        """The lower end of the exact 95 % interval of ``share``."""
        return exact_interval(self.saved, self.tried)[0]

    @reported
    def high(self) -> float:
        """The upper end of the exact 95 % interval of ``share``."""
        return exact_interval(self.saved, self.tried)[1]

    @property
    def share(self) -> float:
        """The share of the replicates that it saved, 0 to 1."""
        return self.saved / self.tried

    @property
    def counts(self) -> str:
        """Saved of tried, and with a plus the replicates that left the trend and came back: ``2/3+1``."""
        return f"{self.saved}/{self.tried}" + (f"+{self.recovered}" if self.recovered else "")

    @property
    def saves_all(self) -> bool:
        """Whether it saved every replicate."""
        return self.saved == self.tried

    @property
    def comparable_loss(self) -> float:
        """The final loss, infinite if it is not finite."""
        return math.inf if self.final_loss is None else self.final_loss

    @property
    def short_loss(self) -> str:
        """The final loss in at most six characters if it is positive, such as 2.41 or 6.3e-4; empty without one."""
        if self.final_loss is None:
            return ""
        text = f"{self.final_loss:.3g}"
        if len(text) > _LONGEST_LOSS:
            text = re.sub(r"e([+-])0*", r"e\1", f"{self.final_loss:.1e}").replace("e+", "e")
        return text
