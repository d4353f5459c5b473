"""Ledger -> survival: how long runs stay stable, where most of those that are stable were only watched so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.intervals import CONFIDENCE, wilson
from orchestrator.base.query import Say, hidden, reported, silent
from orchestrator.base.space import Cell
from orchestrator.base.words import count
from orchestrator.ledger.reader import check_has_curves
from orchestrator.maps.edges import Interval
from orchestrator.maps.ladder import log_size
from orchestrator.maps.lengths import STEPS
from orchestrator.maps.lifetimes import Lifetime, lifetimes
from orchestrator.maps.prediction import FARTHEST, Exponent, Prediction, predict, usual_rate
from orchestrator.maps.table import SweepTable

_SHOWN = (0.1, 0.25, 0.5, 1.0)  # of the steps that were trained
_FEWEST_RATES = 3  # of a row that has a law
_QUIETLY, _MOST_LAWS = 2, 40  # each takes seconds


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
    for) of a run of its cells, None if one of these has no law.
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
class RowLaw:
    """The edge of one row of the map at the step asked for, and the exponent with which it moves over steps.

    Both are None without a law, or if it is refused, and ``doubts`` say why; else ``doubts`` are the prediction's.
    """

    setting: Cell
    edge: Interval | None
    exponent: Exponent | None
    doubts: tuple[str, ...]
    prediction: Prediction | None = hidden(default=None)

    @classmethod
    def of(cls, setting: Cell, found: Prediction) -> RowLaw:
        """Return the law that predicts, without a number if it is refused."""
        if found.refused:
            return cls(setting, None, None, found.doubts)
        return cls(setting, found.edge, found.exponents[STEPS], found.doubts, found)

    def share(self, rate: float, until: int) -> Share | None:
        """P(stable to ``until``) at a rate."""
        if self.prediction is None:
            return None
        found = self.prediction
        target = found.law.at(log_size(found.target, found.ladder.names))
        share, (low, high) = target.p_stable(math.log(rate)), target.p_stable_interval(math.log(rate))
        return Share(until, share, min(low, share), max(high, share))  # a mean may lie outside of quantiles


@dataclass(frozen=True, slots=True)
class Survival:
    """Survival of a sweep, from ``num_runs`` runs watched for up to ``longest`` steps, predicted to ``until``.

    The outcome of ``num_left_out`` trials says nothing about it. ``by`` is the axis that pools cells, ``along`` that of
    the edge.
    """

    sweep: str
    by: str | None
    along: str
    num_runs: int
    num_onsets: int
    num_left_out: int
    longest: int
    until: int
    steps: tuple[int, ...]
    groups: tuple[Group, ...]
    laws: tuple[RowLaw, ...]


def survival(table: SweepTable, by: str | None = None, until: int | None = None, say: Say = silent) -> Survival:
    """How long the runs of the sweep stay stable, by cell or pooled by the values of ``by``.

    The law of `predict` says what they do to step ``until``, four times the longest run by default. Raises InputError
    for an axis that the sweep does not have, for an ``until`` that was trained already, and where no trial has a known
    result.
    """
    name, pooled = table.name, None if by is None else table.axis(by, "--by")
    check_has_curves(table.facts, "only a curve says when a run left its trend")
    lives = lifetimes(table.runs)
    if not lives:
        remedy = "`sweep status NAME` says what is missing"
        raise InputError(Problem(name, "", "no trial has an outcome that tells how long it was stable", remedy))
    longest = max(life.steps for life in lives)
    if until is not None and until <= longest:
        remedy = f"the shares to step {longest} need no law; ask for more, or leave --until out"
        raise InputError(Problem("--until", str(until), "lies within what was trained", remedy))
    until = until or round(FARTHEST * longest)
    steps = tuple(dict.fromkeys(max(1, round(share * longest)) for share in _SHOWN))
    along = usual_rate(table)
    laws = _laws(table, along, until, say)
    cells = {life.cell for life in lives}
    shares = {
        cell: law.share(cell[along], until) for cell in cells for law in laws if law.setting.items() <= cell.items()
    }
    grouped: dict[Cell, list[Lifetime]] = {}
    for life in lives:
        grouped.setdefault(life.cell if by is None else life.cell.only([by]), []).append(life)
    groups = [_group(setting, members, steps, shares) for setting, members in grouped.items()]
    if pooled is not None:
        groups.sort(key=lambda group: pooled.values.index(group.setting[pooled.name]))
    return Survival(
        sweep=name,
        by=by,
        along=along,
        num_runs=len(lives),
        num_onsets=sum(life.has_onset for life in lives),
        num_left_out=len(table.trials) - len(lives),
        longest=longest,
        until=until,
        steps=steps,
        groups=tuple(groups),
        laws=tuple(laws),
    )


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


# --- the law ---------------------------------------------------------------------------------------


def _laws(table: SweepTable, along: str, until: int, say: Say) -> list[RowLaw]:
    """Return the law of each row: of the cells that differ along the rate alone."""
    axis = table.axis(along, "--along")
    rows: dict[Cell, list[int]] = {}
    for place, trial in enumerate(table.trials):
        rows.setdefault(trial.cell.without({along, *axis.zipped}), []).append(place)
    laws = []
    for num, (setting, places) in enumerate(rows.items(), 1):
        row = replace(table, trials=tuple(table.trials[place] for place in places))
        num_rates = len({trial.cell[along] for trial in row.trials})
        if len(rows) > _MOST_LAWS:
            reason = f"the sweep has {len(rows)} rows along {along}: `--where AXIS=VALUE` keeps some"
        elif num_rates < _FEWEST_RATES:
            other = "".join(f" --at {name}=VALUE" for name in setting)
            asked = f"`sweep predict NAME --at steps={until}{other}` takes the other axes as sizes"
            reason = f"{count(num_rates, 'value shows', 'values show')} no edge along {along}; {asked}"
        else:
            if len(rows) > _QUIETLY:
                say(f"law {num} of {len(rows)}")
            try:
                laws.append(RowLaw.of(setting, predict(row, {STEPS: until}, along, is_far=True)))
                continue
            except InputError as refused:
                problem = refused.problems[0]
                reason = problem if isinstance(problem, str) else f"{problem.message}: {problem.remedy}"
        laws.append(RowLaw(setting, None, None, (reason,)))
    return laws


def _group(
    setting: Cell, lives: Sequence[Lifetime], steps: Sequence[int], shares: Mapping[Cell, Share | None]
) -> Group:
    failures = sorted({life.steps for life in lives if life.has_onset})
    known = [share for life in lives if (share := shares[life.cell]) is not None]
    predicted = None
    if len(known) == len(lives):
        low, at, high = (fmean(getattr(share, name) for share in known) for name in ("low", "share", "high"))
        predicted = Share(known[0].step, at, low, high)
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
