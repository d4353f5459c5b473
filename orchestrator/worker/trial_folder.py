"""The folder of one trial of a custom trainer, results/NAME/trials/ID, on the machine where the trial runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.base.files import atomic_write, check_no_links, make_folder, open_private, storage_errors

TRIALS = "trials"
_HEAD_BYTES = 8 * 2**20
_TAIL_BYTES = 64 * 2**10


class TrialFolder:
    """The files of a trial; ``path`` is absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "trial.json"  # input of the trainer's process
        self.rows = path / "rows.jsonl"  # reports of a trainer that uses `Watch`, one JSON object per line
        self.telemetry = path / "telemetry.jsonl"  # what a `Watch` reads from the optimizer's steps
        self.readings = path / "readings.jsonl"  # validation losses and other metrics parsed from its output
        self.points = path / "points.jsonl"  # points parsed from a trainer that prints its losses

    def output(self, rank: int) -> Path:
        """Return the file for the output of the process ``rank``."""
        return self.path / ("output.log" if rank == 0 else f"output.{rank}.log")

    def prepare(self, *, keep: bool) -> None:
        """Create the folder; empty it unless it is to ``keep`` an earlier attempt. Raises StorageError."""
        check_no_links(self.path.parent.parent, self.path.parent, self.path)
        with storage_errors(self.path):
            if not keep and self.path.exists():
                shutil.rmtree(self.path)
            make_folder(self.path)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write ``trial.json``. Raises StorageError."""
        atomic_write(self.settings, json.dumps(settings, indent=1))


def step_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file with one JSON object per step, skipping lines that a crash cut off.

    Yields nothing if the file is missing. Raises StorageError.
    """
    if not path.is_file():
        return
    with storage_errors(path):
        lines = path.read_text(errors="replace").splitlines()
    for line in lines:
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
        yield row


class OutputLog:
    """The output of a process on disk: its first 8 MiB and its last 64 KiB."""

    def __init__(self, path: Path) -> None:
        self._path, self._num_bytes, self._tail = path, 0, b""
        with storage_errors(path):
            self._file = open_private(path, "ab")

    def write(self, content: bytes) -> None:
        """Append ``content``. Raises StorageError."""
        room = max(0, _HEAD_BYTES - self._num_bytes)
        self._num_bytes += len(content)
        with storage_errors(self._path):
            if room:
                self._file.write(content[:room])
                self._file.flush()
        self._tail = (self._tail + content[room:])[-_TAIL_BYTES:]

    def close(self) -> None:
        """Write the buffered end. Raises StorageError."""
        if self._file.closed:
            return
        with storage_errors(self._path), self._file as file:
            left_out = self._num_bytes - _HEAD_BYTES - len(self._tail)
            if left_out > 0:
                file.write(f"\n[... {left_out} bytes left out ...]\n".encode())
            file.write(self._tail)
