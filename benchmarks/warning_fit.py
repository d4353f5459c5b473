"""Fit the models of the package, choose their thresholds, and say how certain their quality is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from orchestrator.base.intervals import CONFIDENCE
from orchestrator.detection.warning.alarms import HORIZON, RunWarnings, ScoredRun, quality, run_warnings
from orchestrator.detection.warning.risk import NAMES, TREND_NAME, RiskModel, logistic, scaled

# Shapes: N readings, F features of the model, R runs, D draws.

_NUM_THRESHOLDS = 60  # candidates for the best one
_DRAWS = 2000
Bounds = tuple[float, float]


def fitted(
    names: Sequence[str], feature_NF: np.ndarray, is_soon_N: np.ndarray, weight_N: np.ndarray, penalty: float
) -> RiskModel:
    """Fit a model of the features ``names``: highest likelihood minus ``penalty`` times the squared coefficients.

    ``is_soon_N`` says whether an onset followed each reading within the horizon, ``weight_N`` how much it counts. The
    penalty is in units of the mean log-likelihood of a reading.
    """
    chosen_NF = feature_NF[:, [NAMES.index(name) for name in names]]
    centre_F, spread_F = np.zeros(len(names)), np.ones(len(names))
    for f, value_N in enumerate(chosen_NF.T):
        known = value_N[np.isfinite(value_N)]
        if len(known):
            centre_F[f], spread_F[f] = np.median(known), max(float(known.std()), 1e-3)
    scaled_NF, share_N = scaled(chosen_NF, centre_F, spread_F), weight_N / weight_N.sum()

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        bias, coefficient_F = parameters[0], parameters[1:]
        logit_N = bias + scaled_NF @ coefficient_F
        error_N = share_N * (logistic(logit_N) - is_soon_N)
        value = share_N @ (np.logaddexp(0.0, logit_N) - is_soon_N * logit_N) + penalty * coefficient_F @ coefficient_F
        return float(value), np.concatenate([[error_N.sum()], scaled_NF.T @ error_N + 2 * penalty * coefficient_F])

    start = np.zeros(len(names) + 1)
    bounds = [(None, None), *[(0.0, None)] * len(names)]
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return RiskModel(
        tuple(names), tuple(centre_F.tolist()), tuple(spread_F.tolist()), tuple(best[1:].tolist()), float(best[0])
    )


def models_as_text(models: dict[str, RiskModel], made: Any) -> str:
    """Return the data file of named ``models``, with a record of how they were ``made``."""
    return json.dumps({"made": made, "models": {name: asdict(model) for name, model in models.items()}}, indent=1)


def risk_at_edge(model: RiskModel) -> float:
    """Return the risk of a reading whose curvature's trend reaches 2 / lr, and which is usual in all else.

    Theory gives this threshold, so that none must be chosen on runs. Raises ValueError for a model that does not use
    the trend.
    """
    if TREND_NAME not in model.names:
        raise ValueError(f"the model does not use {TREND_NAME}")
    f = model.names.index(TREND_NAME)
    scale = -model.centre[f] / model.spread[f]
    return float(logistic(np.array(model.bias + model.coefficient[f] * scale)))


def best_threshold(runs: Sequence[ScoredRun], most_false: float, horizon: int = HORIZON) -> float:
    """Return the threshold with most good leads at no more than ``most_false`` false alarms per 1,000 calm steps.

    Among equals, the one with fewer false alarms. Infinite if none keeps the bound, which means no alarms.
    """
    scores = np.concatenate([run.score_N[np.isfinite(run.score_N)] for run in runs]) if runs else np.zeros(0)
    if not len(scores):
        return float("inf")
    # Few readings are alarms, so candidates get denser towards the highest scores.
    shares = 1 - np.geomspace(0.5, 1e-4, _NUM_THRESHOLDS)
    best, chosen = (0, 0.0), float("inf")
    for threshold in np.unique(np.quantile(scores, shares, method="inverted_cdf")):
        at_this = quality(run_warnings(run, float(threshold), horizon) for run in runs)
        if at_this.false_per_1000 <= most_false and (at_this.num_good, -at_this.false_per_1000) > best:
            best, chosen = (at_this.num_good, -at_this.false_per_1000), float(threshold)
    return chosen


@dataclass(frozen=True, slots=True)
class Intervals:
    """95 % intervals of numbers of a ``Quality``; NaN if no draw has the number."""

    good_share: Bounds
    recall: Bounds
    precision: Bounds
    false_per_1000: Bounds


def intervals(runs: Sequence[RunWarnings], num_draws: int = _DRAWS, seed: int = 0) -> Intervals:
    """Return percentile intervals over ``num_draws`` resamplings of whole runs. Raises ValueError without runs.

    Onsets of one run are alike, and so are its false alarms: runs are drawn, with replacement, not onsets.
    """
    if not runs:
        raise ValueError("an interval needs at least one run")
    counts = [quality([run]) for run in runs]
    good_R, warned_R, onset_R, false_R, alarm_R, calm_R = np.array(
        [(c.num_good, c.num_warned, c.num_onsets, c.num_false, c.num_alarms, c.calm_steps) for c in counts], dtype=float
    ).T
    # Sums need only how often each run is drawn.
    times_DR = np.random.default_rng(seed).multinomial(len(runs), np.full(len(runs), 1 / len(runs)), size=num_draws)

    def of(part_R: np.ndarray, whole_R: np.ndarray) -> Bounds:
        with np.errstate(divide="ignore", invalid="ignore"):
            share_D = (times_DR @ part_R) / (times_DR @ whole_R)
        known = share_D[np.isfinite(share_D)]
        if not len(known):
            return float("nan"), float("nan")
        low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return float(low), float(high)

    return Intervals(
        good_share=of(good_R, onset_R),
        recall=of(warned_R, onset_R),
        precision=of(alarm_R - false_R, alarm_R),
        false_per_1000=of(1000 * false_R, calm_R),
    )
