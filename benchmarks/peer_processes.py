"""Two plain processes that take trials from one queue: `python -m benchmarks.peer_processes SWEEP FOLDER`."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

from benchmarks.crew import WORKERS
from benchmarks.peers import MlflowRuns, parse_peer, train_and_log
from objectives.base import GptConfig
from orchestrator.sweepfile.spec import load_sweep

_runs: MlflowRuns


def begin(folder: Path) -> None:
    """Connect this process to MLflow, once."""
    global _runs
    _runs = MlflowRuns(folder)


def train(task: tuple[dict[str, Any], dict[str, Any], int, Path]) -> float:
    """Train one trial in this process."""
    config, cell, seed, folder = task
    return train_and_log(GptConfig.model_validate(config, strict=False), cell, seed, folder, _runs.log)


def main() -> None:
    """Train all trials of a sweep."""
    arguments = parse_peer("A sweep's trials one by one in two processes.")
    sweep = load_sweep(arguments.sweep)
    begin(arguments.folder)  # creates the store, which two processes could not do at once
    tasks = [(dict(trial.config), dict(trial.cell), trial.seed, arguments.folder) for trial in sweep.trials]
    with multiprocessing.get_context("spawn").Pool(WORKERS, begin, (arguments.folder,)) as pool:
        for _ in pool.imap_unordered(train, tasks):
            pass


if __name__ == "__main__":
    main()
