"""What each member of a pack reads at each step: its texts, their weights and order, and what is corrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from objectives.models.ahead import STEPS_PER_DRAW, Ahead, Cohorts, steps_ahead
from objectives.models.curriculum import Curriculum
from objectives.models.data import (
    BatchStream,
    Corpus,
    Corruption,
    domain_of,
    load_corpus,
)
from objectives.models.drawn import burst_of, domain_bounds, domain_draws
from objectives.models.facts.feed import MIX_READINGS, FeedFields, domain_names
from objectives.models.mixture import Mixture
from objectives.stacking import sent

# Shapes: T steps, K members, B sequences, S bytes of a sequence, D domains.

_NEVER = 2**62  # the step of a shift that never comes


class Feed:
    """The bytes of all members. Which they are is a function of seed, data step and configuration alone."""

    def __init__(self, structure: FeedFields, device: torch.device) -> None:
        self._structure, self._device = structure, device
        self._streams: dict[tuple[str, ...], BatchStream] = {}  # by text, from when a member needs it
        self._data_steps = Ahead(steps_ahead, device)
        self._domain_draws = Ahead(self._draws_ahead, device)
        self.texts = structure.texts

    def set_members(self, configs: Sequence[FeedFields]) -> None:
        """Take the members and their numbers."""
        shares, bursts = [config.corrupted for config in configs], list(map(burst_of, configs))
        self._corruption = Corruption(shares, self._device, bursts)
        shifts = [_NEVER if config.shift_at is None else config.shift_at for config in configs]
        self._first_shift = min(shifts)
        self._shift_K = torch.tensor(shifts, dtype=torch.int64, device=self._device)
        curriculum = Curriculum(configs)
        self._of_documents = curriculum if curriculum.orders_documents else None
        self._of_domains = curriculum if curriculum.orders_domains else None
        self._mixture = Mixture(configs, self._device, self._read_mixture)
        self._bounds = [domain_bounds(config) for config in configs] if self._structure.domains else []
        self._send_bounds()

    def change(self, acting: Mapping[int, FeedFields]) -> None:
        """Take the new numbers of the members in ``acting``, by row."""
        self._mixture.change(acting)
        if self._bounds:
            for row, config in acting.items():
                self._bounds[row] = domain_bounds(config)
            self._send_bounds()

    def tokens(
        self, cohorts_at: Callable[[int], Cohorts], cohort_of_member_K: torch.Tensor, count: int
    ) -> torch.Tensor:
        """Return the bytes of each member in the next ``count`` steps, (T, K, B, S); ``cohorts_at`` counts from now."""
        cohorts = cohorts_at(0)
        tokens_TKBS = self._of_all_domains(cohorts, count, cohort_of_member_K)
        if max(step for _, step in cohorts_at(count - 1)) >= self._first_shift:
            later_TKBS = self._read(self._structure.shift_text, cohorts, count, cohort_of_member_K)
            step_TK = self._data_steps.take(cohorts, count)[:, cohort_of_member_K]
            tokens_TKBS = torch.where((step_TK >= self._shift_K)[..., None, None], later_TKBS, tokens_TKBS)
        tokens_TKBS = self._mixture.apply(tokens_TKBS, cohorts, cohort_of_member_K)
        if not self._corruption.is_possible:
            return tokens_TKBS
        parts = [
            self._corruption.apply(tokens_KBS, cohorts_at(ahead), cohort_of_member_K)
            for ahead, tokens_KBS in enumerate(tokens_TKBS)
        ]
        return torch.stack(parts)

    def stream(self, text: tuple[str, ...]) -> BatchStream:
        """Return the batches of a text, which is read when they are first asked for."""
        if text not in self._streams:
            structure = self._structure
            corpus = load_corpus(text, structure.recipe)
            self._streams[text] = BatchStream(corpus, structure.batch_size, structure.context, self._device)
        return self._streams[text]

    def corpora(self) -> list[Corpus]:
        """Return the text of the members, or each of their domains."""
        return [load_corpus(text, self._structure.recipe) for text in self.texts]

    def readings(self) -> dict[str, Corpus]:
        """Return the texts whose held-out parts have a loss of their own, by the names of the readings."""
        structure = self._structure
        if structure.domains:
            names = domain_names([name for name, _ in structure.domains])
            return {f"domain_loss/{name}": corpus for name, corpus in zip(names, self.corpora(), strict=True)}
        if not structure.mix_text:
            return {}
        return dict(
            zip(MIX_READINGS, [*self.corpora(), load_corpus(structure.mix_text, structure.recipe)], strict=True)
        )

    def describe(self) -> dict[str, str]:
        """Return what is trained on: names, a hash, and how many bytes."""
        corpora = self.corpora()
        hashes = [corpus.sha256 for corpus in corpora]
        return {
            "text": ", ".join(corpus.source for corpus in corpora),
            "text_sha256": hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest(),
            "text_bytes": str(sum(len(corpus.training) + len(corpus.held_out) for corpus in corpora)),
        }

    def _read(
        self, text: tuple[str, ...], cohorts: Cohorts, count: int, cohort_of_member_K: torch.Tensor
    ) -> torch.Tensor:
        return self.stream(text).batches_of(cohorts, count, cohort_of_member_K, self._of_documents)

    def _read_mixture(self, cohorts: Cohorts, count: int, cohort_of_member_K: torch.Tensor) -> torch.Tensor:
        return self._read(self._structure.mix_text, cohorts, count, cohort_of_member_K)

    def _of_all_domains(self, cohorts: Cohorts, count: int, cohort_of_member_K: torch.Tensor) -> torch.Tensor:
        """Return sequences of each member's domains by their shares, or of the one text."""
        tokens_TKBS = self._read(self.texts[0], cohorts, count, cohort_of_member_K)
        if len(self.texts) == 1:
            return tokens_TKBS
        draw_TKB = self._domain_draws.take(cohorts, count)[:, cohort_of_member_K]
        if self._of_domains is not None:
            draw_TKB = self._of_domains.drawn(draw_TKB, cohorts, cohort_of_member_K)
        domain_TKB1 = domain_of(draw_TKB, self._bound_K1D)[..., None]
        for number, text in enumerate(self.texts[1:], 1):
            other_TKBS = self._read(text, cohorts, count, cohort_of_member_K)
            tokens_TKBS = torch.where(domain_TKB1 == number, other_TKBS, tokens_TKBS)
        return tokens_TKBS

    def _send_bounds(self) -> None:
        if self._bounds:
            self._bound_K1D = sent(torch.tensor(self._bounds, dtype=torch.float64)[:, None], self._device)

    def _draws_ahead(self, seed: int, step: int) -> torch.Tensor:
        """Return the draws of a data step and the steps after it, (STEPS_PER_DRAW, B)."""
        steps = range(step, step + STEPS_PER_DRAW)
        draws = [domain_draws(seed, later, self._structure.batch_size) for later in steps]
        return torch.from_numpy(np.stack(draws))
