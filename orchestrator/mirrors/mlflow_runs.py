"""The runs of one sweep that an MLflow store has, as found there and as written since."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ATTEMPT = "sweep.attempt"  # tag: which attempt at training the points are of
MIRRORED = "sweep.mirrored"  # tag: the version of the trial that is completely there
_PAGE = 1000


@dataclass
class Runs:
    """What is there, by id of trial, cell or run."""

    parent_id: str = ""
    parent_made_ms: int = 0
    of_trial: dict[str, str] = field(default_factory=dict)
    of_cell: dict[str, str] = field(default_factory=dict)
    params: dict[str, dict[str, str]] = field(default_factory=dict)  # of each run
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)  # of the runs of cells and of the sweep
    status: dict[str, str] = field(default_factory=dict)  # of the runs of cells
    attempt: dict[str, str] = field(default_factory=dict)  # of trials
    complete: dict[str, str] = field(default_factory=dict)  # version of trials, "" of those that are not
    shares: dict[str, Mapping[str, float]] = field(default_factory=dict)  # metrics that depend on other trials
    tags: dict[str, dict[str, str]] = field(default_factory=dict)  # of the runs of trials
    shown: dict[str, set[tuple[str, int]]] = field(default_factory=dict)  # points of runs that grow, as far as known
    running: set[str] = field(default_factory=set)  # runs of trials that the store lists as running

    def take(self, run: Any) -> bool:
        """Add a run of the store; False for one too many of its trial, cell or sweep."""
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
        # A run whose writing was interrupted before its last call is RUNNING, with all data in it.
        is_running = run.info.status == "RUNNING"
        self.complete[trial_id] = "" if is_running else tags.get(MIRRORED, "")
        self.running |= {run_id} if is_running else set()
        return True


def find_runs(client: Any, experiment_id: str, folder: str, sign_of_life: Callable[[], None]) -> Runs:
    """The runs tagged with ``folder``; what a repeated request has made twice is deleted."""
    query, token = f"tags.`sweep.folder` = '{folder}'", None
    runs, surplus = Runs(), []
    while True:
        page = client.search_runs([experiment_id], query, max_results=_PAGE, page_token=token)
        surplus += [run.info.run_id for run in page if not runs.take(run)]
        sign_of_life()
        token = page.token
        if not token:
            break
    for run_id in surplus:
        # A request to create a run was repeated, because its answer came too late.
        client.delete_run(run_id)
    return runs
