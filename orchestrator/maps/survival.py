"""Ledger -> survival: how long runs stay stable, where most of those that are stable were only watched so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.intervals import CONFIDENCE, wilson
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import ENOUGH_LOSSES, OUTCOMES
from orchestrator.base.words import count
from orchestrator.ledger.reader import check_has_curves
from orchestrator.maps.table import SweepTable
from orchestrator.maps.weibull import Covariate, WeibullFit, covariates_of, design, fit_weibull

LONGER = 10  # times the steps that were trained: how far ahead the fit looks by default
ENOUGH_ONSETS = 5  # for each number that the fit has to find
_SHOWN = (0.1, 0.25, 0.5, 1.0)  # of the steps that were trained


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How many ``steps`` a run was watched: to its first step off the trend, or to its end without one (censored).

    A run is stable to step t if its onset is later. ``fails_at_start``: it never learned, or its onset is within the
    first ten steps, so that it says nothing about how stability wears off.
    """

    trial_id: str
    cell: Cell
    steps: int
    has_onset: bool
    fails_at_start: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """P(stable to ``step``) with its 95 % interval."""

    step: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one cell, or of one value of an axis, described by ``setting``.

    ``at_steps`` are Kaplan-Meier's estimates at a few steps, None beyond the last step that was watched; ``curve`` has
    them at every step with a failure. ``hazard_bound_per_step`` is None unless no run has an onset: the greatest rate
    of onsets per step, if constant, that gives this result a chance of 5 %. ``predicted`` is P(stable to the step asked
    for), None without a fit.
    """

    setting: Cell
    num_runs: int
    num_onsets: int
    watched: int
    curve: tuple[Share, ...]
    hazard_bound_per_step: float | None
    predicted: Share | None
    at_steps: tuple[Share | None, ...] = hidden()

    @reported
    def shares(self) -> list[Share]:
        """The estimates at those steps that were watched."""
        return [share for share in self.at_steps if share is not None]


@dataclass(frozen=True, slots=True)
class Effect:
    """By what ``change`` multiplies the time to an onset, with its 95 % interval; and so a deviation of the axis."""

    axis: str
    change: str
    factor: float
    low: float
    high: float
    of_one_deviation: float


@dataclass(frozen=True, slots=True)
class Backtest:
    """The fit of the first ``seen`` steps against what the ``num`` runs that were stable so far did to step ``until``.

    Brier scores (mean squared error of the probability, lower is better) of the fit, of "what is stable stays so", and
    of the share of these runs that last, which nobody knows beforehand.
    """

    seen: int
    until: int
    num: int
    fit: float
    stays: float
    base_rate: float

    @property
    def is_passed(self) -> bool:
        """Whether the fit beats both."""
        return self.fit < min(self.stays, self.base_rate)


@dataclass(frozen=True, slots=True)
class Survival:
    """Survival of a sweep, from ``num_runs`` runs watched for up to ``longest`` steps, predicted to ``until``.

    The outcome of ``num_left_out`` trials says nothing about it. ``by`` is the axis that pools cells. ``doubts`` are
    reasons not to trust a prediction: with any there is no fit, no ``shape``, no effect, and no share ``predicted``.
    """

    sweep: str
    by: str | None
    num_runs: int
    num_onsets: int
    num_failed_at_start: int
    num_left_out: int
    longest: int
    until: int
    steps: tuple[int, ...]
    groups: tuple[Group, ...]
    shape: float | None = hidden()
    effects: tuple[Effect, ...] = hidden()
    backtest: Backtest | None = None
    doubts: tuple[str, ...] = ()

    @reported
    def fit(self) -> dict[str, Any]:
        """The shape of the fit and its effects."""
        return {"shape": self.shape, "effects": self.effects}


def survival(table: SweepTable, by: str | None = None, until: int | None = None) -> Survival:
    """How long the runs of the sweep stay stable, by cell or pooled by the values of ``by``.

    The fit predicts to step ``until``, ten times the longest run by default. Raises InputError for an axis that the
    sweep does not have, for an ``until`` that was trained already, and where no trial has a result that tells.
    """
    name, pooled = table.name, None if by is None else table.axis(by, "--by")
    check_has_curves(table.facts, "only a curve says when a run left its trend")
    lives = lifetimes(table.runs)
    if not lives:
        remedy = "`sweep status NAME` says what is missing"
        raise InputError(Problem(name, "", "no trial has an outcome that tells how long it was stable", remedy))
    longest = max(life.steps for life in lives)
    if until is not None and until <= longest:
        remedy = f"the shares to step {longest} need no fit; ask for more, or leave --until out"
        raise InputError(Problem("--until", str(until), "lies within what was trained", remedy))
    until = until or LONGER * longest
    steps = tuple(dict.fromkeys(max(1, round(share * longest)) for share in _SHOWN))
    covariates = covariates_of(table.axes)
    backtest = _backtest(lives, covariates, until)
    doubts = _doubts(lives, covariates, backtest)
    fit = None if doubts else fit_lifetimes(lives, covariates)
    grouped: dict[Cell, list[Lifetime]] = {}
    for life in lives:
        grouped.setdefault(life.cell if by is None else life.cell.only([by]), []).append(life)
    groups = [_group(setting, members, steps, until, fit, covariates) for setting, members in grouped.items()]
    if pooled is not None:
        groups.sort(key=lambda group: pooled.values.index(group.setting[pooled.name]))
    return Survival(
        sweep=name,
        by=by,
        num_runs=len(lives),
        num_onsets=sum(life.has_onset for life in lives),
        num_failed_at_start=sum(life.fails_at_start for life in lives),
        num_left_out=len(table.trials) - len(lives),
        longest=longest,
        until=until,
        steps=steps,
        groups=tuple(groups),
        shape=fit.shape if fit else None,
        effects=tuple(_effects(fit, covariates)) if fit else (),
        backtest=backtest,
        doubts=tuple(doubts),
    )


def lifetimes(runs: Iterable[TrialResult]) -> list[Lifetime]:
    """The lifetimes of the runs whose outcome tells."""
    return [lifetime(run) for run in runs if run.outcome in OUTCOMES]


def lifetime(trial: TrialResult) -> Lifetime:
    """Return how long a run was stable. Of one that diverged the first episode counts: it was not stable after that."""
    watched = max(1, trial.steps_done or 0)
    onsets = [onset for onset, _ in trial.episodes]
    onsets += [trial.onset_step] if trial.onset_step is not None else []
    if trial.outcome == "stable" or not onsets:
        return Lifetime(trial.trial_id, trial.cell, watched, has_onset=False)
    steps = min(min(onsets) + 1, watched)
    fails_at_start = trial.outcome == "stalled" or steps <= ENOUGH_LOSSES
    return Lifetime(trial.trial_id, trial.cell, max(1, steps), True, fails_at_start)


# --- shares ----------------------------------------------------------------------------------------


def kaplan_meier(lives: Sequence[Lifetime], steps: Sequence[int]) -> list[Share | None]:
    """P(stable to step t) for each t of ``steps`` (Kaplan and Meier 1958), None beyond what was watched.

    The interval is Wilson's for the number of runs without censoring that would give Greenwood's variance (Rothman
    1978, J. Chron. Dis. 31, 557). So it is that of the map where no run ended early, and exists without an onset too.
    """
    from scipy.stats import CensoredData, ecdf

    time_N = np.array([life.steps for life in lives])
    has_onset_N = np.array([life.has_onset for life in lives])
    estimate = ecdf(CensoredData(uncensored=time_N[has_onset_N], right=time_N[~has_onset_N])).sf
    found: list[Share | None] = []
    for step in steps:
        share = float(estimate.evaluate(step))
        if step > time_N.max() and share > 0:
            found.append(None)
            continue
        size = _effective_number(time_N, has_onset_N, step, share)
        found.append(Share(step, share, *wilson(share * size, size)))
    return found


def _effective_number(time_N: np.ndarray, has_onset_N: np.ndarray, step: int, share: float) -> float:
    """The number of uncensored runs that would make ``share`` as certain at ``step`` as it is."""
    if share in (0.0, 1.0):
        # Without a failure those that were watched so long; if all of them failed, all that failed.
        return float(max(1, (time_N >= step).sum() if share else has_onset_N.sum()))
    failed_E, num_E = np.unique(time_N[has_onset_N & (time_N <= step)], return_counts=True)
    at_risk_E = (time_N[None, :] >= failed_E[:, None]).sum(axis=1)
    greenwood = float((num_E / (at_risk_E * (at_risk_E - num_E))).sum())
    return (1 - share) / (share * greenwood)


def hazard_bound(lives: Sequence[Lifetime]) -> float | None:
    """The rate of onsets per step below which ``lives`` without an onset do not surprise; None with an onset.

    At the bound, none in so many steps has a chance of 5 %: exp(-rate * steps of all runs) = 0.05, the rule of three.
    """
    if any(life.has_onset for life in lives):
        return None
    return -math.log(1 - CONFIDENCE) / sum(life.steps for life in lives)


# --- the fit ---------------------------------------------------------------------------------------


def fit_lifetimes(lives: Sequence[Lifetime], covariates: Sequence[Covariate]) -> WeibullFit | None:
    """The Weibull regression over ``covariates``; None without an onset.

    Runs that failed at their start are left out: they say nothing about when others become unstable.
    """
    known = [life for life in lives if not life.fails_at_start]
    has_onset_N = np.array([life.has_onset for life in known], bool)
    if not has_onset_N.any():
        return None
    time_N = np.array([life.steps for life in known], float)
    return fit_weibull(time_N, has_onset_N, design(covariates, [life.cell for life in known]))


def predicted_share(life: Lifetime, fit: WeibullFit, covariates: Sequence[Covariate], until: int) -> Share:
    """P(stable to ``until``) of a run, given what is known: 0 if it has an onset, else what the fit says."""
    if life.has_onset:
        return Share(until, 0.0, 0.0, 0.0)
    (row_P,) = design(covariates, [life.cell])
    return Share(until, *fit.survival(row_P, life.steps, until))


def _group(
    setting: Cell,
    lives: Sequence[Lifetime],
    steps: Sequence[int],
    until: int,
    fit: WeibullFit | None,
    covariates: Sequence[Covariate],
) -> Group:
    failures = sorted({life.steps for life in lives if life.has_onset})
    predicted = None
    if fit is not None:
        each = [predicted_share(life, fit, covariates, until) for life in lives]
        means = (float(np.mean([getattr(one, name) for one in each])) for name in ("share", "low", "high"))
        predicted = Share(until, *means)
    return Group(
        setting=setting,
        num_runs=len(lives),
        num_onsets=sum(life.has_onset for life in lives),
        watched=max(life.steps for life in lives),
        at_steps=tuple(kaplan_meier(lives, steps)),
        curve=tuple(share for share in kaplan_meier(lives, failures) if share is not None),
        hazard_bound_per_step=hazard_bound(lives),
        predicted=predicted,
    )


def _effects(fit: WeibullFit, covariates: Sequence[Covariate]) -> list[Effect]:
    found = []
    for place, covariate in enumerate(covariates):
        first, last = (covariate.of({covariate.axis.name: end}) for end in covariate.ends)
        deviation = float(fit.spread_P[place])
        factors = fit.factor(place, last - first)
        found.append(Effect(covariate.axis.name, covariate.change, *factors, fit.factor(place, deviation)[0]))
    return found


# --- whether the fit can be trusted ----------------------------------------------------------------


def _backtest(lives: Sequence[Lifetime], covariates: Sequence[Covariate], until: int) -> Backtest | None:
    """The same prediction made as far before the end of the longest run as ``until`` lies beyond it.

    None if no onset, or no step, lies so early, or no run was stable so far.
    """
    longest = max(life.steps for life in lives)
    seen = longest * longest // until
    early = [life if life.steps <= seen else replace(life, steps=seen, has_onset=False) for life in lives]
    fit = fit_lifetimes(early, covariates) if seen else None
    if fit is None:
        return None
    # Only what was open then: runs that were stable so far, and whose fate at the last step is known.
    pairs = [
        (before, float(not life.has_onset))
        for before, life in zip(early, lives, strict=True)
        if not (before.has_onset or life.fails_at_start) and (life.has_onset or life.steps >= longest)
    ]
    if not pairs:
        return None
    told_N = np.array([is_stable for _, is_stable in pairs])
    fit_N = np.array([predicted_share(before, fit, covariates, longest).share for before, _ in pairs])
    scores = (float(np.mean((guess - told_N) ** 2)) for guess in (fit_N, 1.0, told_N.mean()))
    return Backtest(seen, longest, len(pairs), *scores)


def _doubts(lives: Sequence[Lifetime], covariates: Sequence[Covariate], backtest: Backtest | None) -> list[str]:
    num_onsets = sum(life.has_onset and not life.fails_at_start for life in lives)
    if not num_onsets:
        return ["no run has an onset after its start, so there is nothing to fit"]
    doubts = []
    enough = ENOUGH_ONSETS * (len(covariates) + 1)
    if num_onsets < enough:
        onsets, numbers = count(num_onsets, "onset is", "onsets are"), count(len(covariates) + 1, "number")
        doubts.append(f"{onsets} too few for a fit of {numbers}: it needs {enough}")
    if backtest is None:
        doubts.append("no onset lies early enough to try the prediction on this sweep itself")
    elif not backtest.is_passed:
        doubts.append("tried on this sweep itself, it is no better than one of the guesses that need no fit")
    return doubts
