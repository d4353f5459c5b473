"""What cohorts need at each step from the host, drawn and sent to the device for many steps at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from objectives.stacking import sent

# Shapes: S cohorts, N steps.

STEPS_PER_DRAW = 32
Cohorts = Sequence[tuple[int, int]]  # seed and step of each


class Ahead:
    """Values that are a function of seed and step, on the device: ``STEPS_PER_DRAW`` steps of all cohorts at once.

    ``values(seed, step)`` returns the values at ``step`` and the steps after it, (N, ...). Each draw calls
    ``after_draw`` with its cohorts.
    """

    def __init__(
        self,
        values: Callable[[int, int], torch.Tensor],
        device: torch.device,
        after_draw: Callable[[Cohorts], None] = lambda cohorts: None,
    ) -> None:
        self._values, self._device, self._after_draw = values, device, after_draw
        self._drawn_for: list[tuple[int, int]] = []

    def take(self, cohorts: Cohorts, count: int = 1) -> torch.Tensor:
        """Return the values for each (seed, step) and the steps after it, (``count``, S, ...)."""
        pieces, missing = [], count
        while missing:
            first = self._offset([(seed, step + count - missing) for seed, step in cohorts])
            pieces.append(self._values_SN[:, first : first + missing])
            missing -= pieces[-1].shape[1]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)).transpose(0, 1)

    def _offset(self, cohorts: Cohorts) -> int:
        """Return where ``cohorts`` are among the drawn steps, after drawing them if they are not."""
        first = cohorts[0][1] - self._drawn_for[0][1] if self._drawn_for else -1
        expected = [(seed, step + first) for seed, step in self._drawn_for]
        if not 0 <= first < STEPS_PER_DRAW or expected != list(cohorts):
            drawn = [self._values(seed, step) for seed, step in cohorts]
            self._values_SN, self._drawn_for, first = sent(torch.stack(drawn), self._device), list(cohorts), 0
            self._after_draw(cohorts)
        return first


def steps_ahead(seed: int, step: int) -> torch.Tensor:
    """Return a data step and the steps after it, int64 (N,)."""
    return torch.arange(step, step + STEPS_PER_DRAW)
