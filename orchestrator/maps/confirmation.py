"""Whether the target of a prediction is as the ladder says, from runs there: first losses, onsets and outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev

import numpy as np

from orchestrator.base.query import hidden
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.edges import STABLE, Interval, StableRule
from orchestrator.maps.ladder import Ladder, log_size
from orchestrator.maps.law import Exponents, fit_centres
from orchestrator.maps.lengths import STEPS
from orchestrator.maps.target import Target

SHORT = 30  # steps of the first run at the target, after its warmup
BROKEN = ("diverged", "spiked")
_FAR, _FAR_SD = 0.99, 2.6  # the interval that an initial loss must leave: its level, and of a normal
_LOSS_EXPONENT_SD = 1.0  # of initial losses over sizes: many do not depend on it, some grow as the square
_LEAST_NOISE = 0.02  # of the log of an initial loss, where seeds do not show it
_EARLIER = 2.0  # factor by which an onset is far earlier than the earliest on the ladder
_FEWEST_ONSETS = 3
LEAST_SUPPORT = 1 / 500  # of the law's draws that explain the outcomes


@dataclass(frozen=True, slots=True)
class TargetRun:
    """A run at the target. ``onset`` is where it first left its trend."""

    rate: float
    steps: int
    steps_done: int
    outcome: str
    onset: int | None
    initial_loss: float | None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What the runs at the target say. ``reasons`` why the target is not as on the ladder void the prediction.

    ``initial_loss`` is what the ladder lets expect, ``law_edge`` the prediction without these runs, and ``edge`` what
    is known after them. ``is_bracketed`` says whether some broke and whole ones were stable.
    """

    runs: tuple[TargetRun, ...]
    initial_loss: Interval | None
    law_edge: Interval
    reasons: tuple[str, ...]
    member_steps: int
    is_bracketed: bool
    edge: Target = hidden()

    @property
    def has_broken(self) -> bool:
        """Whether a run broke."""
        return any(run.outcome in BROKEN for run in self.runs)

    @property
    def is_void(self) -> bool:
        """Whether the target is not as on the ladder."""
        return bool(self.reasons)


def first_exit(trial: TrialResult) -> int | None:
    """Return where a run first left its trend: the onset of a diverged run is where its last excursion began."""
    return trial.episodes[0][0] if trial.episodes else trial.onset_step


def judged(
    ladder: Ladder,
    prior: Target,
    size_K: np.ndarray,
    trials: Sequence[TrialResult],
    rule: StableRule = STABLE,
) -> Confirmation:
    """Judge ``trials`` at the target, a short run first.

    A run that is shorter than the target's counts as evidence only if it broke.
    """
    whole = ladder.steps_at(size_K)
    evidence = [
        (math.log(trial.cell[ladder.along]), not is_stable)
        for trial in trials
        if (is_stable := rule.of_trial(trial) if trial.steps >= whole else _survived(trial)) is not None
    ]
    posterior = prior.after(*zip(*evidence, strict=True)) if evidence else prior
    runs = tuple(
        TargetRun(
            float(trial.cell[ladder.along]),
            trial.steps,
            trial.steps_done or 0,
            trial.outcome or "",
            first_exit(trial),
            trial.initial_loss,
        )
        for trial in trials
    )
    expected = initial_loss_at(ladder, size_K)
    reasons = [*_loss_reasons(runs, expected), *_onset_reasons(ladder, prior, runs)]
    if evidence and posterior.support() < LEAST_SUPPORT:
        reasons.append("the law cannot explain these outcomes: the edge lies outside of what it thinks possible")
    return Confirmation(
        runs=runs,
        initial_loss=expected,
        law_edge=Interval(*map(math.exp, prior.interval())),
        reasons=tuple(reasons),
        member_steps=sum(run.steps_done for run in runs),
        is_bracketed=len({is_unstable for _, is_unstable in evidence}) == 2,
        edge=posterior,
    )


def _survived(trial: TrialResult) -> bool | None:
    """False for a run that broke within a few steps, else None: what it would have done later is not known."""
    return False if trial.outcome in BROKEN else None


def initial_loss_at(ladder: Ladder, size_K: np.ndarray) -> Interval | None:
    """Return the initial loss that a law over sizes lets expect, with an interval of 99 %; None without losses.

    Runs beyond the edge do not count: a trainer may print its first loss late.
    """
    names = [name for name in ladder.names if not (ladder.lengths and name == STEPS)]  # more steps begin alike
    logs: list[tuple[np.ndarray, float, float]] = []
    for size in ladder.sizes:
        pairs = zip(size.runs, size.unstable, strict=True)
        seeds = {run.seed: run.initial_loss for run, is_unstable in pairs if not is_unstable and run.initial_loss}
        known = [math.log(loss) for loss in seeds.values() if loss > 0]
        if known:
            noise = max(_LEAST_NOISE, stdev(known) if len(known) > 1 else 0.0)
            logs.append((log_size(size.setting, names), median(known), noise))
    if not logs:
        return None
    size_RK, centre_R, noise_R = (np.array(each) for each in zip(*logs, strict=True))
    num = len(names)
    prior = Exponents(np.zeros(num), np.full(num, _LOSS_EXPONENT_SD))
    law = fit_centres(size_RK, centre_R, noise_R, np.zeros(len(centre_R)), prior)
    at, low, high = law.interval(size_K[: len(names)], _FAR)
    of_seed = _FAR_SD * float(noise_R.max())  # at the target
    return Interval(
        math.exp(at), math.exp(at - math.hypot(at - low, of_seed)), math.exp(at + math.hypot(high - at, of_seed))
    )


def _loss_reasons(runs: Sequence[TargetRun], expected: Interval | None) -> list[str]:
    losses = [run.initial_loss for run in runs if run.initial_loss is not None]
    if expected is None or not losses or expected.low <= losses[0] <= expected.high:
        return []
    return [
        f"the initial loss is {losses[0]:.3g}, where sizes of the ladder let expect {expected.at:.3g} "
        f"({expected.low:.3g} to {expected.high:.3g})"
    ]


def _onset_reasons(ladder: Ladder, prior: Target, runs: Sequence[TargetRun]) -> list[str]:
    """A break far earlier than any on the ladder that lies as close to its edge as the run may to the predicted one."""
    _, low, high = prior.interval()
    for run in sorted(runs, key=lambda run: run.rate):
        if run.onset is None or run.outcome not in BROKEN or math.log(run.rate) > high:
            continue
        furthest = max(0.0, math.log(run.rate) - low)
        onsets = [
            onset
            for size in ladder.sizes
            if size.high is not None
            for rate, is_unstable, trial in zip(size.log_rates, size.unstable, size.runs, strict=True)
            if is_unstable and rate - size.high <= furthest and (onset := first_exit(trial)) is not None
        ]
        if len(onsets) >= _FEWEST_ONSETS and run.onset * _EARLIER < min(onsets):
            return [
                f"at {ladder.along} {format_value(run.rate)} it breaks at step {run.onset}, and runs of the ladder as "
                f"near to their edge at {min(onsets)} to {max(onsets)}: another mechanism"
            ]
    return []
