"""Cells whose seeds disagree: one ended stable, another diverged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.base.space import Trial, format_value
from orchestrator.base.trial_result import MemberResult
from orchestrator.search.listed import cell_key


class MixedCells:
    """Finds the cells of a sweep that become mixed.

    A cell is mixed once it has a stable and a diverged seed, whichever ended first: where seeds train together, early
    stopping ends the diverged one long before the stable one.
    """

    def __init__(self, trials: Mapping[str, Trial], outcomes: Mapping[str, str]) -> None:
        """Cells that ``outcomes``, by trial id, make mixed already are never found. ``trials`` may grow."""
        self._trials = trials
        self._outcomes: defaultdict[tuple[tuple[str, Any], ...], set[str]] = defaultdict(set)
        for trial_id, outcome in outcomes.items():
            self._outcomes[cell_key(trials[trial_id].cell)].add(outcome)

    def newly_mixed(self, results: Iterable[MemberResult]) -> list[str]:
        """The names of cells that ``results`` make mixed, in order, e.g. ``lr=0.1 beta2=0.99``."""
        found = []
        for result in results:
            cell = cell_key(self._trials[result.trial_id].cell)
            outcomes = self._outcomes[cell]
            was_mixed = _is_mixed(outcomes)
            outcomes.add(result.outcome)
            if _is_mixed(outcomes) and not was_mixed:
                found.append(" ".join(f"{name}={format_value(value)}" for name, value in cell))
        return found


def _is_mixed(outcomes: set[str]) -> bool:
    return outcomes >= {"stable", "diverged"}
