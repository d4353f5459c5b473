"""Ray Tune with one trial per actor: `python -m benchmarks.peer_ray SWEEP FOLDER [--reuse-actors]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.logger import LoggerCallback

from benchmarks.crew import WORKERS
from benchmarks.peers import EXPERIMENT, MlflowRuns, Point, parse_peer, tracking_uri, train_trial
from objectives.base import GptConfig
from orchestrator.sweepfile.spec import Sweep, load_sweep


class BatchedMlflow(LoggerCallback):
    """Writes a trial to MLflow in one batch when it ends.

    Ray's MLflowLoggerCallback calls log_metric for each of the dozen numbers in every result, in the process that also
    starts the trials: a user who measures that writes this.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._points: dict[Any, list[Point]] = {}

    def setup(self, *args: Any, **info: Any) -> None:
        """Connect to the store."""
        self._runs = MlflowRuns(self._folder)

    def log_trial_result(self, iteration: int, trial: Any, result: dict) -> None:
        """Store the loss for later."""
        self._points.setdefault(trial, []).append(Point(result["step"], result["loss"], result["timestamp"]))

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        """Write the trial."""
        self._runs.log(trial.config, self._points.pop(trial, []))


def main() -> None:
    """Train all trials of a sweep."""
    arguments = parse_peer(
        "A sweep's trials as trials of Ray Tune.",
        ("--reuse-actors", {"action": "store_true", "help": "keep worker processes from trial to trial"}),
        ("--logging", {"choices": ("callback", "batched"), "required": True, "help": "how MLflow is written"}),
    )
    sweep, folder = load_sweep(arguments.sweep), arguments.folder.absolute()
    if arguments.logging == "batched":
        logger: LoggerCallback = BatchedMlflow(folder)
    else:
        logger = MLflowLoggerCallback(tracking_uri=tracking_uri(folder), experiment_name=EXPERIMENT)
    ray.init(address="local", num_cpus=WORKERS)
    results = tune.Tuner(
        tune.with_resources(trainable(sweep, folder), {"cpu": 1}),
        param_space=search_space(sweep),
        tune_config=tune.TuneConfig(reuse_actors=arguments.reuse_actors),
        run_config=tune.RunConfig(name="tune", storage_path=str(folder), callbacks=[logger]),
    ).fit()
    if results.num_errors:
        raise SystemExit(f"{results.num_errors} trials failed: {results.errors[0]}")


def search_space(sweep: Sweep) -> dict[str, Any]:
    """Every cell with every seed."""
    axes = {axis.name: tune.grid_search(list(axis.values)) for axis in sweep.axes}
    return {**axes, "seed": tune.grid_search(list(sweep.seeds))}


def trainable(sweep: Sweep, folder: Path) -> Any:
    """The function that Tune calls with a cell and a seed."""
    steps, fixed = sweep.steps, dict(sweep.fixed)

    def train(config: dict[str, Any]) -> None:
        cell = {name: value for name, value in config.items() if name != "seed"}
        for point in train_trial(GptConfig(steps=steps, **fixed, **cell), cell, config["seed"], folder):
            tune.report({"loss": point.loss, "step": point.step})

    return train


if __name__ == "__main__":
    main()
