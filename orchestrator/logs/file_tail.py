"""Follow a file, or the files of a glob, that a running training script appends to."""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import dataclass

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.event_files import MAX_RECORD_BYTES, begins_as_events, event_frames

_NUM_COMPARED = 64  # bytes before the new ones, which show that a file is still the same


@dataclass(slots=True)
class _Followed:
    """A file, how far it was read, and the last bytes read."""

    identity: tuple[int, int]
    position: int = 0
    last: bytes = b""
    is_events: bool | None = None


class FileTail:
    """Reads the new content of a file, or of the files of a glob, which may not exist yet.

    Files of a glob are read in the order of their names. A file that shrinks, is replaced or is rewritten is read from
    its beginning. Content after another file's unfinished line starts a new line. Event files are read in whole
    records, and several text files in whole lines, so that pieces of two files do not mix.
    """

    def __init__(self, pattern: str, part_bytes: int = 4 * 1024**2) -> None:
        """One call reads at most ``part_bytes``, except for a single record that is longer."""
        self._pattern, self._part_bytes = pattern, part_bytes
        self._files: dict[str, _Followed] = {}
        self._before: _Followed | None = None

    def read(self) -> bytes:
        """Return new content of one file since the last call: at most one part or one record, or empty bytes.

        Raises InputError for a file without permission to read and, if the pattern is a path, for a folder or a device.
        Other file system errors may be temporary: they count as no content.
        """
        is_named = os.path.lexists(self._pattern)
        paths = [self._pattern] if is_named else sorted(glob.glob(self._pattern, recursive=True))
        for path in paths:
            try:
                content = self._new_content(path, is_named, len(paths) == 1)
            except PermissionError as error:
                problem = Problem(path, "", f"cannot be read: {error.strerror}", "check that you may read it")
                raise InputError(problem) from None
            except OSError:
                continue
            if content:
                return content
        return b""

    def _new_content(self, path: str, is_named: bool, is_alone: bool) -> bytes:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            if is_named:
                raise InputError(Problem(path, "", "is not a regular file", "name a file, or files as `folder/*`"))
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
        """Separate new ``content`` from an unfinished line of another file."""
        if not content:
            return b""
        seen.position += len(content)
        seen.last = (seen.last + content[-_NUM_COMPARED:])[-_NUM_COMPARED:]
        before, self._before = self._before, seen
        if before is None or before is seen or before.is_events or before.last.endswith((b"\n", b"\r")):
            return content
        return b"\n" + content


def _missing_of_record(content: bytes, size: int) -> int:
    """Return how many bytes of a first record were not read yet, if all of the record is in ``size`` bytes."""
    _, end = next(event_frames(content), (0, 0))
    return max(0, end - len(content)) if end <= min(size, MAX_RECORD_BYTES) else 0


def _whole(content: bytes, is_events: bool | None, may_end_inside_a_line: bool) -> bytes:
    """Return the part of ``content`` that is not held back."""
    if is_events is None:
        return b""
    if is_events:
        return content[: max((end for _, end in event_frames(content) if end <= len(content)), default=0)]
    if may_end_inside_a_line:
        return content
    return content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
