"""The training of a custom objective on text: it reads what `gpt` reads."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch

from objectives.base import ExecutionPlan
from objectives.models.data import Corpus, held_out_batches
from objectives.models.facts.feed import FeedFields
from objectives.models.feed import Feed
from objectives.models.gpt_knobs import context_lengths
from objectives.models.origins import batch_text
from objectives.optimizers.packed_optimizer import Rows
from objectives.stacking import sent
from objectives.training.packed import PackedTrainer, Weights

__all__ = ["TextTrainer", "batch_text"]

# Shapes: K members, R of them; B sequences, T bytes of context, S = T + 1.

Config = TypeVar("Config", bound=FeedFields)


class TextTrainer(PackedTrainer[Config]):
    """A pack that trains on the fields of ``FeedFields``: texts, dirt, duplicates, filters, domains and curricula.

    A subclass provides ``initial_weights`` and ``byte_losses``. With a curriculum of lengths the loss is of the first
    bytes of each sequence (as in arXiv 2108.06084), where `gpt` cuts sequences into blocks.
    """

    _drawn: tuple[int, torch.Tensor] | None = None  # a step of the pack, and its bytes

    def __init__(self, configs: Sequence[Config], seeds: Sequence[int], device: str, plan: ExecutionPlan) -> None:
        self._feed = Feed(configs[0], torch.device(device))
        super().__init__(configs, seeds, device, plan)

    @abstractmethod
    def byte_losses(self, weights: Weights, tokens_BS: torch.Tensor) -> torch.Tensor:
        """Return one member's loss of each byte but the first of its sequences, (B, T), in nats."""

    def tokens(self) -> torch.Tensor:
        """Return the bytes of each member at this step, int64 (K, B, S): the same at each call within a step."""
        if self._drawn is None or self._drawn[0] != self.num_steps:
            tokens_TKBS = self._feed.tokens(self.cohorts, self.cohort_of_member_K, 1)
            self._drawn = self.num_steps, tokens_TKBS[0]
        return self._drawn[1]

    def losses(self) -> torch.Tensor:
        """Return each member's mean loss on its own sequences, (K,)."""
        if not self._cuts:
            return self.of_each_member(self._mean_loss, self.tokens())
        start_K, end_K, steps_K = self._lengths_3K
        length_K = context_lengths(start_K, steps_K, self.optimizer.step_K, end_K)
        return self.of_each_member(self._mean_loss_of_first, self.tokens(), length_K)

    def _mean_loss(self, weights: Weights, tokens_BS: torch.Tensor) -> torch.Tensor:
        return self.byte_losses(weights, tokens_BS).mean()

    def _mean_loss_of_first(self, weights: Weights, tokens_BS: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        loss_BT = self.byte_losses(weights, tokens_BS)
        is_trained_T = torch.arange(loss_BT.shape[1], device=loss_BT.device) < length
        return torch.where(is_trained_T, loss_BT, 0.0).sum() / (length * len(loss_BT))

    def members_changed(self) -> None:
        """Take the numbers of the current members."""
        self._feed.set_members(self.configs)
        lengths = [config.lengths for config in self.configs]
        self._lengths_3K = torch.tensor(lengths, dtype=torch.int64, device=self.device).T
        self._cuts = any(min(start, end) < self.structure.context for start, end, _ in lengths)
        self._drawn = None

    def numbers_changed(self, acting: Mapping[int, Config]) -> None:
        """Take the shares of texts that an intervention or a rule has changed."""
        self._feed.change(acting)
        self._drawn = None

    @torch.no_grad()
    def own_readings(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Return the loss of ``rows`` on the held-out part of each text, if there are several."""
        return {name: self._held_out_loss(corpus)[rows] for name, corpus in self._feed.readings().items()}

    @torch.no_grad()
    def validate(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the loss of ``rows`` on held-out text; with several domains the mean of their losses."""
        losses = [self._held_out_loss(corpus) for corpus in self._feed.corpora()]
        return (functools.reduce(torch.add, losses) / len(losses))[list(rows)]

    def _held_out_loss(self, corpus: Corpus) -> torch.Tensor:
        structure = self.structure
        batches = held_out_batches(corpus, structure.validation_batches, structure.batch_size, structure.context)
        tokens = (sent(tokens_BS, self.device).expand(self.num_members, -1, -1) for tokens_BS in batches)
        # One by one: torch's sum over a stack orders batches by how many members there are.
        losses = (self.of_each_member(self._mean_loss, tokens_KBS) for tokens_KBS in tokens)
        return functools.reduce(torch.add, losses) / structure.validation_batches

    def describe(self) -> Mapping[str, str]:
        """Return the text that was trained on."""
        return self._feed.describe()
