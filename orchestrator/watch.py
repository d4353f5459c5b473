"""The detector for a custom training loop, defined in `orchestrator.detection.watch`."""

from orchestrator.detection.watch import TrainingLost, Watch

__all__ = ["TrainingLost", "Watch"]
