"""Which members are read at which steps while a pack trains, and their readings as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.messages import Trace

# Shapes: T steps of a look, R rows of a trainer, C columns.

Point = tuple[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings of one step for some rows of a trainer: ``values_CR`` of ``names``, ``offset`` steps into the look."""

    offset: int
    rows: tuple[int, ...]
    names: tuple[str, ...]
    values_CR: np.ndarray


# Instabilities of the first steps come faster than the usual readings: until ``EARLY`` every ``EARLY_EVERY`` steps.
EARLY, EARLY_EVERY = 50, 5


def due(age_R: np.ndarray, num_steps: int, every: int | None, early_every: int | None = None) -> np.ndarray:
    """Which rows to read at each of the next steps, (T, R): at every ``every``-th step of the member.

    With ``early_every`` also at every so-many-th of its first ``EARLY`` steps, unless ``every`` is fewer.
    """
    age_TR = age_R + np.arange(num_steps)[:, None]
    if every is None:
        return np.zeros(age_TR.shape, dtype=bool)
    is_due_TR = age_TR % every == 0
    return (
        is_due_TR
        if early_every is None or every < early_every
        else is_due_TR | ((age_TR % early_every == 0) & (age_TR < EARLY))
    )


def on_host(readings: Sequence[tuple[int, Sequence[int], Mapping[str, Any]]]) -> list[Reading]:
    """Readings (offset, rows, name -> (R,)) that may be on a device, moved in one copy."""
    if not readings:
        return []
    values = [value for _, _, by_name in readings for value in by_name.values()]
    if all(hasattr(value, "detach") for value in values):
        import torch

        flat = torch.cat([value.detach().double() for value in values]).cpu().numpy()
    else:
        flat = np.concatenate([np.asarray(value, dtype=np.float64) for value in values])
    found, start = [], 0
    for offset, rows, by_name in readings:
        end = start + len(by_name) * len(rows)
        table_CR = flat[start:end].reshape(len(by_name), len(rows))
        found.append(Reading(offset, tuple(rows), tuple(by_name), table_CR))
        start = end
    return found


def of_row(readings: Sequence[Reading], row: int) -> list[Point]:
    """Readings of one row, as (steps into the look, name -> value)."""
    return [
        (reading.offset, dict(zip(reading.names, reading.values_CR[:, reading.rows.index(row)], strict=True)))
        for reading in readings
        if row in reading.rows
    ]


def as_table(points: Sequence[Point]) -> Trace:
    """Points (step, name -> value) of one member as columns in single precision; NaN where not read."""
    names = dict.fromkeys(name for _, values in points for name in values)
    with np.errstate(over="ignore"):  # values beyond single precision become infinite
        columns = {
            name: np.array([values.get(name, np.nan) for _, values in points]).astype(np.float32) for name in names
        }
    return {"step": np.array([step for step, _ in points], dtype=np.int64), **columns}
