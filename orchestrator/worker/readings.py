"""Which members are read at which steps while a pack trains, and their readings as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.reports import Trace

# Shapes: T steps of a look, R rows of a trainer, C columns.

Point = tuple[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings of one step for some rows of a trainer: ``values_CR`` of ``names``, ``offset`` steps into the look."""

    offset: int
    rows: tuple[int, ...]
    names: tuple[str, ...]
    values_CR: np.ndarray


# Instabilities of the first steps, and those under way, come faster than the usual readings. There is one every
# ``CLOSE_EVERY`` steps for ``CLOSE`` steps.
CLOSE, CLOSE_EVERY = 50, 5
# A pack looks at its members every so many steps at most. A departure from the trend is known by then however fast the
# steps are, so that the steps that are read do not depend on it.
LOOK_STEPS = 10


def due(age_R: np.ndarray, num_steps: int, every: int | None) -> np.ndarray:
    """Which rows to read at each of the next steps, (T, R): at every ``every``-th step of the member."""
    age_TR = _ages(age_R, num_steps)
    return np.zeros(age_TR.shape, dtype=bool) if every is None else age_TR % every == 0


def closely_due(age_R: np.ndarray, left_R: np.ndarray, num_steps: int, every: int | None) -> np.ndarray:
    """Which rows to read besides, (T, R): from the first step, and from ``LOOK_STEPS`` after the step ``left_R``.

    None where ``every`` is null, or not more than ``CLOSE_EVERY``.
    """
    age_TR = _ages(age_R, num_steps)
    if every is None or every < CLOSE_EVERY:
        return np.zeros(age_TR.shape, dtype=bool)
    since_TR = age_TR - left_R - LOOK_STEPS
    is_close_TR = (age_TR < CLOSE) | ((since_TR >= 0) & (since_TR < CLOSE))
    return is_close_TR & (age_TR % CLOSE_EVERY == 0)


def _ages(age_R: np.ndarray, num_steps: int) -> np.ndarray:
    return age_R + np.arange(num_steps)[:, None]


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
