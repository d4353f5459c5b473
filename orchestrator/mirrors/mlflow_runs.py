"""The runs of one sweep in an MLflow store, and the params that distinguish the sweeps of an experiment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.mirrors.mlflow_store import all_runs

ATTEMPT = "sweep.attempt"  # tag: the attempt at training that the points belong to
MIRRORED = "sweep.mirrored"  # tag: the version of the trial, once it is complete
_DIFFERENCES = "sweep.told_apart_by"  # tag of a sweep's run: the params that its other runs have been given
_LEVEL = "tags.`sweep.level`"
_OBJECTIVE = "objective"
_NEVER_PARAMS = ("sweep", "seed")


@dataclass
class Runs:
    """What the store has of a sweep, as first read and as written since; by id of trial, cell or run."""

    parent_id: str = ""
    parent_made_ms: int = 0
    of_trial: dict[str, str] = field(default_factory=dict)
    of_cell: dict[str, str] = field(default_factory=dict)
    params: dict[str, dict[str, str]] = field(default_factory=dict)  # of every run
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)  # of the runs of cells and of the sweep
    status: dict[str, str] = field(default_factory=dict)  # of the runs of cells
    attempt: dict[str, str] = field(default_factory=dict)  # of trials
    complete: dict[str, str] = field(default_factory=dict)  # versions of trials, "" for incomplete ones
    shares: dict[str, Mapping[str, float]] = field(default_factory=dict)  # of trials: see SweepRecord
    tags: dict[str, dict[str, str]] = field(default_factory=dict)  # of the runs of trials
    shown: dict[str, set[tuple[str, int]]] = field(default_factory=dict)  # points of growing runs, as far as known
    running: set[str] = field(default_factory=set)  # runs of trials that the store lists as running

    def add(self, run: Any) -> bool:
        """Add a run of the store; return False if its trial, cell or sweep already has one."""
        run_id, tags = run.info.run_id, run.data.tags
        trial_id, cell_id = tags.get("sweep.trial_id"), tags.get("sweep.cell_id")
        if trial_id is not None:
            known = self.of_trial.setdefault(trial_id, run_id)
        elif cell_id is not None:
            known = self.of_cell.setdefault(cell_id, run_id)
        else:
            if not self.parent_id:
                self.parent_id, self.parent_made_ms = run_id, run.info.start_time
            known = self.parent_id
        if known != run_id:
            return False
        self.params[run_id] = dict(run.data.params)
        if trial_id is None:
            self.metrics[run_id] = dict(run.data.metrics)
            if cell_id is not None:
                self.status[run_id] = run.info.status
            return True
        self.shares[trial_id] = run.data.metrics
        self.tags[run_id] = dict(tags)
        if ATTEMPT in tags:
            self.attempt[trial_id] = tags[ATTEMPT]
        # A run that was interrupted before its last call is RUNNING and has all of its data.
        is_running = run.info.status == "RUNNING"
        self.complete[trial_id] = "" if is_running else tags.get(MIRRORED, "")
        self.running |= {run_id} if is_running else set()
        return True


def find_runs(client: Any, experiment_id: str, folder: str, on_response: Callable[[], None]) -> Runs:
    """Return the runs tagged with ``folder``, and delete duplicates.

    Duplicates arise when the response to a request to create a run is late and the request is repeated.
    """
    query = f"tags.`sweep.folder` = '{folder}'"
    runs = Runs()
    duplicates = [run for run in all_runs(client, experiment_id, query, on_response) if not runs.add(run)]
    for run in duplicates:
        client.delete_run(run.info.run_id)
    return runs


def log_differences(client: Any, experiment_id: str, on_response: Callable[[], None]) -> None:
    """Log the settings that differ between sweeps of the experiment as params of their cells and trials.

    Sweeps of different objectives have different settings, so the objective alone is logged. A sweep's axes are params
    already. Nothing is written unless a difference is new.
    """
    sweeps = list(all_runs(client, experiment_id, f"{_LEVEL} = 'sweep'"))
    by_objective: dict[str, list[Any]] = {}
    for sweep in sweeps:
        by_objective.setdefault(sweep.data.params.get(_OBJECTIVE, ""), []).append(sweep)
    for sweep in sweeps:
        comparable = by_objective[sweep.data.params.get(_OBJECTIVE, "")]
        names = sorted(
            differing(run.data.params for run in comparable) | ({_OBJECTIVE} if len(by_objective) > 1 else set())
        )
        # The tag has the number of steps, since trials that were added later lack the params.
        if sweep.data.tags.get(_DIFFERENCES, "") == _differences(names, sweep) or not names:
            continue
        params = {name: sweep.data.params[name] for name in names if name in sweep.data.params}
        query = f"{_LEVEL} != 'sweep' and tags.`sweep.folder` = '{sweep.data.tags.get('sweep.folder', '')}'"
        # Another process may be writing the same params, which MLflow rejects; they are then complete.
        with contextlib.suppress(Exception):
            for run in all_runs(client, experiment_id, query):
                for name in params.keys() - run.data.params.keys():
                    client.log_param(run.info.run_id, name, params[name], synchronous=True)
                on_response()
            client.set_tag(sweep.info.run_id, _DIFFERENCES, _differences(names, sweep))


def differing(settings_of_sweeps: Iterable[Mapping[str, str]]) -> set[str]:
    """Return the names of settings with more than one value among the sweeps that have them."""
    values: dict[str, set[str]] = {}
    for settings in settings_of_sweeps:
        for name, value in settings.items():
            values.setdefault(name, set()).add(value)
    return {name for name, own in values.items() if len(own) > 1 and name not in _NEVER_PARAMS}


def _differences(names: list[str], sweep: Any) -> str:
    return f"{', '.join(names)} at {sweep.data.metrics.get('steps_trained', 0):g} steps"[:5000]
