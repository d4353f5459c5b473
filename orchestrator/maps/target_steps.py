"""How many steps a trial needs to a target loss, read off its curve."""

from __future__ import annotations

import numpy as np

from orchestrator.maps.table import SweepTable

_IN_A_ROW = 10  # losses whose median is a level, as in the columns final_loss and best_loss


def steps_to_target(step_N: np.ndarray, loss_N: np.ndarray, target: float) -> int | None:
    """The step at which the median of ten losses in a row is first as low as ``target``; None if it never is."""
    if len(loss_N) < _IN_A_ROW:
        return None
    level_M = np.median(np.lib.stride_tricks.sliding_window_view(loss_N, _IN_A_ROW), axis=1)
    reached = np.flatnonzero(level_M <= target)
    return int(step_N[reached[0] + _IN_A_ROW - 1]) if len(reached) else None


def target_steps(table: SweepTable, target: float) -> dict[str, float]:
    """``steps_to_target`` of each run that reached it, by its id."""
    reached = {}
    for run in table.runs:
        trace = table.ledger.trace(run.trial_id, ("step", "loss"))
        steps = steps_to_target(trace["step"], trace["loss"], target) if "loss" in trace else None
        if steps is not None:
            reached[run.trial_id] = float(steps)
    return reached
