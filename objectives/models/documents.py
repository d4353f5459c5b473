"""Documents of a text: where each is in the files, and their bytes."""

from __future__ import annotations

import functools
import mmap
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace

import numpy as np

from objectives.models.facts.text import NoiseKind
from objectives.models.files import Source
from objectives.models.noise import noisy

# Shapes: D documents.

_CHUNK = 2**20  # bytes
_AT_ONCE = 2**12  # documents


@dataclass(frozen=True)
class Documents:
    """Documents in the order of a text. A document is ``size`` bytes of a source, from ``offset`` on.

    ``number_D`` is its place among all documents of the text, and with ``has_break_D`` a line break follows it, which
    does not count in ``size_D``. The bytes of a document with ``is_noise_D`` are replaced by noise.
    """

    source_D: np.ndarray
    offset_D: np.ndarray
    size_D: np.ndarray
    number_D: np.ndarray
    has_break_D: np.ndarray
    is_noise_D: np.ndarray

    def __len__(self) -> int:
        return len(self.size_D)

    @functools.cached_property
    def start_D(self) -> np.ndarray:
        """Where each document begins in the text, in bytes."""
        return np.cumsum(self.size_D + self.has_break_D) - self.size_D - self.has_break_D

    @property
    def num_bytes(self) -> int:
        """The length of the text."""
        return int(self.size_D.sum() + self.has_break_D.sum())

    def at(self, index: np.ndarray | slice) -> Documents:
        """Return the documents with an index or a mask, in its order."""
        return Documents(**{name: value[index] for name, value in vars(self).items() if name in ARRAYS})

    def cut(self, num_bytes: int) -> tuple[Documents, Documents]:
        """Return the documents of the first ``num_bytes`` of the text, and those after; one may be cut in two."""
        last = int(np.searchsorted(self.start_D, num_bytes, side="right")) - 1
        first, rest = self.at(slice(last + 1)), self.at(slice(last, None))
        left = num_bytes - int(self.start_D[last])
        size = int(self.size_D[last])
        head, tail = min(left, size), max(size - left, 0)
        is_whole = left > size  # with its line break
        first = replace(first, size_D=_with(first.size_D, -1, head), has_break_D=_with(first.has_break_D, -1, is_whole))
        if is_whole:
            return first, self.at(slice(last + 1, None))
        return first, replace(
            rest, size_D=_with(rest.size_D, 0, tail), offset_D=_with(rest.offset_D, 0, int(self.offset_D[last]) + head)
        )

    def followed_by(self, copied: np.ndarray) -> Documents:
        """Return these documents and copies of those with the indices ``copied`` after them."""
        if not len(copied):
            return self
        # The last document is cut where the held-out part begins: what follows begins in a new line.
        separate = replace(self, has_break_D=_with(self.has_break_D, -1, True))
        return separate.at(np.concatenate([np.arange(len(self)), copied]))


ARRAYS = tuple(field.name for field in fields(Documents))


def _with(values: np.ndarray, index: int, value: int | bool) -> np.ndarray:
    changed = values.copy()
    changed[index] = value
    return changed


def documents_of(sources: Sequence[Source], separator: str | None) -> Documents:
    """Return the documents of sources that are joined by line breaks: one each, or what ``separator`` ends in it.

    A separator belongs to the document before it.
    """
    ends = [_ends(source, separator) for source in sources]
    size_D = np.concatenate([np.diff(end, prepend=0) for end in ends])
    offset_D = np.concatenate([end - np.diff(end, prepend=0) for end in ends])
    source_D = np.repeat(np.arange(len(sources)), [len(end) for end in ends])
    has_break_D = np.diff(source_D, append=source_D[-1]) > 0
    return Documents(
        source_D, offset_D, size_D, np.arange(len(size_D)), has_break_D, np.zeros(len(size_D), dtype=np.bool_)
    )


def _ends(source: Source, separator: str | None) -> np.ndarray:
    """Return where the documents of a source end; the last one ends where the source does."""
    ends = array("q")
    if separator is not None and source.size:
        mark = separator.encode()
        with _searchable(source) as find:
            end = find(mark, 0)
            while end >= 0 and end + len(mark) < source.size:
                ends.append(end + len(mark))
                end = find(mark, end + len(mark))
    ends.append(source.size)
    return np.frombuffer(ends, dtype=np.int64)


@contextmanager
def _searchable(source: Source) -> Iterator[Callable[[bytes, int], int]]:
    """Yield how to find bytes of a source, from a place on, without reading them into memory at once."""
    if source.content is not None:
        yield source.content.find
        return
    with source.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped.find


def contents(sources: Sequence[Source], documents: Documents, noise_kind: NoiseKind) -> Iterator[bytes]:
    """Yield the bytes of each document, without the line break after it."""
    for parts, _ in _parts(sources, documents, noise_kind):
        yield b"".join(parts)


def chunks(sources: Sequence[Source], documents: Documents, noise_kind: NoiseKind) -> Iterator[bytes]:
    """Yield the bytes of a text in pieces that fit in memory."""
    for parts, has_break in _parts(sources, _runs(documents), noise_kind):
        yield from parts
        if has_break:
            yield b"\n"


def _runs(documents: Documents) -> Documents:
    """Return the same bytes in as few documents as possible: what follows each other in a file is one."""
    end_D = documents.offset_D + documents.size_D
    begins_D = np.ones(len(documents), dtype=np.bool_)
    begins_D[1:] = (documents.source_D[1:] != documents.source_D[:-1]) | (documents.offset_D[1:] != end_D[:-1])
    begins_D[1:] |= documents.has_break_D[:-1] | documents.is_noise_D[1:] | documents.is_noise_D[:-1]
    size = np.add.reduceat(documents.size_D, np.flatnonzero(begins_D))
    has_break = documents.has_break_D[np.roll(begins_D, -1)]  # of the last one
    return replace(documents.at(begins_D), size_D=size, has_break_D=has_break)


def _rows(documents: Documents) -> Iterator[tuple[int, int, int, int, bool, bool]]:
    """Yield the values of each document; a list of all of them would take more memory than a short document."""
    for first in range(0, len(documents), _AT_ONCE):
        some = documents.at(slice(first, first + _AT_ONCE))
        yield from zip(*(getattr(some, name).tolist() for name in ARRAYS), strict=True)


def _parts(
    sources: Sequence[Source], documents: Documents, noise_kind: NoiseKind
) -> Iterator[tuple[Iterator[bytes], bool]]:
    """Yield the parts of each document, and whether a line break follows."""
    current = -1
    with ExitStack() as opened:
        for source, offset, size, number, has_break, is_noise in _rows(documents):
            if source != current:
                opened.close()
                read, current = opened.enter_context(sources[source].reader()), source
            if is_noise:
                yield iter([noisy(noise_kind, read(offset, size), number)]), has_break
            else:
                yield (read(offset + o, min(_CHUNK, size - o)) for o in range(0, size, _CHUNK)), has_break
