"""How many steps a trial needs to a target loss, read off its curve."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from orchestrator.ledger.reader import LedgerReader

_IN_A_ROW = 10  # losses whose median is a level, as in the columns final_loss and best_loss


def steps_to_target(step_N: np.ndarray, loss_N: np.ndarray, target: float) -> int | None:
    """The step at which the median of ten losses in a row is first as low as ``target``; None where it never is."""
    if len(loss_N) < _IN_A_ROW:
        return None
    level_M = np.median(np.lib.stride_tricks.sliding_window_view(loss_N, _IN_A_ROW), axis=1)
    reached = np.flatnonzero(level_M <= target)
    return int(step_N[reached[0] + _IN_A_ROW - 1]) if len(reached) else None


def target_steps(ledger: LedgerReader, trial_ids: Iterable[str], target: float) -> dict[str, float]:
    """``steps_to_target`` of each of these trials that reached it."""
    found = {}
    for trial_id in trial_ids:
        trace = ledger.trace(trial_id, ("step", "loss"))
        steps = steps_to_target(trace["step"], trace["loss"], target) if "loss" in trace else None
        if steps is not None:
            found[trial_id] = float(steps)
    return found
