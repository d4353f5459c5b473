"""How uncertain the numbers of a warning are: 95 % intervals by resampling whole runs.

Onsets of one run are alike, and so are its false alarms, so that runs and not onsets are drawn, with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.base.intervals import CONFIDENCE
from orchestrator.detection.warning.evaluation import RunWarnings, quality

# Shapes: R runs, D draws.

_DRAWS = 2000
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Intervals:
    """The interval of each number of a ``Quality``; NaN where no draw has it."""

    good_share: Interval
    recall: Interval
    precision: Interval
    false_per_1000: Interval


def intervals(runs: Sequence[RunWarnings], num_draws: int = _DRAWS, seed: int = 0) -> Intervals:
    """Percentile intervals over ``num_draws`` draws of as many runs as there are. Raises ValueError without runs."""
    if not runs:
        raise ValueError("without runs there is no interval")
    counts = [quality([run]) for run in runs]
    good_R, warned_R, onset_R, false_R, alarm_R, calm_R = np.array(
        [(c.num_good, c.num_warned, c.num_onsets, c.num_false, c.num_alarms, c.calm_steps) for c in counts], dtype=float
    ).T
    # How often each run is drawn is all that sums need.
    times_DR = np.random.default_rng(seed).multinomial(len(runs), np.full(len(runs), 1 / len(runs)), size=num_draws)

    def of(part_R: np.ndarray, whole_R: np.ndarray) -> Interval:
        with np.errstate(divide="ignore", invalid="ignore"):
            share_D = (times_DR @ part_R) / (times_DR @ whole_R)
        known = share_D[np.isfinite(share_D)]
        if not len(known):
            return float("nan"), float("nan")
        low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return float(low), float(high)

    return Intervals(
        good_share=of(good_R, onset_R),
        recall=of(warned_R, onset_R),
        precision=of(alarm_R - false_R, alarm_R),
        false_per_1000=of(1000 * false_R, calm_R),
    )
