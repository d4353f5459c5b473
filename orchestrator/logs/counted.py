"""Steps of losses by a counter such as 10/300 in a whole table."""

from __future__ import annotations

import numpy as np

from orchestrator.logs.columns import COUNTER, NUM_FIRST, Numbering, counts_steps
from orchestrator.logs.steps import Cells, epochs_of

FEWEST, ENDS = 10, 3  # points of a run that another follows in the same file; and at its ends, whose median counts
MUCH_NEARER = 0.5
_BEYOND_NOISE = 6.0  # median changes from loss to loss


def counted(
    cells: Cells, loss_rows: np.ndarray, losses: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]] | None:
    """Return the losses that count, their steps by the counter, which ones begin a run, and notes.

    None if the counter counts no steps.
    """
    rows, values = cells[COUNTER]
    last_N = np.searchsorted(rows, loss_rows, side="right") - 1
    # A counter applies to one loss, on its line or below it.
    is_new_N = (last_N >= 0) & (rows[np.maximum(last_N, 0)] > np.append(-1, loss_rows[:-1]))
    value_N = np.where(is_new_N, values[np.maximum(last_N, 0)], np.nan)
    epoch_N = epochs_of(cells, loss_rows)
    is_first_N = np.isfinite(value_N[:NUM_FIRST])
    if not counts_steps(value_N[:NUM_FIRST][is_first_N].tolist(), epoch_N[:NUM_FIRST][is_first_N].tolist()):
        return None
    begins = _counters_begin(value_N, epoch_N, losses)
    kept: list[int] = []
    steps: list[int] = []
    is_first: list[bool] = []
    notes: list[str] = []
    for begin, end in zip(begins, [*begins[1:], len(losses)], strict=True):
        numbering, num_before = Numbering(), len(kept)
        for i in range(begin, end):
            is_own = bool(last_N[i] >= 0 and rows[last_N[i]] == loss_rows[i])
            step = numbering.next_step(float(value_N[i]), float(epoch_N[i]), is_counter=True, is_own=is_own)
            if step is not None:
                kept.append(i)
                steps.append(step)
                is_first.append(len(kept) == num_before + 1)
        notes += numbering.notes(has_steps=True)
    return np.array(kept), np.array(steps, dtype=np.int64), np.array(is_first), list(dict.fromkeys(notes))


def _counters_begin(value_N: np.ndarray, epoch_N: np.ndarray, losses: np.ndarray) -> list[int]:
    """Return where runs begin, of counters that also begin again with each epoch.

    The epoch says so, if it begins again too. Otherwise the losses do: they fell, and then fall once more like the
    first ones.
    """
    begins = [0]
    counted = np.flatnonzero(np.isfinite(value_N))
    values = value_N[counted]
    back = counted[1:][(values[1:] < values[:-1]) & (values[1:] <= values[0])]
    for at in back.tolist():
        begin = begins[-1]
        if at - begin < FEWEST or len(losses) - at < FEWEST:
            continue
        first, before, epoch = epoch_N[[begin, at - 1, at]]
        if not epoch > before and (epoch <= first < before or _falls_again(losses[begin:at], losses[at:])):
            begins.append(at)
    return begins


def _falls_again(run: np.ndarray, later: np.ndarray) -> bool:
    """Whether ``later`` losses begin like the ``run`` before, which fell by more than its noise."""
    last = np.median(run[-ENDS:])
    if not np.isfinite(last):
        return True
    firsts, again = (np.median(part[: ENDS**2].reshape(ENDS, ENDS), axis=1) for part in (run, later))
    change_N = np.abs(np.diff(run[np.isfinite(run)]))
    has_fallen = firsts[0] - last > _BEYOND_NOISE * np.median(change_N)
    return bool(has_fallen and np.abs(again - firsts).sum() < MUCH_NEARER * np.abs(again - last).sum())
