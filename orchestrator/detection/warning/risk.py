"""The risk that a run becomes unstable within the next steps: a logistic regression on features of its telemetry.

log(risk / (1 - risk)) = bias + sum of coefficient * (feature - centre) / spread, with coefficients of at least zero:
more of a feature never lowers the risk. An unknown feature adds nothing, as if it were at its centre.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from orchestrator.detection.warning.alarms import HORIZON
from orchestrator.detection.warning.features import FEATURES, NAMES, TREND_NAME

# Shapes: N readings, F features of the model.

_FILE = "risk.json"
_MOST_SPREADS = 4.0  # features are clipped at this distance from their centre


@dataclass(frozen=True, slots=True)
class RiskModel:
    """Coefficients, (F,), of the features ``names``. A risk of at least ``threshold`` is an alarm."""

    names: tuple[str, ...]
    centre: tuple[float, ...]
    spread: tuple[float, ...]
    coefficient: tuple[float, ...]
    bias: float
    threshold: float = float("inf")
    horizon: int = HORIZON

    @property
    def needs_curvature(self) -> bool:
        """Whether any feature costs Hessian-vector products."""
        return any(feature.needs_curvature for feature in FEATURES if feature.name in self.names)

    def contributions(self, feature_NF: np.ndarray) -> np.ndarray:
        """Return what each feature adds to log(risk / (1 - risk)), (N, F), from the columns of ``FEATURES``."""
        return self._scaled(feature_NF) * np.array(self.coefficient)

    def risks(self, feature_NF: np.ndarray) -> np.ndarray:
        """Return the risk of each reading, 0 to 1, (N,), or NaN if no feature is known."""
        is_known_N = np.isfinite(feature_NF[:, self._columns]).any(axis=1)
        return np.where(is_known_N, _logistic(self.bias + self.contributions(feature_NF).sum(axis=1)), np.nan)

    def risk_at_edge(self) -> float:
        """Return the risk of a reading whose curvature's trend reaches 2 / lr, and which is usual in all else.

        Theory gives this threshold, so that none must be chosen on runs. Raises ValueError for a model that does not
        use the trend.
        """
        if TREND_NAME not in self.names:
            raise ValueError(f"the model does not use {TREND_NAME}")
        f = self.names.index(TREND_NAME)
        scale = -self.centre[f] / self.spread[f]
        return float(_logistic(np.array(self.bias + self.coefficient[f] * scale)))

    @property
    def _columns(self) -> list[int]:
        return [NAMES.index(name) for name in self.names]

    def _scaled(self, feature_NF: np.ndarray) -> np.ndarray:
        return scaled(feature_NF[:, self._columns], np.array(self.centre), np.array(self.spread))


def _logistic(value_N: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(value_N / 2))


def scaled(feature_NF: np.ndarray, centre_F: np.ndarray, spread_F: np.ndarray) -> np.ndarray:
    """Return features in spreads from their centre, clipped at 4; 0 if unknown."""
    return np.clip(np.nan_to_num((feature_NF - centre_F) / spread_F, nan=0.0), -_MOST_SPREADS, _MOST_SPREADS)


def fitted(
    names: Sequence[str], feature_NF: np.ndarray, is_soon_N: np.ndarray, weight_N: np.ndarray, penalty: float
) -> RiskModel:
    """Fit a model of the features ``names``: highest likelihood minus ``penalty`` times the squared coefficients.

    ``is_soon_N`` says whether an onset followed each reading within the horizon, ``weight_N`` how much it counts. The
    penalty is in units of the mean log-likelihood of a reading.
    """
    from scipy.optimize import minimize  # only fitting needs it

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
        error_N = share_N * (_logistic(logit_N) - is_soon_N)
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


@cache
def shipped() -> dict[str, RiskModel]:
    """Return the models of the package: ``trend``, ``gradient`` and ``cheap``. ``model_for`` chooses one."""
    data = json.loads(resources.files("orchestrator.detection.warning").joinpath(_FILE).read_text())
    return {name: _model_from_plain(model) for name, model in data["models"].items()}


def _model_from_plain(model: Mapping[str, Any]) -> RiskModel:
    return RiskModel(
        names=tuple(model["names"]),
        centre=tuple(model["centre"]),
        spread=tuple(model["spread"]),
        coefficient=tuple(model["coefficient"]),
        bias=model["bias"],
        threshold=model["threshold"],
        horizon=model["horizon"],
    )
