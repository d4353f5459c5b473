"""The warning while a run trains: readings one by one, and after each the risk and whether it is an alarm."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from orchestrator.detection.warning.alarms import AlarmBell
from orchestrator.detection.warning.features import COLUMNS, FEATURES, MEMORY, NAMES, Telemetry, features
from orchestrator.detection.warning.risk import RiskModel, shipped

# Shapes: N readings.

_REASONS = 2  # named beside a risk
OFTEN = 10  # steps between measurements of the curvature up to which its trend tells


@dataclass(frozen=True, slots=True)
class Risk:
    """The risk at a reading, 0 to 1: that the run becomes unstable within the ``horizon`` next steps.

    ``reasons`` name what raises it most above that of a usual run, the strongest first. ``is_alarm`` says whether an
    alarm was raised at this reading.
    """

    step: int
    risk: float
    reasons: tuple[str, ...]
    is_alarm: bool
    horizon: int

    def text(self) -> str:
        """One line for a log."""
        why = f": {', '.join(self.reasons)}" if self.reasons else ""
        return f"risk {self.risk:.0%} of an instability within {self.horizon} steps of step {self.step}{why}"


def kind_for(curvature_every: float | None, *, has_largest: bool = True) -> str:
    """The name of the model for runs whose curvature is measured every so many steps, None for never.

    ``trend`` draws on the largest eigenvalue where it is measured often (``has_largest``: by two Hessian-vector
    products or more). Where it is not, ``gradient`` reads the curvature along the gradient, which takes one product.
    ``cheap`` needs neither.
    """
    if curvature_every is None:
        return "cheap"
    return "trend" if has_largest and curvature_every <= OFTEN else "gradient"


def model_for(curvature_every: float | None, *, has_largest: bool = True) -> RiskModel:
    """That model of the package."""
    return shipped()[kind_for(curvature_every, has_largest=has_largest)]


class RiskMonitor:
    """Follows one run with ``model``. ``read`` takes a reading; ``recovered`` says that an instability is over."""

    def __init__(self, model: RiskModel) -> None:
        self._model, self._bell = model, AlarmBell(model.threshold, model.horizon)
        self._readings: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=MEMORY)
        self.last: Risk | None = None

    def read(self, step: int, reading: Mapping[str, float], *, is_calm: bool = True) -> Risk | None:
        """Take a reading; the risk after it, None while nothing is known. Off its trend a run raises no alarm."""
        self._readings.append((step, reading))
        of_last_1F = features(self._telemetry())[-1:]
        risk = float(self._model.risks(of_last_1F)[0])
        if math.isnan(risk):
            self.last = None
            return None
        is_alarm = is_calm and self._bell.rings(step, risk)
        self.last = Risk(step, risk, reasons_of(self._model, of_last_1F), is_alarm, self._model.horizon)
        return self.last

    def recovered(self) -> None:
        """Begin anew after an instability: alarms before it no longer count."""
        self._bell.forgive()

    def stands(self, step: int) -> bool:
        """Whether an alarm stands at ``step``."""
        return self._bell.stands(step)

    def _telemetry(self) -> Telemetry:
        read = {name for _, reading in self._readings for name in reading if name in COLUMNS}
        columns = {name: np.array([reading.get(name, math.nan) for _, reading in self._readings]) for name in read}
        return {"step": np.array([step for step, _ in self._readings]), **columns}


def reasons_of(model: RiskModel, feature_1F: np.ndarray) -> tuple[str, ...]:
    """What raises the risk of one reading most, in words, the strongest first."""
    added_F = model.contributions(feature_1F)[0]
    strongest = np.argsort(-added_F)[:_REASONS]
    return tuple(FEATURES[NAMES.index(model.names[f])].says for f in strongest.tolist() if added_F[f] > 0)
