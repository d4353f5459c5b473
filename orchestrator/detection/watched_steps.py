"""Telemetry of a custom training loop, and the risk that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.detection.episodes import Episode
from orchestrator.detection.warning.monitor import Risk, RiskMonitor, model_for


class WatchedSteps:
    """Reads the steps of one optimizer; ``follow`` after each step gives the risk what was read."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        closure: Callable[[], Any] | None,
        every: int,
        curvature: int,
        products: int,
    ) -> None:
        """The arguments of ``Watch.telemetry``."""
        from objectives.instruments.torch_optimizer import OptimizerReadings  # torch, for those who give a module of it

        self._readings = OptimizerReadings(
            model, optimizer, closure, every, None if closure is None else curvature, products
        )
        self._monitor = RiskMonitor(model_for(None if closure is None else curvature, has_largest=products > 1))
        self._was_off = False
        self.reading: dict[str, float] = {}

    @property
    def risk(self) -> Risk | None:
        """The risk at the last reading."""
        return self._monitor.last

    def warning(self, step: int) -> str | None:
        """The text of the risk while an alarm stands."""
        risk = self.risk
        return risk.text() if risk is not None and self._monitor.stands(step) else None

    def follow(self, step: int, episodes: Sequence[Episode]) -> dict[str, float] | None:
        """Give the risk what was read since the last call, and return that; None where nothing was.

        ``episodes`` are those of the run up to ``step``.
        """
        is_off = bool(episodes) and episodes[-1].recovery_step is None
        if self._was_off and not is_off:
            self._monitor.recovered()
        self._was_off = is_off
        read = self._readings.take()
        if read is None:
            return None
        self.reading = read[1]
        self._monitor.read(step, self.reading, is_calm=not is_off)
        return self.reading

    def close(self) -> None:
        """Read no more."""
        self._readings.close()
