"""The origin of a batch: the files, and the places in them, of its sequences. Free of torch without a curriculum."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from objectives.models.drawn import (
    POSITIONS_PER_CHUNK,
    burst_of,
    corruption_draw,
    domain_bounds,
    domain_draws,
    mixture_draws,
    positions_of_chunk,
)
from objectives.models.facts.feed import FeedFields
from objectives.models.facts.text import ORDERS, Recipe
from objectives.models.texts import Text, load_text

# Shapes: B sequences.

_EXCERPT_BYTES, _MOST_SEQUENCES = 60, 4  # quoted of a sequence, and listed in one line


@dataclass(frozen=True, slots=True)
class SequenceOrigin:
    """The origin of a sequence in a batch: ``length`` bytes of the training text, starting at byte ``start``.

    This is byte ``offset`` of ``file``, whose trailing line break counts as part of the file. A sequence with
    ``is_cut_short`` crosses the end of the file and continues in the next one. ``excerpt`` is its beginning, on one
    line. If ``is_corrupted``, random bytes replaced the whole sequence; with ``is_noise`` it begins in a document that
    noise replaced.
    """

    start: int
    length: int
    file: str
    offset: int
    excerpt: str
    is_cut_short: bool
    is_corrupted: bool
    is_noise: bool = False


def batch_origin(config: FeedFields, seed: int, step: int) -> list[SequenceOrigin]:
    """Return the origin of each sequence in a batch, found without training.

    ``step`` counts batches of data; after a rollback it is ahead of the member's own step
    (``objectives.base.data_step``), whose numbers ``config`` has. Raises ValueError as ``load_text`` does.
    """
    is_corrupted = corruption_draw(seed, step) < config.corrupted or step in burst_of(config)
    is_shifted = config.shift_at is not None and step >= config.shift_at
    if config.domains and not is_shifted:
        of_domains = [_origins(config, text, seed, step, is_corrupted) for text in config.domain_texts]
        origins = [of_domains[number][b] for b, number in enumerate(_domains_at(config, seed, step))]
    else:
        origins = _origins(config, config.shift_text if is_shifted else config.text, seed, step, is_corrupted)
    if config.mix_share == 0:
        return origins
    mixed = _origins(config, config.mix_text, seed, step, is_corrupted)
    is_mixed = (mixture_draws(seed, step, config.batch_size) < config.mix_share).tolist()
    return [other if is_other else own for own, other, is_other in zip(origins, mixed, is_mixed, strict=True)]


def _domains_at(config: FeedFields, seed: int, step: int) -> list[int]:
    """Return the number of the domain of each sequence in a batch."""
    draw_B = domain_draws(seed, step, config.batch_size)
    if config.curriculum == "domains":
        draw_B = _by_curriculum("drawn", config, seed, step, draw_B)
    return np.searchsorted(domain_bounds(config), draw_B, side="right").tolist()


def _origins(
    config: FeedFields, text: tuple[str, ...], seed: int, step: int, is_corrupted: bool
) -> list[SequenceOrigin]:
    read = _text(text, config.recipe)
    chunk, row = divmod(step, POSITIONS_PER_CHUNK)
    num_starts = len(read.training) - config.context
    start_B = positions_of_chunk(seed, chunk, num_starts, config.batch_size)[row]
    if config.curriculum in ORDERS:
        start_B = _by_curriculum("placed", config, seed, step, start_B, num_starts)
    return [_origin(read, start, config.context + 1, is_corrupted) for start in start_B.tolist()]


def _by_curriculum(way: str, config: FeedFields, seed: int, step: int, values_B: np.ndarray, *more: int) -> np.ndarray:
    """Return where the curriculum moves the places or draws of a batch; imports torch, in which curricula are."""
    import torch

    from objectives.models.curriculum import Curriculum

    moved = getattr(Curriculum([config]), way)
    only_cohort, only_member = [(seed, step)], torch.zeros(1, dtype=torch.int64)
    return moved(torch.from_numpy(values_B)[None, None], *more, only_cohort, only_member)[0, 0].numpy()


@functools.lru_cache(maxsize=4)
def _text(text: tuple[str, ...], recipe: Recipe) -> Text:
    return load_text(text, recipe)


def _origin(text: Text, start: int, length: int, is_corrupted: bool) -> SequenceOrigin:
    documents, names = text.documents, text.names
    index = int(np.searchsorted(documents.start_D, start, side="right")) - 1
    inside = start - int(documents.start_D[index])
    offset = int(documents.offset_D[index]) + inside
    excerpt = bytes(text.training[start : start + min(length, _EXCERPT_BYTES)].tolist()).decode(errors="replace")
    is_cut_short = inside + length > documents.size_D[index]
    file, is_noise = names[documents.source_D[index]], bool(documents.is_noise_D[index])
    return SequenceOrigin(start, length, file, offset, " ".join(excerpt.split()), is_cut_short, is_corrupted, is_noise)


def batch_text(config: FeedFields, seed: int, step: int) -> str:
    """Return the origin of a batch in one line: "bytes 10,231-10,263 of json/decoder.py, ... and 4 more sequences".

    The bytes are the context and the last target. Raises as ``batch_origin`` does.
    """
    origins = batch_origin(config, seed, step)
    spans = ", ".join(_span(origin) for origin in origins[:_MOST_SEQUENCES])
    num_more = len(origins) - _MOST_SEQUENCES
    more = f" and {num_more} more sequence{'s' if num_more > 1 else ''}" if num_more > 0 else ""
    return spans + more + (", replaced by random bytes" if origins[0].is_corrupted else "")


def _span(origin: SequenceOrigin) -> str:
    noise = " (noise)" if origin.is_noise else ""
    if origin.is_cut_short:
        return f"bytes {origin.offset:,} to the end of {origin.file} and on{noise}"
    return f"bytes {origin.offset:,}-{origin.offset + origin.length - 1:,} of {origin.file}{noise}"
