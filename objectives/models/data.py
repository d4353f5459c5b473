"""Text corpora, and the batches that members draw from them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from objectives.models.ahead import STEPS_PER_DRAW, Ahead, Cohorts
from objectives.models.curriculum import Curriculum
from objectives.models.drawn import POSITIONS_PER_CHUNK, corruption_draw, positions_of_chunk, random_bytes
from objectives.models.facts.feed import FeedFields
from objectives.models.facts.text import Recipe
from objectives.models.texts import StoredBytes, load_text
from objectives.stacking import sent

# Shapes: K members, S cohorts, N steps, B sequences, T context length, D domains.

_LARGEST_FLOAT32 = 2**24  # below it every integer is a float32


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and held-out bytes: both 1-D uint8 tensors on the CPU, or on disk."""

    training: torch.Tensor | StoredBytes
    held_out: torch.Tensor | StoredBytes
    source: str
    sha256: str


@functools.lru_cache(maxsize=4)
def load_corpus(text: tuple[str, ...], recipe: Recipe = Recipe()) -> Corpus:
    """Read ``text`` (files, folders or globs), or the source of Python's standard library if empty.

    The last tenth of the bytes is held out; ``recipe`` makes what is trained on from the rest. Raises ValueError if a
    pattern matches no file, a file cannot be read, or there is too little text.
    """
    read = load_text(text, recipe)
    training, held_out = (
        each if isinstance(each, StoredBytes) else torch.from_numpy(each) for each in (read.training, read.held_out)
    )
    return Corpus(training, held_out, read.source, read.sha256)


def sequences(text: torch.Tensor | StoredBytes, starts: torch.Tensor, length: int) -> torch.Tensor:
    """Return ``length`` bytes of a text from each of ``starts`` on, int64; ``starts`` are where the text is."""
    if isinstance(text, StoredBytes):
        return torch.from_numpy(text.sequences(starts.numpy(), length)).long()
    return text[starts[..., None] + torch.arange(length, device=starts.device)].long()


class BatchStream:
    """Random sequences for cohorts. A cohort's batch depends only on its seed and step."""

    def __init__(self, corpus: Corpus, batch_size: int, context: int, device: torch.device):
        self.batch_size, self.context = batch_size, context
        self._device = device
        self._reads_on = torch.device("cpu") if isinstance(corpus.training, StoredBytes) else device
        self._tokens = corpus.training if isinstance(corpus.training, StoredBytes) else corpus.training.to(device)
        if len(self._tokens) <= context + 1 or len(corpus.held_out) <= context + 1:
            raise ValueError(f"text {corpus.source} is too short for context = {context}")
        self._chunk_of: dict[tuple[int, int], torch.Tensor] = {}
        self._positions_ahead = Ahead(self._positions, self._reads_on, self._forget_chunks)

    def batch(self, cohorts: Cohorts) -> torch.Tensor:
        """Return the bytes for each (seed, step), int64 of shape (S, B, T + 1): inputs, and targets shifted by one."""
        return self.batches(cohorts, 1)[0]

    def batches(self, cohorts: Cohorts, count: int) -> torch.Tensor:
        """Return the bytes for each (seed, step) and the steps after it, int64 of shape (``count``, S, B, T + 1)."""
        return self._read(self._positions_ahead.take(cohorts, count))

    def batches_of(
        self, cohorts: Cohorts, count: int, cohort_of_member_K: torch.Tensor, curriculum: Curriculum | None
    ) -> torch.Tensor:
        """Return what each member reads in ``count`` steps, (``count``, K, B, T + 1), by its ``curriculum``."""
        if curriculum is None:
            return self.batches(cohorts, count)[:, cohort_of_member_K]
        cohort_of_member_K = curriculum.index_on(self._reads_on, cohort_of_member_K)
        positions_NKB = self._positions_ahead.take(cohorts, count)[:, cohort_of_member_K]
        num_starts = len(self._tokens) - self.context
        return self._read(curriculum.placed(positions_NKB, num_starts, cohorts, cohort_of_member_K))

    def _read(self, positions: torch.Tensor) -> torch.Tensor:
        found = sequences(self._tokens, positions, self.context + 1)
        return found if self._reads_on == self._device else sent(found, self._device)

    def _forget_chunks(self, cohorts: Cohorts) -> None:
        current = {(seed, step // POSITIONS_PER_CHUNK) for seed, step in cohorts}
        self._chunk_of = {key: chunk for key, chunk in self._chunk_of.items() if key in current}

    def _positions(self, seed: int, step: int) -> torch.Tensor:
        """Return the start of each sequence for ``step`` and the steps after it, (N, B)."""
        chunk, offset = divmod(step, POSITIONS_PER_CHUNK)
        pieces = [self._chunk(seed, chunk)[offset : offset + STEPS_PER_DRAW]]
        if len(pieces[0]) < STEPS_PER_DRAW:
            pieces.append(self._chunk(seed, chunk + 1)[: STEPS_PER_DRAW - len(pieces[0])])
        return torch.cat(pieces)

    def _chunk(self, seed: int, chunk: int) -> torch.Tensor:
        if (seed, chunk) not in self._chunk_of:
            num_starts = len(self._tokens) - self.context
            self._chunk_of[seed, chunk] = torch.from_numpy(positions_of_chunk(seed, chunk, num_starts, self.batch_size))
        return self._chunk_of[seed, chunk]


class Corruption:
    """Replace a share of each member's batches, or a burst of batches, by random bytes, both inputs and targets.

    A whole batch is corrupted if u(seed, step) < share, with u uniform on [0, 1), and during a burst. Of two members
    with one seed, the one with the smaller share gets a subset of the other's corrupted batches, at the same steps and
    with the same bytes. Except by chance, a model cannot predict random bytes with a mean loss below log 256, so a
    trained model shows a spike of known cause. Does nothing at a step without a corrupted batch, and never waits for
    the device.
    """

    def __init__(self, shares: Sequence[float], device: torch.device, bursts: Sequence[range] = ()) -> None:
        """``shares`` are the fractions of each member's batches to corrupt; ``bursts`` are the steps of its burst."""
        self._largest_share = max(shares)
        self._share_K = torch.tensor(shares, dtype=torch.float64, device=device)
        bursts = bursts or [range(0)] * len(shares)
        self._bursts = [burst for burst in dict.fromkeys(bursts) if len(burst)]
        self.is_possible = self._largest_share > 0 or bool(self._bursts)
        ends = [(burst.start, burst.stop) for burst in bursts]
        self._burst_K2 = torch.tensor(ends, dtype=torch.int64, device=device)
        self._draws = Ahead(_draws_and_steps, device)

    def apply(self, tokens_KBS: torch.Tensor, cohorts: Cohorts, cohort_of_member_K: torch.Tensor) -> torch.Tensor:
        """Return the bytes that each member trains on, with S = T + 1 per sequence; ``cohorts`` are (seed, step)."""
        in_burst = [any(step in burst for burst in self._bursts) for _, step in cohorts]
        if self._largest_share == 0 and not any(in_burst):
            return tokens_KBS
        draws = [corruption_draw(seed, step) for seed, step in cohorts]
        may_be = [draw < self._largest_share or is_in for draw, is_in in zip(draws, in_burst, strict=True)]
        if not any(may_be):
            return tokens_KBS
        size, device = tokens_KBS.shape[1:], tokens_KBS.device
        nothing_BS = torch.zeros(size, dtype=torch.uint8)
        random_SBS = torch.stack(
            [
                torch.from_numpy(random_bytes(seed, step, size)) if is_possible else nothing_BS
                for (seed, step), is_possible in zip(cohorts, may_be, strict=True)
            ]
        )
        random_SBS, (draw_K, step_K) = sent(random_SBS, device), self._draws.take(cohorts)[0, cohort_of_member_K].T
        is_in_burst_K = (step_K >= self._burst_K2[:, 0]) & (step_K < self._burst_K2[:, 1])
        is_corrupted_K11 = ((draw_K < self._share_K) | is_in_burst_K)[:, None, None]
        return torch.where(is_corrupted_K11, random_SBS[cohort_of_member_K].to(tokens_KBS.dtype), tokens_KBS)


def _draws_and_steps(seed: int, step: int) -> torch.Tensor:
    """Return u(seed, t) and t for a data step and the steps after it, float64 (STEPS_PER_DRAW, 2)."""
    steps = range(step, step + STEPS_PER_DRAW)
    return torch.tensor([(corruption_draw(seed, later), later) for later in steps], dtype=torch.float64)


def domain_of(draw: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Return the number of the domain of each draw, int64; ``bounds`` are the summed shares, but for the last one."""
    return (draw[..., None] >= bounds).sum(-1)


def held_out_batches(corpus: Corpus, num_batches: int, batch_size: int, context: int) -> torch.Tensor:
    """Return evenly spaced held-out sequences, the same for all members: int64 (num_batches, B, T + 1)."""
    last = len(corpus.held_out) - context - 1
    kind = torch.float32 if last < _LARGEST_FLOAT32 else torch.float64  # the latter changes the places in short texts
    starts = torch.linspace(0, last, num_batches * batch_size, dtype=kind).long()
    tokens = sequences(corpus.held_out, starts, context + 1)
    return tokens.view(num_batches, batch_size, context + 1)


def validation_sequences(config: FeedFields) -> torch.Tensor:
    """Return the sequences whose mean loss is the validation loss, int64 (D, N, T + 1): N of each domain or the text.

    Raises ValueError as ``load_corpus`` does.
    """
    size = (config.validation_batches, config.batch_size, config.context)
    return torch.stack(
        [held_out_batches(load_corpus(text, config.recipe), *size).flatten(0, 1) for text in config.texts]
    )
