"""Outcomes, statuses and other labels with one meaning everywhere, and the names of trackers."""

from __future__ import annotations

from typing import Literal

Outcome = Literal["stable", "spiked", "diverged", "stalled", "unknown", "pruned"]
# Outcomes of trainings that can be judged. Losses that cannot be judged make a trial unknown, and one that was stopped
# because it was slow is pruned: nobody knows what it would have become.
OUTCOMES: tuple[Outcome, ...] = ("stable", "spiked", "diverged", "stalled")
UNKNOWN: Outcome = "unknown"
PRUNED: Outcome = "pruned"
# What the infrastructure did.
STATUSES = ("planned", "running", "finished", "interrupted", "lost", "errored")
# A map's label of a stable trial that learned less than this share of what the best trial of its sweep did.
DEGRADED, LEARNED_ENOUGH = "degraded", 0.5
# Labels of a trial's learning rate: raise it, lower it, keep it, cannot be judged.
TOO_SLOW, OSCILLATING, RIGHT, UNSURE = "too slow", "oscillating", "right", "unknown"
IMPORTED = "imported"  # the objective of runs that were trained elsewhere
# Objectives whose trials a user's own code trains: the meaning of their settings, steps and columns is not known here.
CUSTOM_KINDS = ("command", "python", IMPORTED)

# The trackers that a sweep file can name, and the class of each as MODULE:CLASS. A class
# is imported only when a sweep uses it: trackers are slow to import.
TRACKERS = {
    "mlflow": "orchestrator.mirrors.mlflow:MlflowTracker",
    "tensorboard": "orchestrator.mirrors.tensorboard:TensorBoardTracker",
    "wandb": "orchestrator.mirrors.wandb:WandbTracker",
}
