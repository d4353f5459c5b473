"""Files of a text, compressed ones too, read whole or in place."""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import lzma
import os
import platform
import shutil
import sysconfig
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from objectives.models.facts.text import NAMED_TEXTS
from objectives.models.made import MADE
from objectives.native.cache import cache_folder

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
    if stored.exists():
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
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"text {path} cannot be decompressed: {error}") from None
    return Source(name, stored, stored.stat().st_size)


def text_cache() -> Path:
    """The folder of texts that are too large for memory and are not in one plain file."""
    return cache_folder() / "texts"


def fingerprint(paths: Sequence[Path], *more: Any) -> str:
    """Return a hash of the files' names, sizes and times of change, and of ``more``."""
    facts = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr((facts, more)).encode()).hexdigest()[:32]


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears at ``path`` once the block ends without an error, and not before.

    Raises ValueError if there is no place for it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened_file = tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False)  # noqa: SIM115
    except OSError as error:
        raise ValueError(f"the text has no place in {path.parent}: {error}; SWEEP_CACHE moves it") from None
    with opened_file as file:
        try:
            yield file
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
