"""Documents of Python's library with planted dirt and planted duplicates, and how well they are found.

``python -m benchmarks.planted_text > results/reference/planted_text.csv`` takes each third piece of the library: from
the first one on, as docs/knobs.md shows, and from the second and the third one on, which chose nothing.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import NamedTuple, TextIO, get_args

import numpy as np

from objectives.models.documents import contents, documents_of
from objectives.models.duplicates import first_equal, first_near
from objectives.models.facts.text import NoiseKind, Quality
from objectives.models.files import named_files, opened
from objectives.models.noise import mixed, noisy
from objectives.models.quality import SCORES, untypical
from objectives.models.recipes import lowest

SHARE = 0.1  # of the text that is dirt, and that is dropped
EVERY = 3
EDITED = (0.0, 0.01, 0.02)  # shares of the words of planted copies


class Found(NamedTuple):
    """Shares of documents: planted ones among the found, and found ones among the planted."""

    precision: float
    recall: float


def of_masks(found_D: np.ndarray, planted_D: np.ndarray) -> Found:
    """The shares of documents that are found, and that are planted."""
    both = (found_D & planted_D).sum()
    return Found(both / max(found_D.sum(), 1), both / planted_D.sum())


class Row(NamedTuple):
    """What is found of one thing that is planted: a kind of dirt, or copies with a share of their words edited."""

    first: int
    planted: str
    by: str
    found: Found


def functions(every: int, first: int = 0) -> list[bytes]:
    """Each ``every``-th piece of the library that ends where a method begins, from the ``first`` one on."""
    named, _ = named_files(())
    sources = opened(named, 2**30)
    return list(contents(sources, documents_of(sources, "\n    def ").at(slice(first, None, every)), "markup"))


def found_dirt(documents: list[bytes], kind: NoiseKind, quality: Quality) -> Found:
    """How well the least typical documents are those that are made noisy."""
    size_D = np.array([len(document) for document in documents])
    is_dirt_D = lowest(mixed(np.arange(len(size_D)), 1), size_D, SHARE)
    now = [
        noisy(kind, document, number) if is_dirt else document
        for number, (document, is_dirt) in enumerate(zip(documents, is_dirt_D, strict=True))
    ]
    away_D = untypical(SCORES[quality](lambda: now), size_D)
    return of_masks(lowest(-away_D, size_D, SHARE), is_dirt_D)


def edited(document: bytes, number: int, share: float) -> bytes:
    """The document with a share of its words replaced, one at least unless the share is 0."""
    words = document.split(b" ")
    count = int(np.ceil(share * len(words)))
    for place in (mixed(np.arange(count), number + 7) % np.uint64(len(words))).tolist():
        words[place] = b"edited%d" % place
    return b" ".join(words)


def found_copies(documents: list[bytes], near: bool, share_of_words: float) -> Found:
    """Copies of a tenth of the documents with 50 words or more; those that the library has itself are left out."""
    find = first_near if near else first_equal
    alone = np.flatnonzero(find(documents) == np.arange(len(documents))).tolist()
    unique = [documents[number] for number in alone if len(documents[number].split(b" ")) >= 50]
    copies = [edited(document, number, share_of_words) for number, document in enumerate(unique[::10])]
    first_D = find([*unique, *copies])
    found_D = first_D != np.arange(len(first_D))
    return of_masks(found_D, np.arange(len(first_D)) >= len(unique))


def rows(first: int) -> Iterator[Row]:
    """What is found among each third piece from the ``first`` one on."""
    documents = functions(EVERY, first)
    yield Row(first, "copies", "equal", found_copies(documents, near=False, share_of_words=0))
    for share in EDITED:
        name = f"copies, {share:.0%} of words edited" if share else "copies"
        yield Row(first, name, "near", found_copies(documents, near=True, share_of_words=share))
    for kind in get_args(NoiseKind):
        for quality in get_args(Quality):
            yield Row(first, kind, quality, found_dirt(documents, kind, quality))


def write(file: TextIO) -> None:
    """Write a table of all pieces as CSV."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["first", "planted", "by", "precision", "recall"])
    for first in range(EVERY):
        for row in rows(first):
            table.writerow([*row[:3], f"{row.found.precision:.2f}", f"{row.found.recall:.2f}"])


if __name__ == "__main__":
    write(sys.stdout)
