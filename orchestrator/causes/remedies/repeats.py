"""Whether two runs are the same, and how much they differ: the control, and forks that are only resumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from orchestrator.base.packs import Trace
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.remedy import NO_CHANGE, fork_of, own_interventions
from orchestrator.ledger.reader import LedgerReader

_CURVE = ("loss", "grad_norm")
_MIN_SHARED = 2  # losses at the same steps, without which two curves are not compared


@dataclass(frozen=True, slots=True)
class Difference:
    """How two curves differ: the first step with different losses, and the largest relative difference.

    After the onset of an instability any difference grows, so ``largest`` covers only the steps before it.
    """

    step: int
    largest: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """A fork that is resumed at a step and left alone, and how it differs from the trial; None if it repeats it."""

    fork_step: int
    differs: Difference | None


@dataclass(frozen=True, slots=True)
class Ignored:
    """A remedy at a fork step that the trainer ignores when it resumes."""

    name: str
    fork_step: int


@dataclass(frozen=True, slots=True)
class Repeats:
    """What resuming alone does, and which remedies have no effect."""

    resumed: tuple[Resumed, ...] = ()
    without_effect: tuple[Ignored, ...] = ()


NO_REPEATS = Repeats()


def difference(first: Trace, second: Trace, onset: int | None = None) -> Difference | None:
    """How the losses of two curves differ at the steps that both have; None if they are equal bit for bit."""
    steps, in_first, in_second = np.intersect1d(first["step"], second["step"], return_indices=True)
    a, b = np.asarray(first["loss"], dtype=float)[in_first], np.asarray(second["loss"], dtype=float)[in_second]
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
    """How the losses of the control differ from the trial's; None if only other columns do."""
    first, second = ledger.trace(trial.trial_id, _CURVE), trained.trace(control.trial_id, _CURVE)
    return difference(first, second, trial.onset_step) if "loss" in first and "loss" in second else None


def repeats_of(ledger: LedgerReader, trial: TrialResult, trained: LedgerReader, rows: Iterable[TrialResult]) -> Repeats:
    """Compare the forks of a custom trainer's ``trial``, in the ledger ``trained``, with it and with each other."""
    own = ledger.trace(trial.trial_id, _CURVE)
    if "loss" not in own:
        return NO_REPEATS
    forks = {
        (fork.remedy.name, fork.step): row.trial_id
        for row in rows
        if row.is_judged and (fork := fork_of(own_interventions(row))) is not None and not fork.replicate
    }
    alone = {step: trained.trace(fork_id, _CURVE) for (name, step), fork_id in forks.items() if name == NO_CHANGE}
    resumed = [
        Resumed(step, difference(own, curve, trial.onset_step))
        for step, curve in sorted(alone.items())
        if "loss" in curve
    ]
    # The trainer ignores a remedy if its fork has the losses of the fork that is left alone.
    unchanged = {0: own, **alone}
    ignored = [
        Ignored(name, step)
        for (name, step), fork_id in forks.items()
        if name != NO_CHANGE and step in unchanged and _is_same(unchanged[step], trained.trace(fork_id, _CURVE), step)
    ]
    return Repeats(tuple(resumed), tuple(ignored))


def _is_same(alone: Trace, curve: Trace, step: int) -> bool:
    if "loss" not in alone or "loss" not in curve:
        return False
    shared = np.intersect1d(alone["step"], curve["step"])
    return int((shared >= step).sum()) >= _MIN_SHARED and difference(alone, curve) is None
