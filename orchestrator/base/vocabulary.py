"""Labels with one meaning everywhere: outcomes, statuses, states of cells, learning rates; and names of trackers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

Outcome = Literal["stable", "spiked", "diverged", "stalled", "unknown", "pruned"]
# Outcomes of trainings that can be judged. Losses that cannot be judged make a trial unknown, and one that was stopped
# because it was slow is pruned: nobody knows what it would have become.
OUTCOMES: tuple[Outcome, ...] = ("stable", "spiked", "diverged", "stalled")
_WORSE_FIRST: tuple[Outcome, ...] = ("diverged", "stalled", "spiked")
UNKNOWN: Outcome = "unknown"
PRUNED: Outcome = "pruned"
ENOUGH_LOSSES = 10  # a reported level is a median of ten; fewer cannot be judged
# What the infrastructure did.
STATUSES = ("planned", "running", "finished", "interrupted", "lost", "errored")
# A map's label of a stable trial that learned less than this share of what the best trial of its sweep did.
DEGRADED, LEARNED_ENOUGH = "degraded", 0.5
# A map's label of a stable trial whose router has collapsed, which its loss does not show.
COLLAPSED = "collapsed"
# Labels of trials that keep the outcome that their losses say.
MARKS = (DEGRADED, COLLAPSED)
# Labels of a trial's learning rate: raise it, lower it, keep it, cannot be judged.
TOO_SLOW, OSCILLATING, RIGHT, UNSURE = "too slow", "oscillating", "right", "unknown"
IMPORTED = "imported"  # the objective of runs that were trained elsewhere
# Objectives whose trials a user's own code trains: the meaning of their settings, steps and columns is not known here.
STARTED_LATER = "where sweep had not resumed it"  # in the reason of a trial, after its first step
CUSTOM_KINDS = ("command", "python", IMPORTED)

# The trackers that a sweep file can name, and the class of each as MODULE:CLASS. A class
# is imported only when a sweep uses it: trackers are slow to import.
TRACKERS = {
    "mlflow": "orchestrator.mirrors.mlflow:MlflowTracker",
    "tensorboard": "orchestrator.mirrors.tensorboard:TensorBoardTracker",
    "wandb": "orchestrator.mirrors.wandb:WandbTracker",
}


def cell_state(labels: Sequence[str]) -> str:
    """Return the state of a cell from the outcomes of its seeds, or the statuses of seeds without an outcome.

    stable: all seeds are stable. degraded: all are, and some learned less than half of what the sweep's best trial did.
    Another outcome: the most common one, the worse in a tie, of a cell whose seeds are all trained. collapsed: no seed
    has such an outcome, and the router of some has collapsed.
    pruned: some seeds were pruned, and every other one is stable.
    unknown: some seeds have a result and some are outstanding, or finished ones are stable and others errored, or the
    losses of one cannot be judged. errored and not_run: all seeds lack a result, with or without an error. So an
    infrastructure fault never makes an edge, and an untrained seed never makes a cell stable.
    """
    counts = Counter(labels)
    num_finished = sum(counts[label] for label in (*OUTCOMES, *MARKS))
    if counts["unknown"]:
        return "unknown"
    if not num_finished and not counts[PRUNED]:
        return "errored" if counts["errored"] else "not_run"
    if num_finished + counts["errored"] + counts[PRUNED] < len(labels):
        return "unknown"
    unstable = [outcome for outcome in _WORSE_FIRST if counts[outcome]]
    if unstable:
        return max(unstable, key=lambda outcome: counts[outcome])
    if counts[COLLAPSED]:
        return COLLAPSED
    if counts[PRUNED]:
        return PRUNED
    return "unknown" if counts["errored"] else DEGRADED if counts[DEGRADED] else "stable"


def is_known(state: str) -> bool:
    """Return whether a cell of this state is known to be stable or known to be unstable."""
    return state in OUTCOMES or state in MARKS


def is_over_edge(state: str) -> bool:
    """Return whether a cell of this state is known to be over the edge; a degraded one is not, a collapsed one is."""
    return is_known(state) and state not in ("stable", DEGRADED)
