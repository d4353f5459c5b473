"""A second text, mixed into each member's batches sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from objectives.models.ahead import STEPS_PER_DRAW, Ahead, Cohorts
from objectives.models.drawn import mixture_draws
from objectives.models.facts.feed import FeedFields
from objectives.stacking import sent

# Shapes: T steps, K members, B sequences, S bytes of a sequence.

Read = Callable[[Cohorts, int, torch.Tensor], torch.Tensor]


class Mixture:
    """Replace a share of each member's sequences by sequences of another text.

    A sequence is replaced if u(seed, step, place in the batch) < share, with u uniform on [0, 1). Of two members with
    one seed, the one with the smaller share has some of the other's replaced sequences, and no others.
    """

    def __init__(self, configs: Sequence[FeedFields], device: torch.device, read: Read) -> None:
        """``read`` returns the bytes of the other text for each member, and is called once one needs it."""
        self._shares = [config.mix_share for config in configs]
        self._device, self._read = device, read
        self._num_sequences = configs[0].batch_size
        self._draws = Ahead(self._draws_ahead, device)
        self.change({})

    def change(self, acting: Mapping[int, FeedFields]) -> None:
        """Take the new shares of the members in ``acting``, by row."""
        for row, config in acting.items():
            self._shares[row] = config.mix_share
        self._share_K11 = sent(torch.tensor(self._shares, dtype=torch.float64)[:, None, None], self._device)

    def apply(self, tokens_TKBS: torch.Tensor, cohorts: Cohorts, cohort_of_member_K: torch.Tensor) -> torch.Tensor:
        """Return the bytes that each member trains on; ``cohorts`` are (seed, step) of the first of the steps."""
        if not any(self._shares):
            return tokens_TKBS
        count = len(tokens_TKBS)
        other_TKBS = self._read(cohorts, count, cohort_of_member_K)
        draw_TKB = self._draws.take(cohorts, count)[:, cohort_of_member_K]
        return torch.where(draw_TKB[..., None] < self._share_K11, other_TKBS, tokens_TKBS)

    def _draws_ahead(self, seed: int, step: int) -> torch.Tensor:
        """Return the draws of a data step and the steps after it, (STEPS_PER_DRAW, B)."""
        steps = range(step, step + STEPS_PER_DRAW)
        return torch.from_numpy(np.stack([mixture_draws(seed, later, self._num_sequences) for later in steps]))
