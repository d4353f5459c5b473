"""Files of logs of any origin, read whole or followed while a training script appends to them.

The format of a whole log is detected from its beginning; the streaming reader of that format then reads it. Columns are
chosen once all of the file is known.
"""

from __future__ import annotations

import codecs
import glob
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.columns import Columns, MetricsConfig, may_be_loss
from orchestrator.logs.event_files import MAX_RECORD_BYTES, Events, begins_as_events, event_frames, is_event_file
from orchestrator.logs.line_formats import Csv, JsonLines, Mixed, delimiter_of, reader_of
from orchestrator.logs.lines import MAX_LINE_BYTES, Lines, Reader, json_numbers, without_colours
from orchestrator.logs.series import row_of_object
from orchestrator.logs.tables import Log, Table, make_log, make_logs
from orchestrator.logs.wandb_files import SUFFIX, WandbLines, is_wandb_file, without_doubles

MAX_BYTES = 1024**3
_BLOCK = 1024**2  # bytes split into lines at a time
_MAX_DIGITS = 16  # of a step
_HEAD = 64 * 1024  # bytes that show whether it is text
HEAD_BYTES = 2 * MAX_LINE_BYTES  # two lines identify a table
_NUM_TELLING = 20  # lines, of which one after the first is an object where the log is of objects
_LOG_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".log", ".txt", ".out", ".err")


def find_logs(path: Path) -> list[Path]:
    """Return the files that may be logs: ``path`` itself, or files in a folder and its subfolders, in order."""
    if not os.path.exists(path):  # unlike pathlib, no error for a name that is too long
        raise InputError(Problem(str(path), "", "no such file or folder", "give a log, a folder, or a sweep's name"))
    if not path.is_dir():
        return [path]
    found = [p for p in sorted(path.rglob("*")) if p.is_file() and _may_be_log(p.relative_to(path))]
    logs = without_doubles(found)
    if not logs:
        kinds = ", ".join((*_LOG_SUFFIXES, SUFFIX))
        raise InputError(Problem(str(path), "", "holds no logs", f"looked for {kinds} and TensorBoard event files"))
    return logs


def _may_be_log(path: Path) -> bool:
    if any(part.startswith(".") for part in path.parts):
        return False
    return "tfevents" in path.name or path.suffix.lower() in (*_LOG_SUFFIXES, SUFFIX)


def read_log(path: Path, wanted: Columns, metrics: MetricsConfig | None = None) -> Log:
    """Read the training run in the file at ``path``, as ``read_logs`` does; of several runs the last one counts."""
    return make_log(str(path), _table(path, wanted, metrics), wanted)


def read_logs(path: Path, wanted: Columns, metrics: MetricsConfig | None = None) -> list[Log]:
    """Read the training runs in the file at ``path``, with the pattern or the format of ``metrics``, if given.

    Raises InputError, with the file and its columns, if it is not a log or its columns are ambiguous.
    """
    return make_logs(str(path), _table(path, wanted, metrics), wanted)


def _table(path: Path, wanted: Columns, metrics: MetricsConfig | None) -> Table:
    try:
        return _read_table(path, wanted, metrics or MetricsConfig())
    except OSError as error:
        problem = Problem(str(path), "", f"cannot be read: {error.strerror or error}", "check that you may read it")
        raise InputError(problem) from None


def _read_table(path: Path, wanted: Columns, metrics: MetricsConfig) -> Table:
    size = path.stat().st_size
    if size == 0:
        raise InputError(Problem(str(path), "", "is empty", "is the output buffered, or elsewhere?"))
    if size > MAX_BYTES:
        shown = f"{size / 1024**3:.1f} GiB"
        raise InputError(Problem(str(path), "", f"is {shown}, more than the 1 GiB that is read", "thin it first"))
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        if is_event_file(head) or metrics.format == "tensorboard":
            return _read_events(file, size)
        if is_wandb_file(head):
            parts = map(WandbLines().feed, iter(partial(file.read, _BLOCK), b""))
            return _table_of(parts, Lines(JsonLines()))
        encoding = check_is_text(str(path), head)
        if metrics.pattern is not None or metrics.format != "auto":
            is_loss = partial(may_be_loss, wanted=wanted.loss)
            return _read_lines(file, encoding, reader_of(metrics, is_loss, wanted.given))
        reader = _reader(path, head.decode(encoding, "replace"), wanted)
        if reader is None:
            return _read_objects(path, file.read().decode(encoding, "replace"))
        return _read_lines(file, encoding, reader)


def check_is_text(name: str, head: bytes) -> str:
    """Return the encoding of a text that begins with ``head``. Raises InputError, with its ``name``, for others."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"  # written by a redirect on Windows
    if b"\0" in head[:_HEAD] and not is_event_file(head) and not is_wandb_file(head):
        problem = Problem(name, "", "is a binary file, not a log", "of binary files, TensorBoard's and W&B's are read")
        raise InputError(problem)
    return "utf-8-sig"


def is_document(path: Path, head: bytes) -> bool:
    """Whether the text in a file ending in .json, which begins with ``head``, is one document, or none yet."""
    if path.suffix.lower() != ".json":
        return False
    text = head.decode(check_is_text(str(path), head), "replace")
    return not text.strip() or _reader(path, text, Columns()) is None


def _reader(path: Path, head: str, wanted: Columns) -> Reader | None:
    """Return the reader of the format detected in ``head``, or None for a JSON document."""
    text = without_colours(head).lstrip()
    lines = re.split(r"[\r\n]+", text)
    if text.startswith(("{", "[")):
        try:
            first, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            first, end = None, 0
        rest = text[end:].lstrip()
        if isinstance(first, dict) and rest and "\n" not in text[:end]:
            are_objects = any(re.match(r'\s*\{\s*"', line) for line in lines[1:_NUM_TELLING])
            return JsonLines() if are_objects else Mixed(wanted.given)
        if isinstance(first, dict) and rest and path.suffix.lower() != ".json":
            return Mixed(wanted.given)  # a configuration on many lines
        if path.suffix.lower() == ".json" or re.match(r'[\[{]\s*["\[{]', text):
            return None
    delimiter = delimiter_of([line for line in lines if line.strip() and not line.startswith("#")][:2])
    if delimiter is not None:
        return Csv(partial(may_be_loss, wanted=wanted.loss), delimiter)
    return Mixed(wanted.given)


def _read_lines(file: BinaryIO, encoding: str, reader: Reader) -> Table:
    table = _table_of(_blocks(file, encoding), Lines(reader))
    table.num_odd_lines, table.question, table.num_left_out = reader.num_odd, reader.question, reader.num_left_out()
    return table


def _blocks(file: BinaryIO, encoding: str) -> Iterator[bytes]:
    """Yield all of ``file`` as UTF-8."""
    if encoding != "utf-16":
        yield from iter(partial(file.read, _BLOCK), b"")
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    while block := file.read(_BLOCK):
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def _read_events(file: BinaryIO, size: int) -> Table:
    """Read the scalars of a TensorBoard event file, up to a truncated record."""
    events = Events(max_bytes=size)
    table = _table_of(iter(partial(file.read, _BLOCK), b""), events)
    table.num_odd_lines = events.num_odd
    return table


def _table_of(blocks: Iterable[bytes], reader: Lines | Events) -> Table:
    table = Table()
    for block in blocks:
        for row in reader.rows(block):
            table.add(row)
    for row in reader.finish():
        table.add(row)
    return table


def _read_objects(path: Path, text: str) -> Table:
    """Read a JSON document: `log_history` of the Hugging Face trainer, a list of objects, or lists by name."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(str(path), "", f"is not JSON: {error}", "was it cut off or written twice?")) from None
    rows = data.get("log_history", data) if isinstance(data, dict) else data
    table = Table()
    if isinstance(rows, dict) and (by_step := _by_step(rows)):
        for step, values in by_step.items():
            table.add({"step": step, **values})
    elif isinstance(rows, dict):
        columns = {name: values for name, values in rows.items() if isinstance(values, list)}
        if not columns:
            table.add(json_numbers(rows))
        for i in range(max(map(len, columns.values()), default=0)):
            table.add(json_numbers({name: values[i] for name, values in columns.items() if i < len(values)}))
    elif isinstance(rows, list):
        for row in rows:
            if isinstance(row, dict):
                table.add(row_of_object(row))
            else:
                table.num_odd_lines += 1
    return table


def _by_step(data: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Return the values at each step of maps from steps to values, or of lists with the distance of their steps.

    These are the golden values of Megatron-LM. A map without a name is the loss. Empty for other documents.
    """
    rows: dict[int, dict[str, float]] = {}
    for name, section in {"loss": data}.items() if _are_steps(data) else data.items():
        found = section.get("values", section) if isinstance(section, dict) else None
        if isinstance(found, list) and isinstance(section, dict) and "step_interval" in section:
            start, every = section.get("start_step", 0), section["step_interval"]
            if type(start) is int and type(every) is int:
                found = {str(start + i * every): value for i, value in enumerate(found)}
        if isinstance(found, dict) and _are_steps(found):
            for step, value in json_numbers(found).items():
                rows.setdefault(int(step), {})[name] = value
    return dict(sorted(rows.items()))


def _are_steps(data: Mapping[str, Any]) -> bool:
    """Whether all keys of ``data`` are whole numbers, as steps are."""
    return bool(data) and all(key.isascii() and key.isdigit() and len(key) < _MAX_DIGITS for key in data)


# --- files that grow -------------------------------------------------------------------------------

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
    its beginning, after the rest of the file that it replaced if that was renamed within its folder. Content after
    another file's unfinished line starts a new line. Event files are read in whole records, and several text files in
    whole lines, so that pieces of two files do not mix.
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
        if seen is not None and seen.identity != identity and (rest := self._rest_of_renamed(path, seen)):
            return rest
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

    def _rest_of_renamed(self, path: str, seen: _Followed) -> bytes:
        """Return the next unread part of a file that was at ``path`` and now has another name in its folder."""
        with os.scandir(os.path.dirname(path) or ".") as entries:
            renamed = next((entry.path for entry in entries if entry.inode() == seen.identity[1]), None)
        if renamed is None:
            return b""
        with open(renamed, "rb") as file:
            file.seek(seen.position - len(seen.last))
            content = file.read(len(seen.last) + self._part_bytes)
        return self._after(seen, content[len(seen.last) :]) if content.startswith(seen.last) else b""

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
