"""How good a warning is: leads, precision, recall and false alarms, over many runs.

An instability is warned of where an alarm was raised in the ``HORIZON`` steps before its onset; its lead is the number
of steps from the first such alarm to the onset. An alarm without an onset in its horizon is false. False alarms are
counted per 1,000 calm steps: those of stable runs, and those of others outside of their instabilities. An
instability in the first ``HORIZON`` steps leaves no time to warn of it and is left out. So is an alarm in the last
``HORIZON`` steps that no onset followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from orchestrator.detection.warning.alarms import HORIZON, Bout, alarms

# Shapes: N readings.

GOOD_LEAD = 20  # steps in which something can still be done
_TRIED = 60  # thresholds among which one is chosen


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One run: a score for each reading, its instabilities, and the number of its steps."""

    step_N: np.ndarray
    score_N: np.ndarray
    unstable: tuple[Bout, ...]
    num_steps: int


@dataclass(frozen=True, slots=True)
class Onset:
    """An instability and the steps from the first alarm to it; None without a warning."""

    step: int
    lead: int | None


@dataclass(frozen=True, slots=True)
class RunWarnings:
    """What a threshold does on one run: its alarms, the false ones among them, and its onsets."""

    alarms: tuple[int, ...]
    false_alarms: tuple[int, ...]
    onsets: tuple[Onset, ...]
    calm_steps: int
    early_onsets: int  # in the first steps, left out
    num_open: int = 0  # alarms so near the end that nobody knows what would have followed

    @property
    def is_stable(self) -> bool:
        """Whether the run had no instability at all."""
        return not self.onsets and not self.early_onsets


@dataclass(frozen=True, slots=True)
class Quality:
    """What a threshold does on many runs."""

    num_onsets: int
    num_warned: int
    num_good: int  # warned of with a good lead
    num_alarms: int  # without the open ones
    num_false: int
    calm_steps: int
    median_lead: float | None  # of the onsets that were warned of
    early_onsets: int
    stable_steps: int  # of runs without any instability
    num_false_stable: int  # false alarms in those

    @property
    def recall(self) -> float:
        """Share of the onsets that were warned of."""
        return self.num_warned / self.num_onsets if self.num_onsets else float("nan")

    @property
    def good_share(self) -> float:
        """Share of the onsets that were warned of with a good lead."""
        return self.num_good / self.num_onsets if self.num_onsets else float("nan")

    @property
    def precision(self) -> float:
        """Share of the alarms that an onset followed within the horizon."""
        return 1 - self.num_false / self.num_alarms if self.num_alarms else float("nan")

    @property
    def false_per_1000(self) -> float:
        """False alarms per 1,000 calm steps."""
        return 1000 * self.num_false / self.calm_steps if self.calm_steps else float("nan")

    @property
    def stable_false_per_1000(self) -> float:
        """The same in runs that had no instability at all."""
        return 1000 * self.num_false_stable / self.stable_steps if self.stable_steps else float("nan")


def warned(run: Scored, threshold: float, horizon: int = HORIZON) -> RunWarnings:
    """The alarms of ``run`` at ``threshold`` and how they relate to its instabilities."""
    raised = alarms(run.step_N, run.score_N, threshold, run.unstable, horizon)
    late = [bout for bout in run.unstable if bout.onset >= horizon]
    onsets = []
    for bout in late:
        near = [step for step in raised if bout.onset - horizon <= step < bout.onset]
        onsets.append(Onset(bout.onset, bout.onset - near[0] if near else None))
    unmet = [step for step in raised if not any(step < bout.onset <= step + horizon for bout in run.unstable)]
    # Nobody knows what would have followed the last steps of a run.
    false = [step for step in unmet if step + horizon <= run.num_steps]
    calm_steps = run.num_steps - sum(bout.end - bout.onset for bout in run.unstable)
    num_early, num_open = len(run.unstable) - len(late), len(unmet) - len(false)
    return RunWarnings(tuple(raised), tuple(false), tuple(onsets), calm_steps, num_early, num_open)


def quality(runs: Iterable[RunWarnings]) -> Quality:
    """All runs together."""
    runs = list(runs)
    leads = [onset.lead for run in runs for onset in run.onsets if onset.lead is not None]
    return Quality(
        num_onsets=sum(len(run.onsets) for run in runs),
        num_warned=len(leads),
        num_good=sum(lead >= GOOD_LEAD for lead in leads),
        num_alarms=sum(len(run.alarms) - run.num_open for run in runs),
        num_false=sum(len(run.false_alarms) for run in runs),
        calm_steps=sum(run.calm_steps for run in runs),
        median_lead=float(median(leads)) if leads else None,
        early_onsets=sum(run.early_onsets for run in runs),
        stable_steps=sum(run.calm_steps for run in runs if run.is_stable),
        num_false_stable=sum(len(run.false_alarms) for run in runs if run.is_stable),
    )


def best_threshold(runs: Sequence[Scored], most_false: float, horizon: int = HORIZON) -> float:
    """The threshold with most good leads among those with at most ``most_false`` false alarms per 1,000 calm steps.

    Of equal ones that with fewer false alarms. Infinity where none keeps the bound: then there are no alarms.
    """
    scores = np.concatenate([run.score_N[np.isfinite(run.score_N)] for run in runs]) if runs else np.zeros(0)
    if not len(scores):
        return float("inf")
    # Few readings are alarms: the thresholds get denser towards the highest scores.
    shares = 1 - np.geomspace(0.5, 1e-4, _TRIED)
    best, found = (0, 0.0), float("inf")
    for threshold in np.unique(np.quantile(scores, shares, method="inverted_cdf")):
        of_this = quality(warned(run, float(threshold), horizon) for run in runs)
        if of_this.false_per_1000 <= most_false and (of_this.num_good, -of_this.false_per_1000) > best:
            best, found = (of_this.num_good, -of_this.false_per_1000), float(threshold)
    return found
