"""First losses that are sums over fewer steps than later ones, as the trials of a sweep show together.

A trainer that adds up losses, divides them by the interval of its lines and also prints at its first step begins with a
small part of a loss. Each of its trials looks like a blow-up, and so does a trial that did blow up there. But where all
learning rates blow up alike, by as much as the interval says, and then learn, nothing has blown up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from orchestrator.base.packs import Trace
from orchestrator.base.trial_result import MemberResult, TrialResult
from orchestrator.detection.config import StoppingConfig

if TYPE_CHECKING:  # commands that read no curve start without it
    import numpy as np

TraceOf = Callable[[str], Trace]  # the curve of a trial by its id
_FEWEST_RATES = 3  # at which trials begin alike
_LEARNING, _LEARNED = 2, 0.15  # rates at which what follows learns: it falls by this share
_ALIKE, _NEXT_ALIKE = 1.25, 2.0  # the largest first loss over the smallest one, and the same of the losses after them
_NOISE = 1.1  # of one loss, as a factor
_FAR, _NEXT = 2.0, 10  # so many next losses are so many times the first


@dataclass(frozen=True, slots=True)
class _Begun:
    """A trial with its learning rate and its steps and losses, (N,) each."""

    trial: TrialResult
    rate: float
    trace: Trace

    @property
    def losses(self) -> np.ndarray:
        return self.trace["loss"]

    @property
    def rises(self) -> bool:
        """Whether the next finite losses are far above the first one."""
        return all(loss >= _FAR * self.losses[0] for loss in self.losses[1 : _NEXT + 1] if math.isfinite(loss))

    @property
    def is_partial(self) -> bool:
        """Whether the interval between the first two losses says how far they are apart."""
        from orchestrator.detection.partial_sums import is_partial_sum

        (step, second), (loss, next_loss) = self.trace["step"][:2].tolist(), self.losses[:2].tolist()
        return is_partial_sum(loss, int(step), next_loss, int(second - step))

    def learns(self, result: MemberResult) -> bool:
        """Whether a training with this ``result`` falls from the next losses on."""
        start, final = median(self.losses[1 : _NEXT + 1].tolist()), result.final_loss
        return result.outcome in ("stable", "spiked") and final is not None and start - final > _LEARNED * start

    def without_first(self, result: MemberResult) -> TrialResult:
        """Return the trial with the ``result`` of all but its first loss, unknown if it was stopped for that one."""
        from orchestrator.maps.replay import OF_LOSSES

        trial, (before, last) = self.trial, self.trace["step"][-2:].tolist()
        if trial.verdict_step is None and 2 * last - before < trial.steps - 1:
            return trial  # it ended itself
        new = {name: getattr(result, name) for name in (*OF_LOSSES, "outcome", "verdict_step", "episodes")}
        if trial.verdict_step == last and result.verdict_step is None and not trial.is_audited:
            new |= {"outcome": "unknown", "onset_step": None}
        first = f"its first loss, {trial.initial_loss:.3g}, is a sum over fewer steps, as at all learning rates"
        return replace(trial, **{**new, "reason": f"{result.reason}; {first}"})


def without_partial_firsts(
    trials: Sequence[TrialResult], rates: Sequence[float], rules: StoppingConfig, trace_of: TraceOf
) -> list[TrialResult]:
    """Judge ``trials`` at these ``rates``, alike in all else, without first losses that they show to be no losses.

    Curves are read only if no trial is stable.
    """
    judged = list(trials)
    there = [i for i, trial in enumerate(trials) if trial.outcome is not None and trial.initial_loss is not None]
    if {trials[i].outcome for i in there} - {"diverged", "spiked"} or len({rates[i] for i in there}) < _FEWEST_RATES:
        return judged
    if not _are_alike([trials[i].initial_loss or 0.0 for i in there], _ALIKE):
        return judged
    begun = [_Begun(trials[i], rates[i], trace_of(trials[i].trial_id)) for i in there]
    for i, trial in zip(there, _judged_again(begun, rules), strict=False):
        judged[i] = trial
    return judged


def _judged_again(begun: Sequence[_Begun], rules: StoppingConfig) -> Iterator[TrialResult]:
    """Yield the trials without their first losses, or nothing if those are losses."""
    if any(len(one.trace.get("step", ())) < _FEWEST_RATES or not one.rises for one in begun):
        return
    lowest = sorted({one.rate for one in begun})[:_FEWEST_RATES]
    low = [one for one in begun if one.rate in lowest]
    nexts = [median([one.losses[1] for one in low if one.rate == rate]) for rate in lowest]
    # What blows up does so by more at a higher rate; a mean over the first interval is lower if more was learned.
    is_growing = any(after > _NOISE * before for before, after in pairwise(nexts))
    if is_growing or not all(one.is_partial for one in low) or not _are_alike(nexts, _NEXT_ALIKE):
        return
    from orchestrator.detection.outcomes import member_result
    from orchestrator.maps.replay import curve_of, detect

    curves = [curve_of(one.trial, {name: values[1:] for name, values in one.trace.items()}) for one in begun]
    records = detect(curves, rules.model_copy(update={"early_stop": False}))
    pairs = [
        (one, member_result(one.trial.trial_id, record, rules, one.trial.steps_done or 0, math.nan))
        for one, record in zip(begun, records, strict=True)
    ]
    if len({one.rate for one, result in pairs if one.learns(result)}) >= _LEARNING:
        yield from (one.without_first(result) for one, result in pairs)


def _are_alike(losses: Sequence[float], factor: float) -> bool:
    return min(losses) > 0 and max(losses) <= factor * min(losses)
