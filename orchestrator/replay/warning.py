"""A sweep's trials as runs to be warned of: their telemetry, and where they became unstable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orchestrator.ledger.reader import LedgerReader
from orchestrator.messages import Trace, TrialRow
from orchestrator.warning.alarms import Bout, bouts

# A stalled trial learned nothing that it could lose; of an unknown or pruned one nobody knows what it did.
WATCHED = ("stable", "spiked", "diverged")


@dataclass(frozen=True, slots=True, eq=False)
class WatchedRun:
    """A trial with readings, (N,) each column of ``telemetry``, and its instabilities."""

    trial: TrialRow
    telemetry: Trace
    unstable: tuple[Bout, ...]
    num_steps: int


def watched_runs(ledger: LedgerReader) -> Iterator[WatchedRun]:
    """The trials that have readings and an outcome that says whether they were stable, in the sweep's order."""
    for trial in ledger.trials():
        if trial.outcome not in WATCHED:
            continue
        telemetry = ledger.telemetry(trial.trial_id)
        if telemetry and np.isfinite(telemetry.get("grad_norm/all", np.empty(0))).any():
            num_steps = trial.steps_done or trial.steps
            yield WatchedRun(trial, telemetry, unstable(trial), num_steps)


def unstable(trial: TrialRow) -> tuple[Bout, ...]:
    """The instabilities of a trial: its episodes, and the onset of one that drifted away without an episode."""
    num_steps = trial.steps_done or trial.steps
    episodes = list(trial.episodes)
    if not episodes and trial.onset_step is not None:
        episodes = [(trial.onset_step, None)]
    return tuple(bouts(episodes, num_steps))
