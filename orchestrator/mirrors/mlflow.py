"""Sweeps in MLflow: a run for the sweep, below it one per cell, and below that one per trial.

Runs are identified by the tags ``sweep.folder``, ``sweep.cell_id`` and ``sweep.trial_id``; ``sweep.level`` names their
level. Timestamps of metrics follow from the ledger, so MLflow drops duplicates.
"""

from __future__ import annotations

import contextlib
import gc
import getpass
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.errors import SweepError
from orchestrator.base.files import FROZEN_SWEEP, without_users
from orchestrator.mirrors.mlflow_client import client_of, rare_collections, write_out
from orchestrator.mirrors.mlflow_runs import (
    ATTEMPT,
    MIRRORED,
    MachineReadings,
    find_runs,
    log_answer,
    log_differences,
    log_map,
    log_table,
    log_texts,
    make_artifacts_folder,
    sweep_note,
    trial_note,
)
from orchestrator.mirrors.mlflow_store import (
    artifacts_folder,
    folder_tag,
    prepare_database,
    rehome,
    sqlite_file,
    tracking_uri,
)
from orchestrator.mirrors.records import attempt_of, shown_value
from orchestrator.mirrors.tracker import (
    PREDICTED,
    CellKey,
    CellRecord,
    Point,
    SweepRecord,
    TrackingError,
    TrialAnswer,
    TrialRecord,
)
from orchestrator.sweepfile.sections import TrackingConfig

if TYPE_CHECKING:
    from mlflow.entities import Param

_LONGEST_PARAM = 500  # characters
_MAX_METRICS = 800  # in one call of log_batch, which accepts 1,000 entries
_FINAL_STATUS = {
    "errored": "FAILED",
    "lost": "FAILED",
    "interrupted": "KILLED",
    "running": "KILLED",  # the driver writes ended trials only, and sync runs without a driver
    "planned": "SCHEDULED",
}
# Errors of a database that was interrupted while being created or migrated, has another version, or is not a database.
_UNUSABLE = re.compile(
    "no such (table|column)|has no column|table .* already exists|revision|schema|malformed|not a database"
)


class MlflowTracker:
    """One sweep's runs in MLflow; see ``Tracker`` for the methods."""

    name = library = "mlflow"
    title = "MLflow"

    def __init__(self, folder: Path, tracking: TrackingConfig, on_response: Callable[[], None]) -> None:
        """Connect to the store; a missing SQLite file is created. Raises TrackingError."""
        self.folder, self.tracking = folder, tracking
        self.uri = tracking_uri(tracking, folder.parent)
        self.where = without_users(self.uri)
        self._machine: MachineReadings | None = None
        self._on_response = on_response
        with self._tracking_errors():
            self._connect()

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """Return the tracking URI, without a password."""
        return without_users(tracking_uri(tracking, folder.parent))

    @classmethod
    def may_exist(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Return whether the store's file exists; True for another kind of store."""
        path = sqlite_file(tracking_uri(tracking, folder.parent))
        return path is None or path.is_file()

    @property
    def known(self) -> Mapping[str, str]:
        """Versions of the trials with a run; "" for incomplete ones."""
        return self._runs.complete

    def write_trial(self, trial: TrialRecord) -> None:
        """Write a trial's run."""
        with self._tracking_errors():
            tags = {**self._identity(trial), MIRRORED: trial.version, **trial.tags, **trial_note(trial)}
            run_id = self._run_of_attempt(trial, tags)
            # ``_write_shares`` changes the shares that the run already has: two values at one time would be ambiguous.
            known = self._runs.shares.get(trial.trial_id, {})
            new = {name: value for name, value in trial.shares.items() if name not in known}
            shares = [Point(name, value, 0) for name, value in new.items()]
            own = [point for point in trial.points if point.name not in trial.shares]
            self._log(run_id, trial, [*own, *shares], tags)
            ended_ms = int(1000 * trial.finished_s) if trial.finished_s else None
            # Nobody else writes this run, so after a crash MLflow would list it as running forever.
            self._client.set_terminated(run_id, status=_FINAL_STATUS.get(trial.status, "FINISHED"), end_time=ended_ms)
            self._runs.running.discard(run_id)
            self._runs.shown.pop(run_id, None)
            self._runs.complete[trial.trial_id] = trial.version
            self._runs.shares[trial.trial_id] = {**new, **known}
            self._on_response()

    def write_running(self, trial: TrialRecord) -> None:
        """Append points to a trial's run, which its first points create."""
        with self._tracking_errors():
            tags = {**self._identity(trial), "status": trial.status}
            run_id = self._run_of_attempt(trial, tags)
            self._log(run_id, trial, trial.points, tags)
            self._runs.running.add(run_id)
            self._on_response()

    def write_machine(self) -> None:
        """Append MLflow's system metrics to the sweep's run, at most every ten seconds."""
        with self._tracking_errors():
            self._machine = self._machine or MachineReadings()
            now_ms = int(1000 * time.time())
            # Steps are seconds since the sweep's run was created, so they keep growing after a restart.
            step = (now_ms - self._runs.parent_made_ms) // 1000
            metrics = [self._entities.Metric(name, value, now_ms, step) for name, value in self._machine.due().items()]
            if metrics:
                self._client.log_batch(self._runs.parent_id, metrics=metrics)
                self._on_response()

    def write_results(self, sweep: SweepRecord) -> None:
        """Write the cells, update the trials' shares and end stray runs."""
        with self._tracking_errors():
            self._end_strays()
            self._write_shares(sweep)
            for cell in sweep.cells:
                self._write_cell(cell)

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the parent run, FINISHED if the sweep is over and KILLED otherwise, and all that is missing below."""
        with self._tracking_errors():
            self.write_results(sweep)
            for answer in sweep.answers:
                self._write_answer(answer)
            self._write_parent(sweep, artifacts)
            for run_id in [run_id for run_id, status in self._runs.status.items() if status == "RUNNING"]:
                self._client.set_terminated(run_id, status="KILLED")  # the sweep has lost this cell
                self._runs.status[run_id] = "KILLED"
            log_differences(self._client, self._experiment_id, self._on_response)
            write_out(sqlite_file(self.uri))

    @contextlib.contextmanager
    def _tracking_errors(self) -> Iterator[None]:
        """Turn whatever MLflow raises, from its own errors to SQLAlchemy's, into TrackingError."""
        try:
            with rare_collections():
                yield
        except SweepError:
            raise
        except Exception as error:
            cause, path = _cause(error), sqlite_file(self.uri)
            if path is not None and _UNUSABLE.search(cause):
                cause += f"; MLflow cannot use {path}: delete it, or move it away if others use it"
            raise TrackingError(f"MLflow at {self.where}: {cause}") from error

    def _connect(self) -> None:
        import mlflow

        for name in ("mlflow", "alembic", "urllib3"):
            # The sweep reports an error once, as a warning without a traceback.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._entities = mlflow.entities
        # MLflow's modules have hundreds of thousands of objects, which live as long as the process.
        gc.freeze()
        self._on_response()
        if (path := sqlite_file(self.uri)) is not None:
            prepare_database(path, self.folder.parent / ".mlflow.lock", self._on_response)
            rehome(path, self.folder.parent)
        self._client = client_of(self.uri, tracking_uri(TrackingConfig(), self.folder.parent))
        self._experiment_id = self._find_experiment()
        self._on_response()
        folder = folder_tag(self.folder)
        self._owner = {"sweep.folder": folder, "mlflow.user": getpass.getuser()}
        self._runs = find_runs(self._client, self._experiment_id, folder, self._on_response)
        if not self._runs.parent_id:
            self._create_parent()

    def _find_experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(self.tracking.experiment)
        if experiment is not None:
            if experiment.lifecycle_stage != "active":
                self._client.restore_experiment(experiment.experiment_id)
            return experiment.experiment_id
        # By default a local store keeps artifacts in the working directory.
        location = artifacts_folder(self.folder.parent).as_uri() if self.uri.startswith("sqlite:") else None
        try:
            return self._client.create_experiment(self.tracking.experiment, artifact_location=location)
        except Exception:
            experiment = self._client.get_experiment_by_name(self.tracking.experiment)
            if experiment is None:
                raise
            return experiment.experiment_id  # another sweep has just created it

    def _create_parent(self) -> None:
        tags = {**self._owner, "sweep.level": "sweep"}
        run = self._client.create_run(self._experiment_id, tags=tags, run_name=self.folder.name)
        self._runs.parent_id, self._runs.parent_made_ms = run.info.run_id, run.info.start_time
        # MLflow compares runs by the metric that was logged first, which must not be the load of the machine.
        self._write_metrics(run.info.run_id, {"num_stable": 0.0}, 0)

    def _log(self, run_id: str, trial: TrialRecord, points: Sequence[Point], tags: Mapping[str, str]) -> None:
        """Write the points, params and ``tags`` of a trial that its run lacks."""
        entities, started_ms = self._entities, int(1000 * (trial.started_s or 0))
        shown = self._runs.shown.setdefault(run_id, set())
        new = [point for point in points if (point.name, point.step) not in shown]
        metrics = [entities.Metric(name, value, started_ms + step, step) for name, value, step in new]
        params = self._new_params(run_id, trial.values)
        # One call suffices for an ordinary trial; a call costs as much as forty points.
        last = max(0, (len(metrics) - 1) // _MAX_METRICS * _MAX_METRICS)
        for start in range(0, last, _MAX_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + _MAX_METRICS])
            self._on_response()
        known = self._runs.tags.setdefault(run_id, {})
        changed = [entities.RunTag(key, value) for key, value in tags.items() if known.get(key) != value]
        self._client.log_batch(run_id, metrics=metrics[last:], params=params, tags=changed)
        known.update(tags)
        shown |= {(point.name, point.step) for point in new}
        self._runs.attempt[trial.trial_id] = attempt_of(trial)

    def _identity(self, trial: TrialRecord) -> dict[str, str]:
        """Return the tags that identify a trial's run and attempt."""
        return {
            "mlflow.parentRunId": self._cell_run(trial.cell),
            "sweep.level": "trial",
            "sweep.trial_id": trial.trial_id,
            ATTEMPT: attempt_of(trial),
        }

    def _run_of_attempt(self, trial: TrialRecord, tags: Mapping[str, str]) -> str:
        """Return the run of a trial's attempt. The run of another attempt is deleted: MLflow cannot remove points."""
        trial_id = trial.trial_id
        if self._runs.attempt.get(trial_id, attempt_of(trial)) != attempt_of(trial):
            old = self._runs.of_trial.pop(trial_id)
            self._runs.running.discard(old)
            self._runs.shares.pop(trial_id, None)
            self._client.delete_run(old)
        return self._runs.of_trial.get(trial_id) or self._create_trial_run(trial, tags)

    def _create_trial_run(self, trial: TrialRecord, tags: Mapping[str, str]) -> str:
        """Create a run with its ``tags``: set later, each would cost a query."""
        started_ms = _start_ms(trial.started_s, trial.position)
        run = self._client.create_run(
            self._experiment_id, start_time=started_ms, tags={**self._owner, **tags}, run_name=trial.name[:250]
        )
        run_id = self._runs.of_trial[trial.trial_id] = run.info.run_id
        self._runs.tags[run_id] = dict(tags)
        self._runs.complete[trial.trial_id] = ""
        return run_id

    def _cell_run(self, cell: CellKey) -> str:
        """Return the run of a cell; create it if needed."""
        if cell.cell_id not in self._runs.of_cell:
            tags = {**self._owner, "sweep.cell_id": cell.cell_id, "sweep.level": "cell"}
            tags["mlflow.parentRunId"] = self._runs.parent_id
            started_ms = _start_ms(cell.started_s, cell.position)
            run = self._client.create_run(
                self._experiment_id, start_time=started_ms, tags=tags, run_name=cell.name[:250]
            )
            self._runs.of_cell[cell.cell_id] = run_id = run.info.run_id
            self._runs.status[run_id] = "RUNNING"
            self._client.log_batch(run_id, params=self._new_params(run_id, cell.values))
        return self._runs.of_cell[cell.cell_id]

    def _new_params(self, run_id: str, values: Mapping[str, object]) -> list[Param]:
        """Return the params that a run lacks."""
        known = self._runs.params.setdefault(run_id, {})
        new = {key: shown_value(value)[:_LONGEST_PARAM] for key, value in values.items() if key not in known}
        known.update(new)
        return [self._entities.Param(key, value) for key, value in new.items()]

    def _write_cell(self, cell: CellRecord) -> None:
        run_id, ended_ms = self._cell_run(cell.key), int(1000 * cell.finished_s)
        self._write_metrics(run_id, cell.metrics, ended_ms)
        if self._runs.status.get(run_id) != (status := "FINISHED" if cell.is_over else "KILLED"):
            self._client.set_terminated(run_id, status=status, end_time=ended_ms or None)
            self._runs.status[run_id] = status
        self._on_response()

    def _write_metrics(self, run_id: str, metrics: Mapping[str, float], now_ms: int) -> None:
        """Write the changed metrics of a cell or a sweep; metrics that no longer apply keep their values."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        known = self._runs.metrics.setdefault(run_id, {})
        known.update(self._log_changed(run_id, finite, known, now_ms))

    def _log_changed(
        self, run_id: str, metrics: Mapping[str, float], known: Mapping[str, float], now_ms: int
    ) -> dict[str, float]:
        """Log the metrics that differ from ``known``, and return them; of equal times MLflow shows the highest."""
        changed = {name: float(value) for name, value in metrics.items() if known.get(name) != value}
        if changed:
            asked_ms = dict.fromkeys((n for n in changed if n.startswith(PREDICTED)), int(1000 * time.time()))
            entries = [self._entities.Metric(n, value, asked_ms.get(n, now_ms), 0) for n, value in changed.items()]
            self._client.log_batch(run_id, metrics=entries)
        return changed

    def _end_strays(self) -> None:
        """End the runs of trials outside the ledger: it was deleted, and the sweep was changed."""
        for run_id in self._runs.running:
            self._client.set_terminated(run_id, status="KILLED")
        self._runs.running.clear()

    def _write_shares(self, sweep: SweepRecord) -> None:
        """Write the changed metrics that depend on other trials."""
        now_ms = int(1000 * sweep.finished_s)
        for trial_id, shares in sweep.shares.items():
            if (run_id := self._runs.of_trial.get(trial_id)) is not None:
                known = self._runs.shares.get(trial_id, {})
                if self._log_changed(run_id, shares, known, now_ms):
                    self._runs.shares[trial_id] = {**known, **shares}
                    self._on_response()

    def _write_answer(self, answer: TrialAnswer) -> None:
        """Write an answer about a trial to its run, if it has changed."""
        run_id, known = self._runs.of_trial.get(answer.trial_id), self._runs.shares.get(answer.trial_id, {})
        if run_id is None:
            return
        # A later question may give lower numbers, and at equal times MLflow shows the highest.
        changed = self._log_changed(run_id, answer.metrics, known, int(1000 * time.time()))
        self._runs.shares[answer.trial_id] = {**known, **changed}
        tags = self._runs.tags.setdefault(run_id, {})
        tags |= log_answer(self._client, run_id, answer, tags)
        self._on_response()

    def _write_parent(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        wanted = {key: shown_value(value)[:_LONGEST_PARAM] for key, value in sweep.settings.items()}
        known = self._runs.params.get(self._runs.parent_id, {})
        if any(wanted.get(key) != value for key, value in known.items()):
            self._replace_parent()  # the user has edited the sweep, and params cannot change
        tags = {**sweep.tags, "sweep.level": "sweep", "mlflow.source.type": "LOCAL"}
        run_id, source = self._runs.parent_id, f"sweep run {self.folder / FROZEN_SWEEP}"  # with all overrides
        tags |= {"mlflow.source.name": source, **sweep_note(sweep, run_id, artifacts)}
        tags |= {"mlflow.source.git.commit": sweep.git_commit} if sweep.git_commit else {}
        run_tags = [self._entities.RunTag(key, value[:5000]) for key, value in tags.items()]
        self._client.log_batch(run_id, params=self._new_params(run_id, wanted), tags=run_tags)
        self._write_metrics(run_id, sweep.metrics, int(1000 * sweep.finished_s))
        local_artifacts = make_artifacts_folder(self._client, run_id)
        log_texts(self._client, run_id, sweep.texts)
        log_table(self._client, run_id, sweep.cells)
        for path in artifacts:
            self._client.log_artifact(run_id, str(path))
            self._on_response()
            if path.suffix == ".png":
                log_map(self._client, run_id, path, sweep.num_finished, local_artifacts)
                self._on_response()
        self._client.set_terminated(run_id, status="FINISHED" if sweep.is_over else "KILLED")

    def _replace_parent(self) -> None:
        old = self._runs.parent_id
        self._create_parent()
        for run_id in self._runs.of_cell.values():
            self._client.set_tag(run_id, "mlflow.parentRunId", self._runs.parent_id)
            self._on_response()
        self._client.delete_run(old)


def _start_ms(started_s: float | None, position: int) -> int | None:
    """Return the start of a run. Milliseconds order the trials of a pack, since MLflow lists the newest run first."""
    return int(1000 * started_s) - position if started_s else None


def _cause(error: Exception) -> str:
    """Return the first line of an error, without passwords."""
    return without_users((str(error).strip() or type(error).__name__).splitlines()[0][:200])
