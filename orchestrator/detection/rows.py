"""Rows of a run: one per reported step, as plain numbers, and their file in the trial of a sweep."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.base.errors import StorageError

FIRED = "fired"  # what rules of control did at the step
ROLLED_BACK = "rolled_back"  # the update of the step was left out or undone


def row_of(step: int, loss: Any, grad_norm: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of one step, as plain numbers."""
    try:
        row: dict[str, Any] = {"step": operator.index(step)}
    except TypeError:
        raise TypeError(f"step must be a whole number, not {step!r}") from None
    row["loss"] = _number("loss", loss)
    if grad_norm is not None:
        row["grad_norm"] = _number("grad_norm", grad_norm)
    return row | {name: _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: Any) -> float:
    """Return ``value``, which may be a tensor of one element or a DTensor, as a plain number."""
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    if hasattr(value, "detach"):  # converting a tensor with a gradient to a number warns
        value = value.detach()
    shape = tuple(getattr(value, "shape", ()))
    if math.prod(shape) != 1:
        raise TypeError(f"{name} must be one number, not an array of shape {shape}")
    if hasattr(value, "item"):
        value = value.item()
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r}")
    return float(value)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows that watches wrote to ``path``, without lines truncated by a crash; empty without a file."""
    return [row for row in _parsed_lines(path) if isinstance(row.get("loss"), int | float)]


def readings_by_step(path: Path) -> dict[int, dict[str, Any]]:
    """Return the readings of telemetry that watches wrote to ``path``; empty without a file."""
    return {row["step"]: row for row in _parsed_lines(path)}


def firings_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what rules did at the step of ``row``; a number is a metric of the script that has the same name."""
    fired = row.get(FIRED)
    return fired if isinstance(fired, list) else []


def _parsed_lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    return [row for row in map(parsed_row, lines) if row is not None]


def parsed_row(line: bytes) -> dict[str, Any] | None:
    """Return a line of such a file, or None if it is truncated or has no step."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line to ``path`` in one write. Raises StorageError.

    The file is opened each time so that a watch can be copied to another process, and closed so that other machines on
    a shared disk see the row.
    """
    line = json.dumps(row).encode() + b"\n"
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # a crash truncated the last row
                line = b"\n" + line
            num_written = os.write(handle, line)
        finally:
            os.close(handle)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    if num_written < len(line):
        raise StorageError(f"{path}: no room for a row")
