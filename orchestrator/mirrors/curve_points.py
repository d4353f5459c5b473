"""Thin a trial's curves for a tracker: few points, but every extreme and the steps around each spike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.base.packs import Trace
from orchestrator.mirrors.tracker import Point

# Shapes: N steps of a curve, B buckets of S steps.

MOST_POINTS = 200  # of a column; the peaks of episodes may exceed it
# Buckets of the columns with spikes; the lowest, highest and last value of each bucket are kept. A point costs a store
# 50 us, so less important columns have fewer.
SPIKY = {"loss": 32, "grad_norm": 12}
_FEW = 12  # points of the other columns
_STRAIGHT = 1e-6  # a curve bends where its slope changes by more than this share of the steepest slope
_AROUND = 10  # steps kept at the start and at the end of an episode

Episodes = Sequence[tuple[int, int | None]]  # onset and recovery


def curve_points(trace: Trace, episodes: Episodes, every: int | str) -> list[Point]:
    """Return the finite values at every ``every``-th step, or with "auto" as few as show the curves.

    "auto" applies `kept_rows` to columns with spikes and keeps the bends of the others. Non-finite values are left out:
    a tracker would store infinity as 1.8e308 and hide NaN.
    """
    if not trace:
        return []
    step_N = trace["step"]
    points = []
    for name, value_N in trace.items():
        if name == "step":
            continue
        if isinstance(every, int):
            kept = np.flatnonzero(step_N % every == 0)
        elif name in SPIKY:
            kept = kept_rows(step_N, value_N, episodes, SPIKY[name])
        else:
            kept = _bends(step_N, value_N)
        points += [Point(name, float(value_N[i]), int(step_N[i])) for i in kept if math.isfinite(value_N[i])]
    return points


def kept_rows(step_N: np.ndarray, value_N: np.ndarray, episodes: Episodes, num_buckets: int) -> np.ndarray:
    """Return ascending indices of about `MOST_POINTS` rows: each bucket's lowest, highest and last, and episodes.

    The highest row of an episode is always kept, its first and last ten rows while there is room. A curve with at most
    three rows per bucket is kept whole.
    """
    num = len(step_N)
    if num <= 3 * num_buckets:
        return np.arange(num)
    kept = set(_extremes(value_N, num_buckets)) | {0, num - 1}
    spans = [_rows_of(step_N, onset, recovery) for onset, recovery in episodes]
    kept |= {start + int(np.argmax(_low_if_missing(value_N[start:end]))) for start, end in spans if end > start}
    for start, end in spans:
        for row in (*range(start, min(end, start + _AROUND)), *range(max(start, end - _AROUND), end)):
            if len(kept) < MOST_POINTS:
                kept.add(row)
    return np.array(sorted(kept))


def complete_rows(step_N: np.ndarray, value_N: np.ndarray, num_steps: int, after: int) -> tuple[np.ndarray, int]:
    """Return the new rows to show of a growing curve, and the number of rows that are covered.

    The rows are the lowest, highest and last of each complete interval of ``num_steps`` / 32 steps after the first
    ``after`` rows.
    """
    size = max(1, -(-num_steps // SPIKY["loss"]))
    kept: set[int] = set()
    while after + size <= len(step_N):
        value_S = value_N[after : after + size]
        if np.isfinite(value_S).any():
            lowest = np.where(np.isfinite(value_S), value_S, np.inf).argmin()
            kept |= {after + int(lowest), after + int(_low_if_missing(value_S).argmax()), after + size - 1}
        after += size
    return np.array(sorted(kept), dtype=int), after


def _rows_of(step_N: np.ndarray, onset: int, recovery: int | None) -> tuple[int, int]:
    """Return the rows of an episode as a half-open range."""
    end = len(step_N) if recovery is None else int(np.searchsorted(step_N, recovery))
    return int(np.searchsorted(step_N, onset)), end


def _bends(step_N: np.ndarray, value_N: np.ndarray) -> np.ndarray:
    """Return the rows of a curve's bends, or `_FEW` evenly spaced rows if there are more."""
    num = len(step_N)
    slope = np.diff(value_N) / np.diff(step_N)
    scale = np.abs(slope).max(initial=0.0)
    bends = 1 + np.flatnonzero(~(np.abs(np.diff(slope)) <= _STRAIGHT * scale))
    if len(bends) > _FEW:
        return np.unique(np.linspace(0, num - 1, _FEW).astype(int))
    return np.unique([0, *bends, num - 1])


def _extremes(value_N: np.ndarray, num_buckets: int) -> list[int]:
    """Return the lowest, highest and last finite row of each bucket."""
    size = -(-len(value_N) // num_buckets)
    padded = np.full(num_buckets * size, np.nan)
    padded[: len(value_N)] = value_N
    value_BS = padded.reshape(num_buckets, size)
    is_finite_BS = np.isfinite(value_BS)
    has_any_B = is_finite_BS.any(axis=1)
    start_B = np.arange(num_buckets) * size
    lowest_B = start_B + np.where(is_finite_BS, value_BS, np.inf).argmin(axis=1)
    highest_B = start_B + _low_if_missing(value_BS).argmax(axis=1)
    last_B = start_B + size - 1 - is_finite_BS[:, ::-1].argmax(axis=1)
    return np.concatenate([lowest_B, highest_B, last_B])[np.tile(has_any_B, 3)].tolist()


def _low_if_missing(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, -np.inf)


def reading_points(telemetry: Trace, names: Mapping[str, str], num_buckets: int) -> list[Point]:
    """Return finite readings, including the extremes, of columns of telemetry; ``names`` maps them to new names."""
    points = []
    for column, shown in names.items():
        if column not in telemetry:
            continue
        step_N, value_N = telemetry["step"], telemetry[column]
        is_read_N = np.isfinite(value_N)
        step_R, value_R = step_N[is_read_N], value_N[is_read_N]
        kept = kept_rows(step_R, value_R, [], num_buckets)
        points += [Point(shown, float(value_R[i]), int(step_R[i])) for i in kept]
    return points
