"""Warning during training: the risk after each reading of telemetry, and whether it raises an alarm."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.consumption import peak_device_memory, peak_memory
from orchestrator.detection.counters import Counts
from orchestrator.detection.detector import MemberRecord
from orchestrator.detection.excursions import Episode
from orchestrator.detection.warning.alarms import AlarmState
from orchestrator.detection.warning.risk import (
    COLUMNS,
    FEATURES,
    MEMORY,
    NAMES,
    RiskModel,
    Telemetry,
    features,
    shipped,
)

# Shapes: N readings.

_REASONS = 2  # named with a risk
OFTEN = 10  # largest number of steps between measurements of the curvature for a useful trend


@dataclass(frozen=True, slots=True)
class Risk:
    """The risk at a reading, 0 to 1, that the run becomes unstable within the next ``horizon`` steps.

    ``reasons`` name what raises it most above the risk of a usual run, strongest first. ``is_alarm`` says whether this
    reading raised an alarm.
    """

    step: int
    risk: float
    reasons: tuple[str, ...]
    is_alarm: bool
    horizon: int

    def text(self) -> str:
        """Return one line for a log."""
        why = f": {', '.join(self.reasons)}" if self.reasons else ""
        return f"risk {self.risk:.0%} of an instability within {self.horizon} steps of step {self.step}{why}"


def kind_for(curvature_every: float | None, *, has_largest: bool = True) -> str:
    """Return the name of the model for runs whose curvature is measured every so many steps, None for never.

    ``trend`` uses the largest eigenvalue if it is measured often (``has_largest``: by at least two Hessian-vector
    products). Otherwise ``gradient`` uses the curvature along the gradient, which takes one product. ``cheap`` needs
    neither.
    """
    if curvature_every is None:
        return "cheap"
    return "trend" if has_largest and curvature_every <= OFTEN else "gradient"


def model_for(curvature_every: float | None, *, has_largest: bool = True) -> RiskModel:
    """Return the model of ``kind_for``."""
    return shipped()[kind_for(curvature_every, has_largest=has_largest)]


class RiskMonitor:
    """Follow one run with ``model``: ``read`` takes a reading, ``recovered`` notes the end of an instability."""

    def __init__(self, model: RiskModel) -> None:
        self._model, self._alarm = model, AlarmState(model.threshold, model.horizon)
        self._readings: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=MEMORY)
        self.last: Risk | None = None

    def read(self, step: int, reading: Mapping[str, float], *, is_calm: bool = True) -> Risk | None:
        """Take a reading. Return the risk, or None while unknown. A run off its trend raises no alarm."""
        self._readings.append((step, reading))
        of_last_1F = features(self._telemetry())[-1:]
        risk = float(self._model.risks(of_last_1F)[0])
        if math.isnan(risk):
            self.last = None
            return None
        is_alarm = is_calm and self._alarm.update(step, risk)
        self.last = Risk(step, risk, reasons_of(self._model, of_last_1F), is_alarm, self._model.horizon)
        return self.last

    def recovered(self) -> None:
        """Begin anew after an instability: earlier alarms no longer count."""
        self._alarm.reset()

    def is_alarm_active(self, step: int) -> bool:
        """Return whether an alarm is active at ``step``."""
        return self._alarm.is_active(step)

    def _telemetry(self) -> Telemetry:
        read = {name for _, reading in self._readings for name in reading if name in COLUMNS}
        columns = {name: np.array([reading.get(name, math.nan) for _, reading in self._readings]) for name in read}
        return {"step": np.array([step for step, _ in self._readings]), **columns}


def reasons_of(model: RiskModel, feature_1F: np.ndarray) -> tuple[str, ...]:
    """Return phrases for what raises the risk of one reading most, strongest first."""
    added_F = model.contributions(feature_1F)[0]
    strongest = np.argsort(-added_F)[:_REASONS]
    return tuple(FEATURES[NAMES.index(model.names[f])].phrase for f in strongest.tolist() if added_F[f] > 0)


class WatchedSteps:
    """Read the steps of one optimizer; ``follow`` passes what was read after each step to a ``RiskMonitor``."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        closure: Callable[[], Any] | None,
        every: int,
        curvature: int,
        products: int,
        by: str = "products",
        record: Callable[[], MemberRecord] | None = None,
    ) -> None:
        """Take the arguments of ``Watch.telemetry``. Readings have the counts of ``record()`` too."""
        from objectives.instruments.torch_optimizer import OptimizerReadings  # imports torch

        if by not in ("products", "forwards"):
            raise ValueError(f"by={by!r}: expected 'products' or 'forwards'")
        products = products if by == "products" else 0
        self._readings = OptimizerReadings(
            model, optimizer, closure, every, None if closure is None else curvature, products
        )
        weakref.finalize(self, self._readings.close)  # the optimizer may train on after the watch is gone
        self._monitor = RiskMonitor(model_for(None if closure is None else curvature, has_largest=products > 1))
        self._was_off, self._record = False, record
        self.reading: dict[str, float] = {}

    @property
    def risk(self) -> Risk | None:
        """The risk at the last reading."""
        return self._monitor.last

    def warning(self, step: int) -> str | None:
        """Return the text of the risk while an alarm is active, else None."""
        risk = self.risk
        return risk.text() if risk is not None and self._monitor.is_alarm_active(step) else None

    def follow(self, step: int, episodes: Sequence[Episode]) -> dict[str, float] | None:
        """Update the risk with what was read since the last call. Return it, or None if nothing was read.

        ``episodes`` are the run's episodes up to ``step``.
        """
        is_off = bool(episodes) and episodes[-1].recovery_step is None
        if self._was_off and not is_off:
            self._monitor.recovered()
        self._was_off = is_off
        read = self._readings.take()
        if read is None:
            return None
        self.reading = read[1] | self._counts()
        self._monitor.read(step, self.reading, is_calm=not is_off)
        return self.reading

    def _counts(self) -> dict[str, float]:
        """Return numbers that any monitor has, where they are known."""
        counts = Counts() if self._record is None else self._record().counts
        numbers = {
            "nonfinite_share": counts.nonfinite_share,
            "num_skipped": counts.skipped,
            "data_share": counts.data_share,
            "peak_memory": peak_memory(),
            "peak_device_memory": peak_device_memory(),
        }
        return {name: float(value) for name, value in numbers.items() if value is not None}

    def close(self) -> None:
        """Stop reading."""
        self._readings.close()
