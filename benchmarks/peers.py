"""The common parts of the end-to-end peers: one plain trial, its record, its run in MLflow."""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from benchmarks.plain_gpt import Style, losses
from objectives.base import GptConfig

EXPERIMENT = "peer"
# One call per step and metric would cost MLflow more than the training: it handles 230 per second. A tenth of the
# steps, and one call per trial where the peer can choose, keeps a peer fast.
REPORT_EVERY = 10
# The fastest eager set-up at the size of the main sweep.
STYLE = Style("fused")


@dataclass(frozen=True, slots=True)
class Point:
    """One reported step."""

    step: int
    loss: float
    at: float  # seconds since 1970


def parse_peer(description: str, *options: tuple[str, dict[str, Any]]) -> argparse.Namespace:
    """The command line of every peer: a sweep file, its own folder, and ``options``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("sweep", type=Path, help="sweep file to train")
    parser.add_argument("folder", type=Path, help="where records and the MLflow store go")
    for name, settings in options:
        parser.add_argument(name, **settings)
    return parser.parse_args()


def train_trial(config: GptConfig, cell: Mapping[str, Any], seed: int, folder: Path) -> Iterator[Point]:
    """Train one trial, yielding every tenth step and the last one; its curve is stored in ``folder``."""
    torch.set_num_threads(1)
    curve: list[float] = []
    first_step_at, latest = 0.0, None
    for step, loss in enumerate(losses(config, seed, STYLE, "cpu")):
        first_step_at = first_step_at or time.time()
        curve.append(loss)
        latest = Point(step, loss, time.time())
        if (step + 1) % REPORT_EVERY == 0:
            yield latest
            latest = None
    if latest is not None:
        yield latest
    record = {
        "cell": dict(cell),
        "seed": seed,
        "losses": curve,
        "first_step_at": first_step_at,
        "finished_at": time.time(),
    }
    (folder / f"trial_{uuid.uuid4().hex}.json").write_text(json.dumps(record))


def tracking_uri(folder: Path) -> str:
    """The SQLite store of a peer."""
    return f"sqlite:///{folder / 'mlflow.db'}"


class MlflowRuns:
    """One run per trial, written in a single batch: the cheapest way in MLflow."""

    def __init__(self, folder: Path) -> None:
        self._client = MlflowClient(tracking_uri(folder))
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)

    def log(self, params: Mapping[str, Any], points: Sequence[Point]) -> None:
        """Write one trial."""
        run_id = self._client.create_run(self._experiment_id).info.run_id
        self._client.log_batch(
            run_id,
            metrics=[Metric("loss", point.loss, int(point.at * 1000), point.step) for point in points],
            params=[Param(name, str(value)) for name, value in params.items()],
        )
        self._client.set_terminated(run_id)


def train_and_log(
    config: GptConfig, cell: Mapping[str, Any], seed: int, folder: Path, log: Callable[..., None]
) -> float:
    """Train one trial and write it to MLflow; returns its last loss."""
    points = list(train_trial(config, cell, seed, folder))
    log({**cell, "seed": seed}, points)
    return points[-1].loss
