"""Which points of a trial's curves a tracker gets: few, but every extreme and the steps around each spike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.base.reports import Trace
from orchestrator.mirrors.tracker import Point

# Shapes: N steps of a curve, B buckets of S steps.

MOST_POINTS = 200  # of a column, but for the peaks of episodes, all of which are kept
# Buckets of the columns with spikes, each with its lowest, highest and last value. A store needs 50 us for a point, so
# those of columns that are looked at less cost more than they are worth.
SPIKY = {"loss": 32, "grad_norm": 12}
_FEW = 12  # points of the other columns
_STRAIGHT = 1e-6  # change of the slope, as a share of the steepest, up to which a curve has no bend
_AROUND = 10  # steps kept at the beginning and at the end of an episode off the trend

Episodes = Sequence[tuple[int, int | None]]  # onset and recovery


def curve_points(trace: Trace, episodes: Episodes, every: int | str) -> list[Point]:
    """Finite numbers of every ``every``-th step; with "auto" those of `kept_rows`, and fewer of what does not spike.

    A tracker would store infinity as 1.8e308 and hide NaN.
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
    """Ascending indices of at most about `MOST_POINTS` rows: lowest, highest and last of each bucket, and episodes.

    Of an episode the highest row is always kept, and its first and last ten while there is room. A curve with no more
    rows than three for each bucket is kept whole.
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
    """The rows to show of a curve that still grows, and how many rows they stand for.

    These are the lowest, the highest and the last of each interval of ``num_steps`` / 32 that is complete, beyond the
    first ``after`` rows.
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
    """The rows of an episode, its end excluded."""
    end = len(step_N) if recovery is None else int(np.searchsorted(step_N, recovery))
    return int(np.searchsorted(step_N, onset)), end


def _bends(step_N: np.ndarray, value_N: np.ndarray) -> np.ndarray:
    """The rows between which a curve is straight; `_FEW` evenly spaced ones of a curve with more bends."""
    num = len(step_N)
    slope = np.diff(value_N) / np.diff(step_N)
    scale = np.abs(slope).max(initial=0.0)
    bends = 1 + np.flatnonzero(~(np.abs(np.diff(slope)) <= _STRAIGHT * scale))
    if len(bends) > _FEW:
        return np.unique(np.linspace(0, num - 1, _FEW).astype(int))
    return np.unique([0, *bends, num - 1])


def _extremes(value_N: np.ndarray, num_buckets: int) -> list[int]:
    """The lowest, the highest and the last finite row of each bucket."""
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
    """Finite readings of telemetry, the extremes among them, under the names that ``names`` gives to their columns."""
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
