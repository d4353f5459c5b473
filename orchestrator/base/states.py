"""The state of a cell, from the outcomes of its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.base.vocabulary import DEGRADED, OUTCOMES, PRUNED, Outcome

_WORSE_FIRST: tuple[Outcome, ...] = ("diverged", "stalled", "spiked")


def cell_state(labels: Sequence[str]) -> str:
    """Return the state of a cell from the outcomes of its seeds, or the statuses of seeds without an outcome.

    stable: all seeds are stable. degraded: all are, and some learned less than half of what the sweep's best trial did.
    Another outcome: the most common one, the worse in a tie, of a cell whose seeds are all trained.
    pruned: some seeds were pruned, and every other one is stable.
    unknown: some seeds have a result and some are outstanding, or finished ones are stable and others errored, or the
    losses of one cannot be judged. errored and not_run: all seeds lack a result, with or without an error. So an
    infrastructure fault never makes an edge, and an untrained seed never makes a cell stable.
    """
    counts = Counter(labels)
    num_finished = sum(counts[label] for label in (*OUTCOMES, DEGRADED))
    if counts["unknown"]:
        return "unknown"
    if not num_finished and not counts[PRUNED]:
        return "errored" if counts["errored"] else "not_run"
    if num_finished + counts["errored"] + counts[PRUNED] < len(labels):
        return "unknown"
    unstable = [outcome for outcome in _WORSE_FIRST if counts[outcome]]
    if unstable:
        return max(unstable, key=lambda outcome: counts[outcome])
    if counts[PRUNED]:
        return PRUNED
    return "unknown" if counts["errored"] else DEGRADED if counts[DEGRADED] else "stable"


def is_known(state: str) -> bool:
    """Return whether a cell of this state is known to be stable or known to be unstable."""
    return state in OUTCOMES or state == DEGRADED


def is_over_edge(state: str) -> bool:
    """Return whether a cell of this state is known to be over the edge; a degraded one is not."""
    return is_known(state) and state not in ("stable", DEGRADED)
