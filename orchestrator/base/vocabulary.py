"""Words with one meaning everywhere: labels of trials, objectives that users bring, and names of trackers."""

from __future__ import annotations

# What a map calls a stable trial that learned less than this share of what the best of its sweep did.
DEGRADED, LEARNED_ENOUGH = "degraded", 0.5
# Words on a trial's learning rate: raise it, lower it, leave it, and that it cannot be told.
TOO_SLOW, OSCILLATING, RIGHT, UNSURE = "too slow", "oscillating", "right", "unknown"
PRUNED = "pruned"  # the outcome of a trial that was stopped since it was slow
IMPORTED = "imported"  # the objective of runs that were trained elsewhere
# The objectives whose trials a user's own code trains: what their settings, steps and columns mean is not known here.
CUSTOM_KINDS = ("command", "python", IMPORTED)

# The trackers that a sweep file can name, and the class of each as MODULE:CLASS. A class
# is imported only when a sweep uses it: trackers are slow to import.
TRACKERS = {
    "mlflow": "orchestrator.mirrors.mlflow:MlflowTracker",
    "tensorboard": "orchestrator.mirrors.tensorboard:TensorBoardTracker",
    "wandb": "orchestrator.mirrors.wandb:WandbTracker",
}
