"""The fork of a run that takes one mechanism away and nothing else, as far as a run can change while it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.causes.evidence import Evidence
from orchestrator.maps.neighbours import below

LEAD = 10  # steps from a fork to what it should prevent
BATCH_LEAD = 3  # steps from a fork to a batch that is replaced, and how near to it a run fails because of it
_CALM_RATE = 0.5  # of the learning rate at which the curvature is at its threshold
_UNMEASURED_RATE = 0.1  # of the learning rate, if nothing says which one is calm
_BELOW_THRESHOLD = 0.95  # of the curvature's threshold: what stands still there does not overshoot
_LOWEST_RATE = 0.01  # factor with which a ramp begins


@dataclass(frozen=True, slots=True)
class Removal:
    """Changes before the step ``step``; their ``at`` counts from there.

    If it ``changes_rate``, it helps whatever the mechanism is and so proves one only next to the evidence. With
    ``keeps`` the forks without the change see the trial's own data from that step: the batch is the mechanism. If it
    ``may_remain``, nothing says that the change takes the mechanism away, so forks that fail do not refute it.
    """

    step: int
    entries: tuple[Mapping[str, Any], ...]
    changes_rate: bool = False
    keeps: int | None = None
    may_remain: bool = False


# Takes the evidence, and when the mechanism began to act if that is known. None if no fork takes it away alone.
Remove = Callable[[Evidence, int | None], Removal | None]


def irremovable(evidence: Evidence, began: int | None) -> Removal | None:
    """No fork takes the mechanism away alone."""
    return None


def soon_before(evidence: Evidence, began: int | None) -> int:
    """A few steps before the mechanism began to act, at most before the onset; the first step if there are none."""
    return max(0, min(evidence.until, evidence.until if began is None else began) - LEAD)


def held(**entry: Any) -> Remove:
    """Hold or change something from a few steps before the mechanism began."""

    def remove(evidence: Evidence, began: int | None) -> Removal | None:
        return Removal(soon_before(evidence, began), ({"at": 0, **entry},))

    return remove


def still_v(evidence: Evidence, began: int | None) -> Removal | None:
    """Keep the second moment as it last was when steps were shorter than the threshold, before it decayed further.

    Without such a reading from a few steps before the decay was seen, when v may have been too low already.
    """
    end = min(evidence.until, evidence.until if began is None else began)
    readings = evidence.threshold_ratio.between(1, end + 1)
    calm = readings.step_N[readings.value_N <= _BELOW_THRESHOLD]
    step = int(calm[-1]) if len(calm) else max(1, end - LEAD)
    if step >= evidence.until:
        return None
    return Removal(step, ({"at": 0, "optimizer": "sgd_like"},), may_remain=not len(calm))


def from_the_start(
    setting: str, value: Callable[[Evidence], float | str | None], *, changes_rate: bool = False
) -> Remove:
    """Set a field from the first step; None if ``value`` has none for the trial."""

    def remove(evidence: Evidence, began: int | None) -> Removal | None:
        chosen = value(evidence)
        return None if chosen is None else Removal(0, ({"at": 0, "set": {setting: chosen}},), changes_rate=changes_rate)

    return remove


def calm_rate(evidence: Evidence, began: int | None) -> Removal | None:
    """Lower the learning rate to half, or to half of 2 / curvature at the highest curvature before the onset.

    Without a reading, at least to the nearest lower rate that is stable in the trial's row of the sweep; if no cell is,
    to a tenth, where the mechanism may remain.
    """
    highest = evidence.threshold_ratio.between(0, evidence.until + 1).largest()
    calm = 1 / highest if highest else _stable_factor(evidence)
    factor = _UNMEASURED_RATE if calm is None else _CALM_RATE * min(1.0, calm)
    entry = {"at": 0, "set": {"lr": f"x{factor:.3g}"}}
    return Removal(soon_before(evidence, began), (entry,), changes_rate=True, may_remain=calm is None)


def _stable_factor(evidence: Evidence) -> float | None:
    """The nearest lower learning rate of the trial's row that is stable, as a factor; None if there is none."""
    own = evidence.number("lr")
    stable = next((cell for cell in below(evidence.cells("lr"), own) if cell.is_stable), None) if own else None
    return None if own is None or stable is None else stable.value / own


def gradual_rate(steps: Callable[[Evidence], float | None]) -> Remove:
    """Raise the learning rate from nearly nothing over ``steps``; None in a shorter run, whose rate stays low."""

    def remove(evidence: Evidence, began: int | None) -> Removal | None:
        length = steps(evidence)
        if length is None or length >= evidence.trial.steps:
            return None
        low: Mapping[str, Any] = {"at": 0, "set": {"lr": f"x{_LOWEST_RATE:g}"}}
        back: Mapping[str, Any] = {"at": 0, "set": {"lr": f"x{1 / _LOWEST_RATE:g}"}, "over": max(1, round(length))}
        return Removal(0, (low, back), changes_rate=True)

    return remove


def other_batch(evidence: Evidence, began: int | None) -> Removal | None:
    """Train on another batch in place of the one that jumped."""
    step = evidence.until if began is None else began
    return Removal(max(0, step - BATCH_LEAD), (), keeps=step)
