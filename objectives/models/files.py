"""Files of a text, compressed ones too, read whole or in place."""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import itertools
import lzma
import math
import os
import platform
import shutil
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectives.models.facts.text import HELD_OUT, LEAST_DOCUMENTS, NAMED_TEXTS
from objectives.models.made import MADE
from objectives.models.text_cache import hold, new_file, text_cache

# Tests contain invalid bytes on purpose; site-packages differ between machines.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
_CHUNK = 2**20


def _zstandard(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ValueError(f"text {path} needs pyarrow to be read: install it, or compress the file by gzip") from None
    return pyarrow.input_stream(str(path), compression="zstd")


_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstandard,
}

_DAMAGES = (OSError, EOFError, lzma.LZMAError, zlib.error)


def named_files(text: Sequence[str]) -> tuple[list[tuple[str, Path]], str]:
    """Return the files of ``text`` with their names, and what the text is called; the standard library if empty.

    ``text`` has files, folders, globs and names of texts that every machine has. Raises ValueError if a pattern matches
    no file.
    """
    if tuple(text) in ((), ("python",)):
        return _standard_library(), f"Python {platform.python_version()} standard library"
    return [named for pattern in text for named in _files_of(pattern)], ", ".join(text)


def _files_of(pattern: str) -> list[tuple[str, Path]]:
    if pattern == "python":
        return _standard_library()
    if pattern in NAMED_TEXTS:
        return MADE[pattern](text_cache() / "made")
    return [(str(path), path) for path in _matching_files(pattern)]


def _matching_files(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    elif path.is_file():
        files = [path]
    else:
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not files:
        raise ValueError(f"text: {pattern!r} matches no file")
    return files


def _standard_library() -> list[tuple[str, Path]]:
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = [name for name in subfolders if name not in _NOT_LIBRARY]  # not searched: they have thousands
        paths += [Path(folder, name) for name in names if name.endswith(".py") and name not in _NOT_LIBRARY]
    return [(path.relative_to(library).as_posix(), path) for path in sorted(paths)]


def problem_with_documents(text: Sequence[str], separator: str | None) -> str | None:
    """Return what is wrong with a text that has too few documents to plant or sort some; None if it has enough.

    They are counted in the part that is trained on, or in all of the text if a file is compressed. Raises ValueError if
    a pattern matches no file.
    """
    named, source = named_files(text)
    is_compressed = any(path.suffix in _OPENERS for _, path in named)
    length = sum(path.stat().st_size + 1 for _, path in named) - 1
    end = math.inf if is_compressed else int(length * (1 - HELD_OUT))
    starts = itertools.takewhile(lambda start: start <= end, _starts(named, separator))
    found = sum(1 for _ in itertools.islice(starts, LEAST_DOCUMENTS))
    if found == LEAST_DOCUMENTS:
        return None
    return few_documents(source, found)


def few_documents(source: str, number: int) -> str:
    """Return what is wrong with a text of so few documents."""
    needs = "duplicated_share, noise_share, dedup, quality and a curriculum need at least"
    return f"text {source} has {number} document{'' if number == 1 else 's'} to train on: {needs} {LEAST_DOCUMENTS}"


def _starts(named: Sequence[tuple[str, Path]], separator: str | None) -> Iterator[int]:
    """Yield where documents begin in a text, without reading on before the next one is asked for."""
    first = 0
    for _, path in named:
        yield first
        if separator is not None:
            yield from (first + end for end in _ends_of_documents(path, separator.encode()))
        first += path.stat().st_size + 1


def _ends_of_documents(path: Path, mark: bytes) -> Iterator[int]:
    """Yield where the documents of a file end within it, but for the last one. Raises ValueError if it is damaged."""
    rest, passed, at_the_end = b"", 0, False
    try:
        with _OPENERS[path.suffix](path) if path.suffix in _OPENERS else path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                if at_the_end:
                    yield passed
                content, at = rest + chunk, 0
                while (found := content.find(mark, at)) >= 0:
                    at = found + len(mark)
                    if at < len(content):
                        yield passed + at
                at_the_end = at == len(content)
                kept = max(at, len(content) - len(mark) + 1)
                rest, passed = content[kept:], passed + kept
    except _DAMAGES as error:
        raise ValueError(f"text {path} cannot be read: {error}") from None


@dataclass(frozen=True)
class Source:
    """The bytes of one file: ``content`` if held in memory, else in the file ``path``."""

    name: str
    path: Path
    size: int
    content: bytes | None = None

    @contextmanager
    def reader(self) -> Iterator[Callable[[int, int], bytes]]:
        """Open the source for the time of a block, which reads ``size`` bytes from an ``offset`` on."""
        if self.content is not None:
            content = self.content
            yield lambda offset, size: content[offset : offset + size]
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            yield lambda offset, size: read_at(handle, offset, size, self.path)
        finally:
            os.close(handle)


def read_at(handle: int, offset: int, size: int, path: Path) -> bytes:
    """Return exactly ``size`` bytes of an open file. Raises ValueError if it has become shorter."""
    parts = []
    while size:
        part = os.pread(handle, size, offset)
        if not part:
            raise ValueError(f"text {path} has become shorter while it is trained on")
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def opened(named: Sequence[tuple[str, Path]], room: int) -> list[Source]:
    """Return the sources of files: in memory if all have at most ``room`` bytes, else on disk.

    Compressed files that do not fit are decompressed into the cache. Raises ValueError for one that is damaged.
    """
    left = room - sum(path.stat().st_size for _, path in named if path.suffix not in _OPENERS)
    sources: list[Source] = []
    for name, path in named:
        if path.suffix in _OPENERS:
            sources.append(_decompressed(name, path, left))
            left -= sources[-1].size
        elif left >= 0:
            content = path.read_bytes()
            sources.append(Source(name, path, len(content), content))
        else:
            sources.append(Source(name, path, path.stat().st_size))
    return sources


def _decompressed(name: str, path: Path, room: int) -> Source:
    stored = text_cache() / f"{fingerprint([path])}.raw"
    if hold(stored):
        size = stored.stat().st_size
        return Source(name, stored, size, stored.read_bytes() if size <= room else None)
    chunks: list[bytes] = []
    size = 0
    try:
        with _OPENERS[path.suffix](path) as file:
            while size <= room and (chunk := file.read(_CHUNK)):
                chunks.append(chunk)
                size += len(chunk)
            if size <= room:
                return Source(name, path, size, b"".join(chunks))
            with new_file(stored) as out:
                out.writelines(chunks)
                chunks.clear()
                shutil.copyfileobj(file, out, _CHUNK)
    except _DAMAGES as error:
        raise ValueError(f"text {path} cannot be decompressed: {error}") from None
    return Source(name, stored, stored.stat().st_size)


def fingerprint(paths: Sequence[Path], *more: Any) -> str:
    """Return a hash of the files' names, sizes and times of change, and of ``more``."""
    facts = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr((facts, more)).encode()).hexdigest()[:32]
