"""A text to train on: its files, its documents, the part that is held out, and what a recipe makes of the rest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from objectives.models.documents import ARRAYS, Documents, chunks, documents_of
from objectives.models.facts.text import HELD_OUT, Recipe
from objectives.models.files import Source, fingerprint, named_files, opened, read_at
from objectives.models.recipes import cooked
from objectives.models.text_cache import hold, new_file, text_cache

MOST_IN_MEMORY = 64 * 2**20  # bytes; of a longer text, a batch is read from the disk
_LEAST = 10_000
_FORMAT = 1  # of the files in the cache


@dataclass(frozen=True)
class StoredBytes:
    """Bytes of a file that are read when they are needed.

    They are not mapped: what a process has read of a mapped file counts as its memory, until that is all of the file.
    """

    path: Path
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, span: slice) -> np.ndarray:
        first, stop, _ = span.indices(self.size)
        return self.sequences(np.array([first]), max(stop - first, 0))[0]

    def sequences(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return ``length`` bytes from each of ``starts`` on, uint8 of shape (\\*starts.shape, length)."""
        if starts.size and not 0 <= starts.min() <= starts.max() <= self.size - length:
            raise IndexError(f"bytes {starts.min()} to {starts.max() + length} of {self.size}")
        handle = os.open(self.path, os.O_RDONLY)
        try:
            parts = [read_at(handle, self.start + start, length, self.path) for start in starts.ravel().tolist()]
        finally:
            os.close(handle)
        joined = np.frombuffer(bytearray(b"".join(parts)), dtype=np.uint8)
        return joined.reshape(*starts.shape, length)


@dataclass(frozen=True)
class Text:
    """Bytes to train on and held-out bytes, in memory or on disk, and the documents of each part.

    ``names`` are names of files, by the numbers of sources in ``documents``.
    """

    training: np.ndarray | StoredBytes
    held_out: np.ndarray | StoredBytes
    documents: Documents
    held_out_documents: Documents
    names: tuple[str, ...]
    source: str
    sha256: str


def load_text(text: Sequence[str], recipe: Recipe) -> Text:
    """Read ``text``, hold out its last tenth, and prepare the rest by ``recipe``.

    Raises ValueError if a pattern matches no file, a file cannot be read, or there is too little text.
    """
    named, source = named_files(text)
    names = tuple(name for name, _ in named)
    key = text_cache() / fingerprint([path for _, path in named], recipe, _FORMAT)
    known = _from_cache(key)
    if known is not None and known.path is not None:
        return known.on_disk(names, source)
    sources = opened(named, MOST_IN_MEMORY)
    parts = prepared(sources, recipe, source) if known is None else known
    if parts.num_bytes > MOST_IN_MEMORY:
        parts = parts.written(key, sources, recipe)
        return parts.on_disk(names, source)
    if known is None and recipe.is_slow:
        with contextlib.suppress(OSError, ValueError):  # a cache that cannot be written costs time alone
            parts.kept(key)
    return parts.in_memory(sources, recipe, names, source)


def prepared(sources: Sequence[Source], recipe: Recipe, source: str) -> Parts:
    """Return the two parts of a text called ``source``, the first as ``recipe`` makes it.

    Raises ValueError if there is too little text.
    """
    whole = documents_of(sources, recipe.separator)
    if whole.num_bytes < _LEAST:
        raise ValueError(f"text {source} has {whole.num_bytes} bytes: training needs at least {_LEAST}")
    training, held_out = whole.cut(int(whole.num_bytes * (1 - HELD_OUT)))
    return Parts(cooked(sources, training, recipe, source), held_out)


@dataclass(frozen=True)
class Parts:
    """The documents of the two parts of a text; once it is on disk, where, and its hash."""

    training: Documents
    held_out: Documents
    path: Path | None = None
    sha256: str = ""

    @property
    def num_bytes(self) -> int:
        """The length of both."""
        return self.training.num_bytes + self.held_out.num_bytes

    def in_memory(self, sources: Sequence[Source], recipe: Recipe, names: tuple[str, ...], source: str) -> Text:
        """Return the text with its bytes in memory."""
        content, end = np.empty(self.num_bytes, dtype=np.uint8), 0
        for chunk in self._chunks(sources, recipe):
            content[end : end + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            end += len(chunk)
        split, sha256 = self.training.num_bytes, hashlib.sha256(content.data).hexdigest()
        return Text(content[:split], content[split:], self.training, self.held_out, names, source, sha256)

    def on_disk(self, names: tuple[str, ...], source: str) -> Text:
        """Return the text with its bytes where they are on disk."""
        assert self.path is not None
        split = self.training.num_bytes
        training, held_out = StoredBytes(self.path, 0, split), StoredBytes(self.path, split, self.num_bytes - split)
        return Text(training, held_out, self.training, self.held_out, names, source, self.sha256)

    def written(self, key: Path, sources: Sequence[Source], recipe: Recipe) -> Parts:
        """Write the text into the cache, unless a file has just that, and keep where it is."""
        digest, path = hashlib.sha256(), sources[0].path
        try:
            if len(sources) == 1 and recipe.is_plain:
                for chunk in self._chunks(sources, recipe):
                    digest.update(chunk)
            else:
                path = key.with_suffix(".bin")
                with new_file(path) as file:
                    for chunk in self._chunks(sources, recipe):
                        file.write(chunk)
                        digest.update(chunk)
            return replace(self, path=path.absolute(), sha256=digest.hexdigest()).kept(key)
        except OSError as error:
            raise ValueError(f"the text does not fit into {key.parent}: {error}; SWEEP_CACHE moves it") from None

    def kept(self, key: Path) -> Parts:
        """Write what the next pack needs not find out again."""
        parts = {"training": self.training, "held_out": self.held_out}
        arrays = {f"{part}_{name}": getattr(each, name) for part, each in parts.items() for name in ARRAYS}
        with new_file(key.with_suffix(".npz")) as file:
            np.savez(file, path=np.array(str(self.path or "")), sha256=np.array(self.sha256), **arrays)
        return self

    def _chunks(self, sources: Sequence[Source], recipe: Recipe) -> Iterator[bytes]:
        for documents in (self.training, self.held_out):
            yield from chunks(sources, documents, recipe.noise_kind)


def _from_cache(key: Path) -> Parts | None:
    """Return what an earlier call has found out, or None."""
    try:
        with key.with_suffix(".npz").open("rb") as file, np.load(file) as stored:
            training, held_out = (
                Documents(**{name: stored[f"{part}_{name}"] for name in ARRAYS}) for part in ("training", "held_out")
            )
            path, sha256 = str(stored["path"]), str(stored["sha256"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    parts = Parts(training, held_out, Path(path) if path else None, sha256)
    with contextlib.suppress(OSError):
        os.utime(key.with_suffix(".npz"))  # it was used now
    if parts.path is None:
        return parts
    is_there = hold(parts.path) if parts.path.parent == key.parent.absolute() else parts.path.exists()
    return parts if is_there and parts.path.stat().st_size == parts.num_bytes else None
