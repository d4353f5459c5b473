"""sweep: where in hyperparameter space is training stable, and how far away is the edge?"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import objectives
from orchestrator.base import __version__

if TYPE_CHECKING:
    from orchestrator.api.results import SweepResults, load
    from orchestrator.api.running import run
    from orchestrator.detection.config import StoppingConfig
    from orchestrator.detection.detector import SpikeDetector
    from orchestrator.detection.watch import TrainingLost, Watch

if not os.path.samefile(objectives.__file__, f"{__path__[0]}/../objectives/__init__.py"):
    raise ImportError(f"{objectives.__file__} hides sweep's package of this name: rename yours")

__all__ = [
    "SpikeDetector", "StoppingConfig", "SweepResults", "TrainingLost", "Watch", "__version__", "load", "run",
]  # fmt: skip

# Imported when first used: `sweep --help` must not wait for them.
_MODULES = {
    "SpikeDetector": "detection.detector",
    "StoppingConfig": "detection.config",
    "SweepResults": "api.results",
    "TrainingLost": "detection.watch",
    "Watch": "detection.watch",
    "load": "api.results",
    "run": "api.running",
}


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"orchestrator.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
