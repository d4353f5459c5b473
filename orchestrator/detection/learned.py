"""How much of what its sweep shows to be learnable a trial has learned: a trial alone cannot know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.base.trial_result import TrialResult

# Shares of fewer than this fall of the loss, as a share of the start, would be shares of noise.
_LEAST_FALL = 0.01


def with_learned_shares(rows: Sequence[TrialResult]) -> list[TrialResult]:
    """The rows of one sweep, each with its ``learned_share``: (start - final loss) / (start - best final loss).

    The best final loss is that of the trials of the sweep that were not lost. The start is the trial's initial loss,
    but at most the lower quartile of the sweep's: an initial blow-up is not what was learned. The share is None where a
    loss is missing, and where no trial of the sweep has learned anything.
    """
    shares = learned_shares([(row.outcome, row.initial_loss, row.final_loss) for row in rows])
    return [
        replace(row, learned_share=share if row.is_judged else None) for row, share in zip(rows, shares, strict=True)
    ]


def learned_shares(results: Sequence[tuple[str | None, float | None, float | None]]) -> list[float | None]:
    """The share of each trial of a sweep, by outcome, initial and final loss, as ``with_learned_shares`` defines it."""
    initials = sorted(_finite(initial for _, initial, _ in results))
    finals = _finite(final for outcome, _, final in results if outcome in ("stable", "spiked"))
    if not initials or not finals:
        return [None] * len(results)
    usual, best = initials[(len(initials) - 1) // 4], min(finals)
    return [_share(*result, usual, best) for result in results]


def _share(outcome: str | None, initial: float | None, final: float | None, usual: float, best: float) -> float | None:
    if outcome in (None, "unknown") or initial is None or final is None:
        return None
    start = min(initial, usual)
    if start - best <= _LEAST_FALL * abs(start):
        return None
    share = (start - final) / (start - best)
    return share if math.isfinite(share) else None


def _finite(losses: Iterable[float | None]) -> list[float]:
    return [loss for loss in losses if loss is not None and math.isfinite(loss)]
