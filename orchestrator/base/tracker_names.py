"""The trackers that a sweep file can name. A room of its own, so that the sweep file's reader can import it."""

from __future__ import annotations

# The class of each, as MODULE:CLASS. Imported only when a sweep uses it, since trackers are slow to import.
TRACKERS = {
    "mlflow": "orchestrator.mirrors.mlflow:MlflowTracker",
    "tensorboard": "orchestrator.mirrors.tensorboard:TensorBoardTracker",
    "wandb": "orchestrator.mirrors.wandb:WandbTracker",
}
