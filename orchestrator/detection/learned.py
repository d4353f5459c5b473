"""How much of what its sweep shows to be learnable a trial has learned: a trial alone cannot know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.messages import TrialRow

# Shares of fewer than this fall of the loss, as a share of the start, would be shares of noise.
_LEAST_FALL = 0.01


def with_learned_shares(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """The rows of one sweep, each with its ``learned_share``: (start - final loss) / (start - best final loss).

    The best final loss is that of the trials of the sweep that were not lost. The start is the trial's initial loss,
    but at most the lower quartile of the sweep's: an initial blow-up is not what was learned. The share is None where a
    loss is missing, and where no trial of the sweep has learned anything.
    """
    initials = sorted(_finite(row.initial_loss for row in rows))
    finals = _finite(row.final_loss for row in rows if row.outcome in ("stable", "spiked"))
    if not initials or not finals:
        return list(rows)
    usual, best = initials[(len(initials) - 1) // 4], min(finals)
    return [replace(row, learned_share=_share(row, usual, best)) for row in rows]


def _share(row: TrialRow, usual: float, best: float) -> float | None:
    if not row.is_judged or row.outcome == "unknown" or row.initial_loss is None or row.final_loss is None:
        return None
    start = min(row.initial_loss, usual)
    if start - best <= _LEAST_FALL * abs(start):
        return None
    share = (start - row.final_loss) / (start - best)
    return share if math.isfinite(share) else None


def _finite(losses: Iterable[float | None]) -> list[float]:
    return [loss for loss in losses if loss is not None and math.isfinite(loss)]
