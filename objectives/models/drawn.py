"""What chance decides of a batch, as a function of seed and step: places in the text, domains, and corruption.

Free of torch, so that a diagnosis finds a batch without it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from objectives.draws import integers, uniforms
from objectives.models.facts.feed import FeedFields

POSITIONS_PER_CHUNK = 256  # steps whose sequences are drawn at once
# A seed's streams, which must not overlap: for the text, the corrupted steps, their random bytes, the mixture, domains.
_BATCH_PURPOSE, _CORRUPTION_PURPOSE, _RANDOM_BYTES_PURPOSE, _MIXTURE_PURPOSE, _DOMAIN_PURPOSE = 1, 8, 9, 14, 15


def positions_of_chunk(seed: int, chunk: int, num_starts: int, batch_size: int) -> np.ndarray:
    """Return the start of each sequence for the steps of one chunk, int64 (POSITIONS_PER_CHUNK, B)."""
    return integers(num_starts, (POSITIONS_PER_CHUNK, batch_size), seed, _BATCH_PURPOSE, chunk)


def corruption_draw(seed: int, step: int) -> float:
    """Return u(seed, step), uniform on [0, 1): a member's batch is corrupted if this is below its share."""
    chunk, offset = divmod(step, POSITIONS_PER_CHUNK)
    return _corruption_draws(seed, chunk)[offset]


@functools.lru_cache(maxsize=4096)
def _corruption_draws(seed: int, chunk: int) -> tuple[float, ...]:
    return tuple(uniforms(POSITIONS_PER_CHUNK, seed, _CORRUPTION_PURPOSE, chunk).tolist())


def burst_of(config: FeedFields) -> range:
    """Return the steps of a member's burst of corrupted batches; empty without one."""
    return range(0) if config.burst_at is None else range(config.burst_at, config.burst_at + config.burst_length)


def random_bytes(seed: int, step: int, size: Sequence[int]) -> np.ndarray:
    """Return the bytes of a corrupted batch, uint8 of shape ``size``."""
    return integers(256, size, seed, _RANDOM_BYTES_PURPOSE, step).astype(np.uint8)


def mixture_draws(seed: int, step: int, num_sequences: int) -> np.ndarray:
    """Return u(seed, step, b), uniform on [0, 1): sequence b is of ``mix_text`` if this is below the member's share."""
    return uniforms(num_sequences, seed, _MIXTURE_PURPOSE, step)


def domain_draws(seed: int, step: int, num_sequences: int) -> np.ndarray:
    """Return u(seed, step, b), uniform on [0, 1): sequence b is of the domain whose part of the shares has it."""
    return uniforms(num_sequences, seed, _DOMAIN_PURPOSE, step)


def domain_bounds(config: FeedFields) -> list[float]:
    """Return the summed shares of a member's domains, but for the last one."""
    return list(itertools.accumulate(config.domain_shares))[:-1]
