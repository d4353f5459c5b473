"""`orchestrator.watch`: the detector for a training loop of your own, which lives in `orchestrator.detection.watch`."""

from orchestrator.detection.watch import TrainingLost, Watch

__all__ = ["TrainingLost", "Watch"]
