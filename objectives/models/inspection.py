"""What is in a text: its documents, duplicates, and the least typical ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from objectives.models.documents import Documents, contents
from objectives.models.duplicates import first_equal, first_near
from objectives.models.facts.text import RECIPE_FIELDS, Recipe
from objectives.models.files import Source, named_files, opened
from objectives.models.quality import compression_ratio, unigram_perplexity, untypical
from objectives.models.texts import MOST_IN_MEMORY, prepared

MOST_EXAMINED = 500_000  # documents or lines; each takes half a kilobyte of memory
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Level:
    """Duplicates among the documents of a text or among its lines; shares are of the examined bytes.

    A duplicate is what equals or is near an earlier one, and what deduplication would take out.
    """

    level: Literal["document", "line"]
    num: int
    num_examined: int
    num_exact: int
    num_near: int
    exact_share: float
    near_share: float


@dataclass(frozen=True, slots=True)
class Scores:
    """A score of documents: the 5th, 50th and 95th percentile."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Untypical:
    """A document far from others of its length: compressed length over length, and perplexity of its words."""

    file: str
    offset: int
    size: int
    compression: float
    perplexity: float


@dataclass(frozen=True, slots=True)
class TextReport:
    """The training part of one text, as its recipe leaves it."""

    text: str
    recipe: dict[str, str | float]
    num_files: int
    num_bytes: int
    levels: tuple[Level, ...]
    compression: Scores
    perplexity: Scores
    untypical: tuple[Untypical, ...]


def inspected(text: Sequence[str], recipe: Recipe) -> TextReport:
    """Return what is in a text. Raises ValueError for one that cannot be trained on."""
    named, source = named_files(text)
    sources = opened(named, MOST_IN_MEMORY)
    documents = prepared(sources, recipe, source).training
    examined = documents.at(slice(MOST_EXAMINED))

    def read() -> Iterator[bytes]:
        return contents(sources, examined, recipe.noise_kind)

    compression_D, perplexity_D = compression_ratio(read), unigram_perplexity(read)
    return TextReport(
        source,
        {name: getattr(recipe, name) for name in RECIPE_FIELDS[1:] if getattr(recipe, name) != getattr(Recipe(), name)},
        len(sources),
        documents.num_bytes,
        (_level("document", len(documents), examined.size_D, read), _of_lines(sources, documents, recipe)),
        Scores(*np.percentile(compression_D, [5, 50, 95]).tolist()),
        Scores(*np.percentile(perplexity_D, [5, 50, 95]).tolist()),
        _least_typical(sources, examined, compression_D, perplexity_D),
    )


def _of_lines(sources: Sequence[Source], documents: Documents, recipe: Recipe) -> Level:
    def lines() -> Iterator[bytes]:
        for content in contents(sources, documents, recipe.noise_kind):
            yield from content.splitlines()

    def read() -> Iterator[bytes]:
        return itertools.islice(lines(), MOST_EXAMINED)

    every = lines()
    size_D = np.fromiter(map(len, itertools.islice(every, MOST_EXAMINED)), dtype=np.int64)
    return _level("line", len(size_D) + sum(1 for _ in every), size_D, read)


def _level(
    level: Literal["document", "line"], num: int, size_D: np.ndarray, read: Callable[[], Iterator[bytes]]
) -> Level:
    is_first_D = first_equal(read()) == np.arange(len(size_D))
    # Only the first of equal documents are compared further.
    near = first_near(itertools.compress(read(), is_first_D.tolist()))
    is_alone_D = is_first_D.copy()
    is_alone_D[is_first_D] = near == np.arange(len(near))
    total = max(int(size_D.sum()), 1)
    return Level(
        level,
        num,
        len(size_D),
        int((~is_first_D).sum()),
        int((is_first_D & ~is_alone_D).sum()),
        float(size_D[~is_first_D].sum() / total),
        float(size_D[is_first_D & ~is_alone_D].sum() / total),
    )


def _least_typical(
    sources: Sequence[Source], documents: Documents, compression_D: np.ndarray, perplexity_D: np.ndarray
) -> tuple[Untypical, ...]:
    away_D = np.maximum(untypical(compression_D, documents.size_D), untypical(perplexity_D, documents.size_D))
    away_D[documents.size_D == 0] = 0
    return tuple(
        Untypical(
            sources[int(documents.source_D[number])].name,
            int(documents.offset_D[number]),
            int(documents.size_D[number]),
            float(compression_D[number]),
            float(perplexity_D[number]),
        )
        for number in np.argsort(-away_D, kind="stable")[:_MOST_SHOWN].tolist()
        if away_D[number] > 0
    )
