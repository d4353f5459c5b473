"""What is appended to a file, or to the files of a glob, while a training script runs."""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import dataclass

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.event_files import LONGEST_RECORD, begins_as_events, event_frames

_NUM_COMPARED = 64  # bytes before the new ones, which show that a file is still the same


@dataclass(slots=True)
class _Followed:
    """How far a file was read, and the last bytes read."""

    identity: tuple[int, int]
    position: int = 0
    last: bytes = b""
    is_events: bool | None = None


class FileTail:
    """What is appended to a file, or to the files of a glob, which may not exist yet.

    Files of a glob are read in the order of their names. A file that shrinks, is replaced or is rewritten is read from
    its beginning. Content after another file's unfinished line starts a new line. Of event files only whole records are
    read, and of several text files only whole lines, so that pieces of two files do not mix.
    """

    def __init__(self, pattern: str, part_bytes: int = 4 * 1024**2) -> None:
        """``part_bytes`` is the most that one call reads, but for a single record that is longer."""
        self._pattern, self._part_bytes = pattern, part_bytes
        self._files: dict[str, _Followed] = {}
        self._before: _Followed | None = None

    def read(self) -> bytes:
        """New content since the last call, of one file and at most one part or one record; empty if there is none.

        Raises InputError for a file that may not be read and, if it is named itself, for a folder or a device. Other
        errors of a file system may be temporary: they count as no content.
        """
        is_named = os.path.lexists(self._pattern)
        paths = [self._pattern] if is_named else sorted(glob.glob(self._pattern, recursive=True))
        for path in paths:
            try:
                content = self._news(path, is_named, len(paths) == 1)
            except PermissionError as error:
                problem = Problem(path, "", f"cannot be read: {error.strerror}", "check that you may read it")
                raise InputError(problem) from None
            except OSError:
                continue
            if content:
                return content
        return b""

    def _news(self, path: str, is_named: bool, is_alone: bool) -> bytes:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            if is_named:
                raise InputError(Problem(path, "", "is no file", "name a file, or those of a folder as `folder/*`"))
            return b""
        identity = (status.st_dev, status.st_ino)
        seen = self._files.get(path)
        if seen is None or seen.identity != identity or status.st_size < seen.position:
            seen = self._files[path] = _Followed(identity)
        if status.st_size == seen.position:
            return b""
        with open(path, "rb") as file:
            file.seek(seen.position - len(seen.last))
            content = file.read(len(seen.last) + self._part_bytes)
            if not content.startswith(seen.last):
                seen = self._files[path] = _Followed(identity)
                file.seek(0)
                content = file.read(self._part_bytes)
            content = content[len(seen.last) :]
            if seen.is_events is None:
                seen.is_events = begins_as_events(content)
            if seen.is_events:
                content += file.read(_missing_of_record(content, status.st_size - seen.position))
        return self._after(seen, _whole(content, seen.is_events, is_alone or len(content) >= self._part_bytes))

    def _after(self, seen: _Followed, content: bytes) -> bytes:
        """The new ``content``, separated from an unfinished line of another file."""
        if not content:
            return b""
        seen.position += len(content)
        seen.last = (seen.last + content[-_NUM_COMPARED:])[-_NUM_COMPARED:]
        before, self._before = self._before, seen
        if before is None or before is seen or before.is_events or before.last.endswith((b"\n", b"\r")):
            return content
        return b"\n" + content


def _missing_of_record(content: bytes, size: int) -> int:
    """Missing bytes of a first record that is larger than what was read, if ``size`` bytes hold all of it."""
    _, end = next(event_frames(content), (0, 0))
    return max(0, end - len(content)) if end <= min(size, LONGEST_RECORD) else 0


def _whole(content: bytes, is_events: bool | None, may_end_inside_a_line: bool) -> bytes:
    """The part of ``content`` that is not held back."""
    if is_events is None:
        return b""
    if is_events:
        return content[: max((end for _, end in event_frames(content) if end <= len(content)), default=0)]
    if may_end_inside_a_line:
        return content
    return content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
