"""A second text, mixed into each member's batches sequence by sequence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from objectives.base import GptConfig
from objectives.models.data import BatchStream, mixture_draws

# Shapes: T steps, K members, B sequences, S bytes of a sequence.


class Mixture:
    """Replace a share of each member's sequences by sequences of another text.

    A sequence is replaced if u(seed, step, place in the batch) < share, with u uniform on [0, 1). Of two members with
    one seed, the one with the smaller share has some of the other's replaced sequences, and no others.
    """

    def __init__(
        self, configs: Sequence[GptConfig], device: torch.device, open_stream: Callable[[], BatchStream]
    ) -> None:
        """``open_stream`` reads the other text, and is called once a member needs it."""
        self._shares = [config.mix_share for config in configs]
        self._device = device
        self._stream = functools.cache(open_stream)

    def change(self, acting: Mapping[int, GptConfig]) -> None:
        """Take the new shares of the members in ``acting``, by row."""
        for row, config in acting.items():
            self._shares[row] = config.mix_share

    def apply(
        self, tokens_TKBS: torch.Tensor, cohorts: Sequence[Sequence[tuple[int, int]]], cohort_of_member_K: torch.Tensor
    ) -> torch.Tensor:
        """Return the bytes that each member trains on; ``cohorts`` has a list of (seed, step) for each step."""
        if not any(self._shares):
            return tokens_TKBS
        other_TKBS = self._stream().batches(cohorts[0], len(cohorts))[:, cohort_of_member_K]
        num_sequences = tokens_TKBS.shape[2]
        draws = [torch.stack([mixture_draws(*cohort, num_sequences) for cohort in of_step]) for of_step in cohorts]
        draw_TKB = torch.stack(draws).to(self._device, non_blocking=True)[:, cohort_of_member_K]
        share_K11 = torch.tensor(self._shares, dtype=torch.float64).to(self._device, non_blocking=True)[:, None, None]
        return torch.where(draw_TKB[..., None] < share_K11, other_TKBS, tokens_TKBS)
