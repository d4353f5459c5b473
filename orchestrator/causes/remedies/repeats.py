"""Whether two runs are one and the same, and by how much they differ: the control, and forks that are only resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.base.reports import Trace
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.remedy import NO_CHANGE, Fork, fork_of
from orchestrator.ledger.reader import LedgerReader

_CURVE = ("loss", "grad_norm")
_LEAST = 2  # losses that both have, without which nothing can be told


@dataclass(frozen=True, slots=True)
class Difference:
    """Two curves: the first step at which their losses differ, and the largest difference as a share of the first's.

    After the onset of an instability any difference grows, so ``largest`` is that of the steps before it.
    """

    step: int
    largest: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """A fork that is resumed at a step and left alone, and how it differs from the trial; None where it repeats it."""

    fork_step: int
    differs: Difference | None


@dataclass(frozen=True, slots=True)
class Repeats:
    """What resuming alone does, and the remedies (name, fork step) that the trainer does not act on when it resumes."""

    resumed: tuple[Resumed, ...] = ()
    without_effect: tuple[tuple[str, int], ...] = ()


NO_REPEATS = Repeats()


def difference(first: Trace, second: Trace, onset: int | None = None) -> Difference | None:
    """How the losses of two curves differ at the steps that both have; None where they are equal to the bit."""
    steps, here, there = np.intersect1d(first["step"], second["step"], return_indices=True)
    a, b = np.asarray(first["loss"], dtype=float)[here], np.asarray(second["loss"], dtype=float)[there]
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not differs.any():
        return None
    before = differs if onset is None else differs & (steps < onset)
    with np.errstate(all="ignore"):
        share = np.nan_to_num(np.abs(b - a)[before] / np.abs(a[before]), nan=np.inf)
    return Difference(int(steps[differs][0]), float(share.max(initial=0.0)))


def control_difference(
    ledger: LedgerReader, trial: TrialResult, trained: LedgerReader, control: TrialResult
) -> Difference | None:
    """How the losses of the control differ from those of the trial; None where only other columns do."""
    first, second = ledger.trace(trial.trial_id, _CURVE), trained.trace(control.trial_id, _CURVE)
    return difference(first, second, trial.onset_step) if "loss" in first and "loss" in second else None


def repeats_of(ledger: LedgerReader, trial: TrialResult, trained: LedgerReader, rows: Iterable[TrialResult]) -> Repeats:
    """The forks of a custom trainer's ``trial`` in the ledger ``trained``, beside each other and beside the trial."""
    forks = {
        (fork.remedy.name, fork.step): (fork, row)
        for row in rows
        if row.is_judged and (fork := fork_of(row.config.get("interventions") or ())) is not None and not fork.replicate
    }
    own = ledger.trace(trial.trial_id, _CURVE)
    if "loss" not in own:
        return NO_REPEATS
    alone = {step: trained.trace(row.trial_id, _CURVE) for (name, step), (_, row) in forks.items() if name == NO_CHANGE}
    resumed = [
        Resumed(step, difference(own, curve, trial.onset_step))
        for step, curve in sorted(alone.items())
        if "loss" in curve
    ]
    return Repeats(tuple(resumed), tuple(_without_effect(forks, {0: own, **alone}, trained)))


def _without_effect(
    forks: Mapping[tuple[str, int], tuple[Fork, TrialResult]], alone: Mapping[int, Trace], trained: LedgerReader
) -> Sequence[tuple[str, int]]:
    """The remedies whose fork has the losses of the one that is left alone: the trainer takes its own values."""
    found = []
    for (name, step), (_, row) in forks.items():
        curve = trained.trace(row.trial_id, _CURVE)
        if name != NO_CHANGE and step in alone and _is_same(alone[step], curve, step):
            found.append((name, step))
    return found


def _is_same(alone: Trace, curve: Trace, step: int) -> bool:
    if "loss" not in alone or "loss" not in curve:
        return False
    both = np.intersect1d(alone["step"], curve["step"])
    return int((both >= step).sum()) >= _LEAST and difference(alone, curve) is None
