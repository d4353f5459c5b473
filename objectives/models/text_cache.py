"""The folder of texts that are too large for memory: how much of the disk it takes, and which files are in use.

A process holds a shared lock on each file that it reads, until it ends. What is over the budget is removed when a file
is added: the files that were used least recently, except what a process holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from objectives.native.cache import cache_folder

BUDGET = "SWEEP_CACHE_GB"
_DEFAULT_GB = 20.0
_UNFINISHED_S = 86_400.0  # after which a file that nobody has finished is left over from a process that was killed
_held: dict[Path, int] = {}  # descriptors whose locks say that this process reads a file


def text_cache() -> Path:
    """The folder of texts that are too large for memory and are not in one plain file."""
    return cache_folder() / "texts"


def budget() -> int:
    """The bytes that the folder may take: ``SWEEP_CACHE_GB`` gigabytes. Raises ValueError for another value."""
    given = os.environ.get(BUDGET, "")
    try:
        size = float(given or _DEFAULT_GB) * 1e9
        if size >= 0:
            return int(size)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{BUDGET} = {given!r} is not a number of gigabytes: set it to {_DEFAULT_GB:g}, say, or unset it")


def hold(path: Path) -> bool:
    """Keep a file from being removed until this process ends; return whether it is there."""
    if path in _held and path.exists():
        return True
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_SH)
    with contextlib.suppress(OSError):
        if os.stat(path).st_ino == os.fstat(handle).st_ino:
            _keep(path, handle)
            with contextlib.suppress(OSError):
                os.utime(path)
            return True
    os.close(handle)
    return False


def _keep(path: Path, handle: int) -> None:
    if path in _held:
        os.close(_held[path])
    _held[path] = handle


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears at ``path`` once the block ends without an error, and not before; it is held.

    Raises ValueError without a place for it.
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
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_SH)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
        _keep(path, os.dup(file.fileno()))
    make_room(path.parent)


def make_room(folder: Path) -> None:
    """Remove what was used least recently and is not in use, until ``folder`` is within the budget."""
    most, files = budget(), []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.is_file():
                files.append((path.stat().st_mtime, path.stat().st_size, path))
    left = sum(size for _, size, _ in files)
    for used_at, size, path in sorted(files):
        if left <= most:
            return
        is_written = path.suffix == ".part" and time.time() - used_at < _UNFINISHED_S
        if not is_written and _removed(path):
            left -= size


def _removed(path: Path) -> bool:
    """Remove a file unless a process holds it; return whether it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return not path.exists()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
