"""Steps of K runs whose numbers are not finite, that a loss scaler skipped, and the time that they waited for data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

# Shapes: T steps of an update, K members.

WINDOW = 100  # last steps of a share
TIMES = ("data_time", "step_time")  # columns of trainers that measure them: seconds of a step


@dataclass(slots=True)
class Counts:
    """What one run has had so far. ``skipped`` is None without a loss scaler."""

    num_steps: int = 0
    nonfinite: int = 0
    recent: list[int] = field(default_factory=list)  # steps of the last window that were not finite
    skipped: int | None = None
    data_s: float = 0.0
    step_s: float = 0.0

    @property
    def nonfinite_share(self) -> float | None:
        """Share of the last steps whose loss or gradient norm was not finite; None before the first step."""
        first = self.num_steps - WINDOW
        return sum(step >= first for step in self.recent) / min(WINDOW, self.num_steps) if self.num_steps else None

    @property
    def data_share(self) -> float | None:
        """Share of the steps' time that they waited for data; None if it was not measured."""
        return self.data_s / self.step_s if self.step_s else None


class Counters:
    """The counts of each run."""

    def __init__(self, num_members: int) -> None:
        self._counts = [Counts() for _ in range(num_members)]

    def follow(self, columns: Mapping[str, np.ndarray], length_K: np.ndarray) -> None:
        """Take the next steps of each run, (T, K) each column; only the first ``length_K`` count."""
        is_there_TK = np.arange(len(columns["loss"]))[:, None] < length_K
        is_bad_TK = ~np.isfinite(columns["loss"])
        if "grad_norm" in columns:
            is_bad_TK |= ~np.isfinite(columns["grad_norm"])
        for t, k in np.argwhere(is_bad_TK & is_there_TK).tolist():
            counts = self._counts[k]
            counts.nonfinite += 1
            counts.recent = [*counts.recent[1 - WINDOW :], counts.num_steps + t]
        sums = {
            name: np.where(is_there_TK, np.nan_to_num(columns[name]), 0).sum(0)
            for name in ("is_skipped", *TIMES)
            if name in columns
        }
        for k, counts in enumerate(self._counts):
            counts.num_steps += int(length_K[k])
            if "is_skipped" in sums:
                counts.skipped = (counts.skipped or 0) + int(sums["is_skipped"][k])
            if all(name in sums for name in TIMES):
                counts.data_s += float(sums["data_time"][k])
                counts.step_s += float(sums["step_time"][k])

    def of(self, member: int) -> Counts:
        """Return a copy of the counts of ``member``."""
        return copy(self._counts[member])  # its list is replaced, never changed

    @property
    def num_nonfinite(self) -> int:
        """Runs with a number in their last steps that was not finite."""
        return sum(bool(counts.nonfinite_share) for counts in self._counts)

    def arrange(self, rows: Sequence[int | None]) -> None:
        """Continue with the members in ``rows``; None starts a new one, and a repeated row continues as two."""
        self._counts = [Counts() if row is None else copy(self._counts[row]) for row in rows]

    def state_dict(self) -> list[dict[str, Any]]:
        """Return plain values for a checkpoint."""
        return [asdict(counts) for counts in self._counts]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continue from a ``state_dict`` of as many members."""
        self._counts = [Counts(**{**values, "recent": list(values["recent"])}) for values in state]
