"""The process that Weights & Biases starts, and the files that it writes. Neither is trusted to end well.

The library waits without limit for a hanging process, even when this process exits. On a full disk it drops data and
only logs it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from orchestrator.base.files import free_space
from orchestrator.base.processes import children, end_all, is_alive, tree_of

_NAME = "wandb-core"
_EXIT_S = 2.0
_FILE_HEAD, _PART_HEAD, _BLOCK = 7, 7, 32768  # bytes: file header, header of a record's part, block
_WHOLE, _LAST = 1, 4  # kinds of part that end a record

_in_use: set[threading.Event] = set()  # by threads, which may have been abandoned when this process exits
_ending = threading.Lock()


@contextlib.contextmanager
def limited(limit_s: float) -> Iterator[threading.Event]:
    """Kill the library's process if the block takes longer than ``limit_s``, or is running when this process exits.

    Yield an event that is set when that happens. Meanwhile, errors of the library's own logging are not printed.
    """
    is_late, watch = threading.Event(), threading.Timer(limit_s, lambda: (is_late.set(), kill_service()))
    watch.daemon = True
    _in_use.add(is_late)
    prints_errors, logging.raiseExceptions = logging.raiseExceptions, False
    watch.start()
    try:
        yield is_late
    finally:
        watch.cancel()
        logging.raiseExceptions = prints_errors
        _in_use.discard(is_late)


def start_service(settings: Any) -> None:
    """Start the library's process unless it is running, and keep this process's exit from waiting for it."""
    from wandb.sdk import wandb_setup

    # Does what wandb.setup() does, which deadlocks if the process cannot be started.
    wandb_setup._setup(settings=settings, start_service=False).ensure_service()
    # Exit hooks run in reverse order: registered last, this one runs before the library's, which waits.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def is_running() -> bool:
    """Return whether the library's process is running."""
    return bool(_running())


def kill_service() -> None:
    """Kill the library's process, unless a run of the user's needs it."""
    import wandb

    if wandb.run is None:
        end_all(_running())


def _running() -> list[psutil.Process]:
    names = children(os.getpid())
    return [child for child in tree_of(os.getpid()) if names.get(child.pid) == _NAME and is_alive(child.pid)]


def end_service() -> None:
    """End the library's process in order, unless a run of the user's needs it; it then ends with this process."""
    import wandb

    with _ending:
        if wandb.run is None:
            # SystemExit if that process failed, any error if it was killed; the run has reported it.
            with contextlib.suppress(Exception, SystemExit):
                wandb.teardown()


def _at_exit() -> None:
    for is_late in list(_in_use):
        is_late.set()
        kill_service()
        end = threading.Thread(target=end_service, daemon=True)  # the library's locks may be held forever
        end.start()
        end.join(_EXIT_S)


def wait_for_end(path: Path, patience_s: float) -> None:
    """Wait until the file of an offline run is complete, which takes a moment after the run's end.

    Raises OSError after ``patience_s``.
    """
    deadline = time.monotonic() + patience_s
    while not is_complete(path):
        if time.monotonic() > deadline:
            raise OSError(f"{path} was not written to its end{free_space(path)}")
        time.sleep(0.01)


def is_complete(path: Path) -> bool:
    """Return whether all records of a run's file are whole and the last one says how the run ended.

    The format is LevelDB's log: 32 KiB blocks of record parts, each with a checksum of kind and content, its length and
    its kind.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content = path.read_bytes()
    at, record, kind = _FILE_HEAD, b"", 0
    while at < len(content):
        left = _BLOCK - at % _BLOCK
        if left < _PART_HEAD:
            at += left
            continue
        head, begin = content[at : at + _PART_HEAD], at + _PART_HEAD
        before, kind = kind, int.from_bytes(head[6:])
        at = begin + int.from_bytes(head[4:6], "little")
        part = content[begin:at]
        is_whole = len(head) == _PART_HEAD and len(content) >= at
        if not is_whole or zlib.crc32(head[6:] + part) != int.from_bytes(head[:4], "little"):
            return False
        record = part if before in (0, _WHOLE, _LAST) else record + part
    if kind not in (_WHOLE, _LAST):
        return False
    return bool(Record.FromString(record).HasField("exit"))
