"""Optuna over two processes that share a study: `python -m benchmarks.peer_optuna SWEEP FOLDER`."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

from benchmarks.crew import WORKERS
from benchmarks.peers import MlflowRuns, parse_peer, train_and_log
from objectives.base import GptConfig
from orchestrator.sweepfile.spec import Sweep, load_sweep

_STUDY = "peer"


def storage(folder: Path) -> JournalStorage:
    """The file that both processes share; recommended by Optuna for processes on one machine."""
    return JournalStorage(JournalFileBackend(str(folder / "optuna.log")))


def work(sweep_file: Path, folder: Path) -> None:
    """Train trials of the study until none is left."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweep, runs = load_sweep(sweep_file), MlflowRuns(folder)
    study = optuna.load_study(study_name=_STUDY, storage=storage(folder))

    def objective(trial: optuna.Trial) -> float:
        cell = {axis.name: trial.suggest_categorical(axis.name, axis.values) for axis in sweep.axes}
        seed = trial.suggest_categorical("seed", sweep.seeds)
        config = GptConfig(steps=sweep.steps, **sweep.fixed, **cell)
        return train_and_log(config, cell, seed, folder, runs.log)

    # A process that ends a trial stops once all others are taken. A non-finite loss fails its trial, which Optuna
    # reports before continuing.
    taken = (TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING)
    study.optimize(objective, callbacks=[MaxTrialsCallback(len(sweep.trials), taken)])


def enqueue(sweep: Sweep, folder: Path) -> None:
    """Enqueue every trial in a new study; a GridSampler would sometimes give one trial to both processes."""
    study = optuna.create_study(study_name=_STUDY, storage=storage(folder))
    for trial in sweep.trials:
        study.enqueue_trial({**trial.cell, "seed": trial.seed})


def main() -> None:
    """Train all trials of a sweep."""
    arguments = parse_peer("A sweep's trials as a study of Optuna in two processes.")
    MlflowRuns(arguments.folder)  # creates the store, which two processes could not do at once
    enqueue(load_sweep(arguments.sweep), arguments.folder)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(arguments.sweep, arguments.folder)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker of the study failed")


if __name__ == "__main__":
    main()
