"""Trials that two sweeps share, cell and seed: how many changed sides, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.rule import StableRule


def is_stable(row: TrialResult, rule: StableRule) -> bool:
    """Whether a trial with an outcome is stable; with ``counts_degraded`` a degraded one is not."""
    return row.label == "stable" or (row.is_degraded and not rule)


@dataclass(frozen=True, slots=True)
class Pairs:
    """``num`` trials that two sweeps share, cell and seed.

    ``num_gained`` of them are stable only in the new sweep and ``num_lost`` only in the first; ``p_value`` is McNemar's
    exact test.
    """

    num: int
    num_gained: int
    num_lost: int
    p_value: float


def paired(before: Mapping[tuple[Cell, int], bool], after: Mapping[tuple[Cell, int], bool]) -> Pairs | None:
    """The trials that are in both of ``stable_by_seed``; None without any."""
    shared = before.keys() & after.keys()
    num_gained = sum(after[pair] and not before[pair] for pair in shared)
    num_lost = sum(before[pair] and not after[pair] for pair in shared)
    return Pairs(len(shared), num_gained, num_lost, mcnemar(num_gained, num_lost)) if shared else None


def mcnemar(num_gained: int, num_lost: int) -> float:
    """McNemar's exact two-sided p-value of paired binary outcomes: the sign test of the pairs that differ."""
    from scipy.stats import binomtest

    differing = num_gained + num_lost
    return float(binomtest(num_gained, differing, 0.5).pvalue) if differing else 1.0
