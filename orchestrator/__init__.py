"""sweep: where in hyperparameter space is training stable, and how far away is the edge?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.detection.config import StoppingConfig
    from orchestrator.detection.detector import SpikeDetector
    from orchestrator.detection.watch import TrainingLost, Watch
    from orchestrator.results import load

__version__ = "0.1.0"
__all__ = ["SpikeDetector", "StoppingConfig", "TrainingLost", "Watch", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Import names lazily: `sweep --help` must not wait for them."""
    if name == "SpikeDetector":
        from orchestrator.detection.detector import SpikeDetector

        return SpikeDetector
    if name == "StoppingConfig":
        from orchestrator.detection.config import StoppingConfig

        return StoppingConfig
    if name in ("TrainingLost", "Watch"):
        from orchestrator.detection import watch

        return getattr(watch, name)
    if name == "load":
        from orchestrator.results import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
