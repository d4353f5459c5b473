"""When a score is an alarm, which steps of a run count as unstable, and how good the alarms of many runs are.

An alarm predicts an instability within the next ``HORIZON`` steps, and stays active for that long. A run that survives
a score unharmed has shown that it can: until its next instability, only a higher score is another alarm.

An onset has a warning if an alarm was raised in the ``HORIZON`` steps before it; its lead is the number of steps since
the first such alarm. An alarm without an onset in its horizon is false. False alarms are counted per 1,000 calm steps,
which are all steps outside instabilities. An onset in the first ``HORIZON`` steps leaves no time for a warning and is
left out. So is an alarm in the last ``HORIZON`` steps that no onset followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from orchestrator.base.query import reported

# Shapes: N readings.

HORIZON = 50  # steps


@dataclass(frozen=True, slots=True)
class UnstableSpan:
    """An instability from ``onset`` up to ``end``, the first step after it; it may contain several onsets."""

    onset: int
    end: int


def unstable_spans(
    episodes: Iterable[tuple[int, int | None]], num_steps: int, gap: int = HORIZON
) -> list[UnstableSpan]:
    """Return the instabilities of a run of ``num_steps``: episodes (onset, recovery) closer than ``gap`` steps are one.

    An episode without a recovery lasts to the end of the run.
    """
    merged: list[UnstableSpan] = []
    for onset, recovery in sorted(episodes, key=lambda episode: episode[0]):
        end = num_steps if recovery is None else recovery
        if merged and onset - merged[-1].end < gap:
            merged[-1] = UnstableSpan(merged[-1].onset, max(end, merged[-1].end))
        else:
            merged.append(UnstableSpan(onset, end))
    return merged


def is_calm(step_N: np.ndarray, unstable: Sequence[UnstableSpan]) -> np.ndarray:
    """Return which steps lie outside every instability, (N,)."""
    calm_N = np.ones(len(step_N), dtype=bool)
    for span in unstable:
        calm_N &= (step_N < span.onset) | (step_N >= span.end)
    return calm_N


class AlarmState:
    """Decide reading by reading whether a score of at least ``threshold`` is an alarm."""

    __slots__ = ("_horizon", "_survived", "_threshold", "raised_step")

    def __init__(self, threshold: float, horizon: int = HORIZON) -> None:
        self._threshold, self._horizon = threshold, horizon
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after an instability."""
        self._survived = float("-inf")  # the highest score while an alarm was active
        self.raised_step: int | None = None

    def is_active(self, step: int) -> bool:
        """Return whether an alarm is active at ``step``."""
        return self.raised_step is not None and step - self.raised_step < self._horizon

    def update(self, step: int, score: float) -> bool:
        """Return whether ``score`` at ``step`` raises an alarm; NaN does not. Steps must ascend."""
        if self.is_active(step):
            self._survived = max(self._survived, score if score == score else self._survived)
            return False
        if not (score >= self._threshold and score > self._survived):
            return False
        self.raised_step = step
        self._survived = score
        return True


def alarms(
    step_N: np.ndarray,
    score_N: np.ndarray,
    threshold: float,
    unstable: Sequence[UnstableSpan] = (),
    horizon: int = HORIZON,
) -> list[int]:
    """Return the steps of the alarms that an ``AlarmState`` raises outside instabilities; each resets it."""
    state, raised, left = AlarmState(threshold, horizon), [], [span.end for span in unstable]
    # Scores below the threshold change nothing.
    counts_N = (score_N >= threshold) & is_calm(step_N, unstable)
    for step, score in zip(step_N[counts_N].tolist(), score_N[counts_N].tolist(), strict=True):
        while left and left[0] <= step:
            left.pop(0)
            state.reset()
        if state.update(step, score):
            raised.append(step)
    return raised


# --- quality ---------------------------------------------------------------------------------------

GOOD_LEAD = 20  # steps that leave time to act


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRun:
    """One run: a score for each reading, its instabilities and its number of steps."""

    step_N: np.ndarray
    score_N: np.ndarray
    unstable: tuple[UnstableSpan, ...]
    num_steps: int


@dataclass(frozen=True, slots=True)
class Onset:
    """The onset of an instability, and the steps since the first alarm before it; None without a warning."""

    step: int
    lead: int | None


@dataclass(frozen=True, slots=True)
class RunWarnings:
    """Alarms at a threshold on one run, the false ones among them, and the onsets."""

    alarms: tuple[int, ...]
    false_alarms: tuple[int, ...]
    onsets: tuple[Onset, ...]
    calm_steps: int
    early_onsets: int  # in the first steps, left out
    num_open: int = 0  # alarms too close to the end to know what would have followed

    @property
    def is_stable(self) -> bool:
        """Whether the run had no instability at all."""
        return not self.onsets and not self.early_onsets


@dataclass(frozen=True, slots=True)
class Quality:
    """Alarms at a threshold on many runs."""

    num_onsets: int
    num_warned: int
    num_good: int  # warned with a good lead
    num_alarms: int  # without the open ones
    num_false: int
    calm_steps: int
    median_lead: float | None  # of the onsets with a warning
    early_onsets: int
    stable_steps: int  # of runs without any instability
    num_false_stable: int  # false alarms in those

    @reported
    def recall(self) -> float:
        """Share of the onsets with a warning."""
        return self.num_warned / self.num_onsets if self.num_onsets else float("nan")

    @reported
    def good_share(self) -> float:
        """Share of the onsets with a warning of a good lead."""
        return self.num_good / self.num_onsets if self.num_onsets else float("nan")

    @reported
    def precision(self) -> float:
        """Share of the alarms with an onset within the horizon."""
        return 1 - self.num_false / self.num_alarms if self.num_alarms else float("nan")

    @reported
    def false_per_1000(self) -> float:
        """False alarms per 1,000 calm steps."""
        return 1000 * self.num_false / self.calm_steps if self.calm_steps else float("nan")

    @reported
    def stable_false_per_1000(self) -> float:
        """The same in runs without any instability."""
        return 1000 * self.num_false_stable / self.stable_steps if self.stable_steps else float("nan")


def run_warnings(run: ScoredRun, threshold: float, horizon: int = HORIZON) -> RunWarnings:
    """Return the alarms of ``run`` at ``threshold``, and how they relate to its instabilities."""
    raised = alarms(run.step_N, run.score_N, threshold, run.unstable, horizon)
    late = [span.onset for span in run.unstable if span.onset >= horizon]
    onsets = []
    for onset in late:
        near = [step for step in raised if onset - horizon <= step < onset]
        onsets.append(Onset(onset, onset - near[0] if near else None))
    unmet = [step for step in raised if not any(step < span.onset <= step + horizon for span in run.unstable)]
    # What would have followed the last steps of a run is unknown.
    false = [step for step in unmet if step + horizon <= run.num_steps]
    calm_steps = run.num_steps - sum(span.end - span.onset for span in run.unstable)
    num_early, num_open = len(run.unstable) - len(late), len(unmet) - len(false)
    return RunWarnings(tuple(raised), tuple(false), tuple(onsets), calm_steps, num_early, num_open)


def quality(runs: Iterable[RunWarnings]) -> Quality:
    """Return the quality over all runs."""
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
