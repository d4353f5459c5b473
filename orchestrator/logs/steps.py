"""The steps of a log: which step each loss has, and where steps begin again or go back."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.logs.columns import EPOCH, find_name

Cells = Mapping[str, tuple[np.ndarray, np.ndarray]]  # rows and values of each column

_MAX_AT_ONE = 5  # losses with one step; of more it is a setting
_FEWEST_BACK = 2  # steps that do not increase where several processes print
_ALIKE_STEPS, _WITHIN = 0.8, 0.5  # shares of the steps that each process printed, and of ways back within the run


def steps_of(cells: Cells, step: str | None, loss_rows: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the step of each loss, and a note. A step also applies to the lines below it without a step."""
    numbered = np.arange(len(loss_rows), dtype=np.int64)
    if step is None:
        return numbered, "no column of steps: points are numbered from 0"
    rows, values = cells[step]
    last = np.searchsorted(rows, loss_rows, side="right") - 1
    step_N = np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
    step_N[last < 0] = values[0]  # losses before the first named step
    if not (np.abs(step_N) < 2**53).all() or (step_N != np.round(step_N)).any():
        return numbered, f"{step} is not an integer everywhere: points are numbered from 0"
    if len(step_N) > _MAX_AT_ONE and (step_N == step_N[0]).all():
        return numbered, f"{step} is the same everywhere: points are numbered from 0"
    return step_N.astype(np.int64), ""


def epochs_of(cells: Cells, loss_rows: np.ndarray) -> np.ndarray:
    """Return the epoch of each loss, from its row or the last row before it that has one, or NaN."""
    name = find_name(cells, EPOCH)
    if name is None:
        return np.full(len(loss_rows), np.nan)
    rows, values = cells[name]
    last_N = np.searchsorted(rows, loss_rows, side="right") - 1
    return np.where(last_N >= 0, values[np.maximum(last_N, 0)], np.nan)


def continued_steps(step_N: np.ndarray, epoch_N: np.ndarray) -> np.ndarray | None:
    """Continue steps that restart in each later epoch from the epoch before; return None if none restarts.

    Where both begin again another run follows, whose steps are its own.
    """
    goes_back_N = np.append(False, step_N[1:] <= np.minimum(step_N[:-1], step_N[0]))
    begins_N = goes_back_N & np.append(False, epoch_N[1:] > epoch_N[:-1])
    if not begins_N.any():
        return None
    is_run_N = goes_back_N & np.append(False, (epoch_N[1:] <= epoch_N[0]) & (epoch_N[:-1] > epoch_N[0]))
    gap_N = np.append(1, np.diff(step_N))
    gap_N[begins_N | is_run_N] = 0
    last_gap_N = gap_N[np.maximum.accumulate(np.where(begins_N | is_run_N, 0, np.arange(len(gap_N))))]
    # Each epoch starts one gap after the last step of the one before.
    jump_N = np.append(0, step_N[:-1] + last_gap_N[:-1] - step_N[1:])
    added_N = np.cumsum(np.where(begins_N, jump_N, 0))
    before_N = np.where(is_run_N, added_N, 0)  # in the runs before
    return step_N + added_N - np.maximum.accumulate(before_N)


def kept_points(steps: np.ndarray) -> np.ndarray:
    """Return the points to keep: a run that went back to an earlier step wrote the following steps again."""
    lowest_later = np.minimum.accumulate(steps[::-1])[::-1]
    return np.flatnonzero(np.append(steps[:-1] < lowest_later[1:], True))


def first_lines(steps: Sequence[int]) -> tuple[list[int], int]:
    """Return where each of ``steps`` is first, in order, and how many processes without names printed them.

    Each process printed the same steps, and none waits for the others. Of one process there is nothing to return.
    """
    back = [after for before, after in itertools.pairwise(steps) if after <= before]
    if len(back) < _FEWEST_BACK or sum(step > steps[0] for step in back) < _WITHIN * len(back):
        return [], 1  # epochs and later runs begin at their first step again
    times = Counter(steps)
    num, num_alike = Counter(times.values()).most_common(1)[0]
    if num == 1 or num_alike < _ALIKE_STEPS * len(times):
        return [], 1
    first: dict[int, int] = {}
    for at, step in enumerate(steps):
        first.setdefault(step, at)
    return [first[step] for step in sorted(first)], num
