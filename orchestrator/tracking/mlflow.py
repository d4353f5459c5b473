"""Sweeps in MLflow: a parent run, and a child run for each trial.

Runs are identified by the tags ``sweep.folder`` and ``sweep.trial_id``. Every number has a timestamp that follows from
the ledger, so MLflow drops duplicates.
"""

from __future__ import annotations

import contextlib
import gc
import getpass
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.errors import InputError, Problem, SweepError
from orchestrator.files import make_folder
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log, Table, make_log
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.tracking.mirror import shown_value
from orchestrator.tracking.mlflow_store import (
    artifacts_folder,
    folder_tag,
    local_folder,
    prepare_database,
    rehome,
    shown_uri,
    sqlite_file,
    tracking_uri,
)
from orchestrator.tracking.tracker import SweepRecord, TrackingError, TrialRecord

# An unreachable store must cost seconds, not MLflow's default of minutes: one call takes at most twice ten seconds, so
# MLflow's error for a server that hangs comes before the mirror's patience ends.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

_MAX_METRICS = 800  # in one call of log_batch, which accepts 1000 entries
_PAGE = 1000
_COLLECT_AFTER = 200_000
_FINAL_STATUS = {
    "errored": "FAILED",
    "lost": "FAILED",
    "interrupted": "KILLED",
    "running": "KILLED",  # the driver writes only ended trials, and sync runs when there is no driver
    "planned": "SCHEDULED",
}
# Errors for a database that was interrupted while created or migrated, has another version, or is not one.
_UNUSABLE = re.compile(
    "no such (table|column)|has no column|table .* already exists|revision|schema|malformed|not a database"
)


class MlflowTracker:
    """One sweep's runs in MLflow; ``Tracker`` describes the methods."""

    title = "MLflow"

    def __init__(self, folder: Path, tracking: TrackingConfig, sign_of_life: Callable[[], None]) -> None:
        """Connect to the store, creating it if it is a file that does not exist. Raises TrackingError."""
        self.folder, self.tracking = folder, tracking
        self.uri = tracking_uri(tracking, folder.parent)
        self.where = shown_uri(self.uri)
        self.run_of_trial: dict[str, str] = {}
        self._complete: dict[str, str] = {}  # of the same trials
        self._shares: dict[str, Mapping[str, float]] = {}  # metrics of theirs that depend on other trials
        self._still_running: set[str] = set()
        self._sign_of_life = sign_of_life
        with self._told_as_tracking_errors():
            self._connect()

    @classmethod
    def load(cls) -> None:
        """Import MLflow now, which takes seconds."""
        with contextlib.suppress(Exception):
            import mlflow  # noqa: F401

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """The tracking URI, without a password."""
        return shown_uri(tracking_uri(tracking, folder.parent))

    @classmethod
    def is_there(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Whether the store's file exists; True for another kind of store."""
        path = sqlite_file(tracking_uri(tracking, folder.parent))
        return path is None or path.is_file()

    @property
    def known(self) -> Mapping[str, str]:
        """Trials that have a run, and the version of each complete one."""
        return self._complete

    def write_trial(self, trial: TrialRecord) -> None:
        """Write a trial's run."""
        with self._told_as_tracking_errors():
            self._write_trial(trial)

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the parent run, FINISHED when the sweep is over and KILLED otherwise, and end stray runs."""
        with self._told_as_tracking_errors():
            self._end_strays()
            self._write_shares(sweep)
            self._write_parent(sweep, artifacts)

    @contextlib.contextmanager
    def _told_as_tracking_errors(self) -> Iterator[None]:
        """MLflow may raise anything from its own errors to SQLAlchemy's; none may end a sweep."""
        try:
            with _rare_collections():
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
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic", "urllib3"):
            # Errors are reported once, as a warning of the sweep, without a traceback.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._entities = mlflow.entities
        # MLflow's modules are hundreds of thousands of objects that live as long as the process.
        gc.freeze()
        self._sign_of_life()
        if (path := sqlite_file(self.uri)) is not None:
            prepare_database(path, self.folder.parent / ".mlflow.lock", self._sign_of_life)
            rehome(path, self.folder.parent)
        self._client = MlflowClient(tracking_uri=self.uri)
        self._experiment_id = self._find_experiment()
        self._sign_of_life()
        self._find_runs()

    def _find_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.tracking.experiment)
        if found is not None:
            if found.lifecycle_stage != "active":
                self._client.restore_experiment(found.experiment_id)
            return found.experiment_id
        # A local store's default place for artifacts is the working directory.
        is_local = self.uri.startswith("sqlite:")
        location = artifacts_folder(self.folder.parent).as_uri() if is_local else None
        try:
            return self._client.create_experiment(self.tracking.experiment, artifact_location=location)
        except Exception:
            found = self._client.get_experiment_by_name(self.tracking.experiment)
            if found is None:
                raise
            return found.experiment_id  # another sweep has just created it

    def _find_runs(self) -> None:
        folder = folder_tag(self.folder)
        self._owner = {"sweep.folder": folder, "mlflow.user": getpass.getuser()}
        query, token = f"tags.`sweep.folder` = '{folder}'", None
        self.parent_id, surplus = "", []
        while True:
            page = self._client.search_runs([self._experiment_id], query, max_results=_PAGE, page_token=token)
            for run in page:
                run_id, trial_id = run.info.run_id, run.data.tags.get("sweep.trial_id")
                known = self.parent_id if trial_id is None else self.run_of_trial.get(trial_id)
                if known:
                    # A request to create a run was repeated, because its answer came too late.
                    surplus.append(run_id)
                elif trial_id is None:
                    self.parent_id = run_id
                else:
                    self.run_of_trial[trial_id] = run_id
                    self._shares[trial_id] = run.data.metrics
                    # A run whose writing was interrupted before its last call is RUNNING, with all data in it.
                    is_running = run.info.status == "RUNNING"
                    self._complete[trial_id] = "" if is_running else run.data.tags.get("sweep.mirrored", "")
                    self._still_running |= {run_id} if is_running else set()
            self._sign_of_life()
            token = page.token
            if not token:
                break
        for run_id in surplus:
            self._client.delete_run(run_id)
        if not self.parent_id:
            run = self._client.create_run(self._experiment_id, tags=self._owner, run_name=self.folder.name)
            self.parent_id = run.info.run_id

    def _write_trial(self, trial: TrialRecord) -> None:
        run_id = self.run_of_trial.get(trial.trial_id) or self._create_child(trial)
        entities = self._entities
        started_ms = int(1000 * (trial.started_s or 0))
        metrics = [entities.Metric(name, value, started_ms + step, step) for name, value, step in trial.points]
        # Those that the run has already are changed by ``_write_shares``: two values at one time would be ambiguous.
        known = self._shares.get(trial.trial_id, {})
        new = {name: value for name, value in trial.shares.items() if name not in known}
        metrics += [entities.Metric(name, value, started_ms, 0) for name, value in new.items()]
        tags = {"sweep.mirrored": trial.version, **trial.tags}
        # MLflow's plots start with the name that sorts first, so only what varies is a param.
        params = [entities.Param(key, shown_value(value)) for key, value in trial.values.items()]
        # One call writes all of an ordinary trial; a call costs as much as forty points.
        last = max(0, (len(metrics) - 1) // _MAX_METRICS * _MAX_METRICS)
        for start in range(0, last, _MAX_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + _MAX_METRICS])
            self._sign_of_life()
        shown = [entities.RunTag(key, value) for key, value in tags.items()]
        self._client.log_batch(run_id, metrics=metrics[last:], params=params, tags=shown)
        ended_ms = int(1000 * trial.finished_s) if trial.finished_s else None
        # No other process writes these runs, so one that MLflow lists as running would stay so after a crash.
        self._client.set_terminated(run_id, status=_FINAL_STATUS.get(trial.status, "FINISHED"), end_time=ended_ms)
        self._still_running.discard(run_id)
        self._complete[trial.trial_id] = trial.version
        self._shares[trial.trial_id] = {**new, **known}
        self._sign_of_life()

    def _create_child(self, trial: TrialRecord) -> str:
        tags = {**self._owner, "sweep.trial_id": trial.trial_id, "mlflow.parentRunId": self.parent_id}
        # MLflow lists the newest first, and trials of a pack start at one moment: milliseconds make the order.
        started_ms = int(1000 * trial.started_s) - trial.position if trial.started_s else None
        run = self._client.create_run(self._experiment_id, start_time=started_ms, tags=tags, run_name=trial.name[:250])
        run_id = self.run_of_trial[trial.trial_id] = run.info.run_id
        self._complete[trial.trial_id] = ""
        return run_id

    def _end_strays(self) -> None:
        """End the runs of trials that are not in the ledger: it was deleted, and the sweep was changed."""
        for run_id in self._still_running:
            self._client.set_terminated(run_id, status="KILLED")
        self._still_running.clear()

    def _write_shares(self, sweep: SweepRecord) -> None:
        """Write the metrics that depend on other trials, where they have changed."""
        now_ms = int(1000 * sweep.finished_s)
        for trial_id, shares in sweep.shares.items():
            run_id, known = self.run_of_trial.get(trial_id), self._shares.get(trial_id, {})
            changed = {name: value for name, value in shares.items() if known.get(name) != value}
            if run_id is None or not changed:
                continue
            metrics = [self._entities.Metric(name, value, now_ms, 0) for name, value in changed.items()]
            self._client.log_batch(run_id, metrics=metrics)
            self._shares[trial_id] = {**known, **shares}
            self._sign_of_life()

    def _write_parent(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        # Tags, not params: params of a run cannot change, and the user may edit the sweep.
        tags = {**sweep.tags, "mlflow.source.name": "sweep"}
        tags |= {"mlflow.source.git.commit": sweep.git_commit} if sweep.git_commit else {}
        entities, now_ms = self._entities, int(1000 * sweep.finished_s)
        self._client.log_batch(
            self.parent_id,
            metrics=[entities.Metric(key, float(value), now_ms, 0) for key, value in sweep.counts.items()],
            tags=[entities.RunTag(key, value[:5000]) for key, value in tags.items()],
        )
        if (place := local_folder(self._client.get_run(self.parent_id).info.artifact_uri)) is not None:
            make_folder(place)  # MLflow would create it with the umask's permissions
        for path in artifacts:
            self._client.log_artifact(self.parent_id, str(path))
            self._sign_of_life()
        self._client.set_terminated(self.parent_id, status="FINISHED" if sweep.is_over else "KILLED")


def runs_without_driver(folder: Path, tracking: TrackingConfig) -> int:
    """Number of runs of the sweep in ``folder`` that MLflow lists as RUNNING; call it when no driver has the sweep.

    0 where there is no store, or none that can be read. Creates and changes no store.
    """
    uri, tag = tracking_uri(tracking, folder.parent), folder_tag(folder)
    try:
        if (path := sqlite_file(uri)) is not None:
            # MLflow would create, or migrate, what is only to be read.
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
                query = (
                    "SELECT COUNT(*) FROM runs JOIN tags USING (run_uuid) WHERE tags.key = 'sweep.folder'"
                    " AND tags.value = ? AND runs.status = 'RUNNING' AND runs.lifecycle_stage = 'active'"
                )
                return database.execute(query, (tag,)).fetchone()[0]
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(tracking.experiment)
        query = f"tags.`sweep.folder` = '{tag}' and attributes.status = 'RUNNING'"
        return len(client.search_runs([found.experiment_id], query, max_results=_PAGE)) if found is not None else 0
    except Exception:
        return 0


def read_run(run_id: str, results: Path, wanted: Columns) -> Log:
    """The log in an MLflow run's metrics, from MLFLOW_TRACKING_URI or the store under ``results``.

    Raises InputError when there is no such run.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = os.environ.get("MLFLOW_TRACKING_URI") or tracking_uri(TrackingConfig(), results)
    name = f"mlflow:{run_id}"
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise InputError(Problem(name, "", f"no MLflow store at {shown_uri(uri)}", "set MLFLOW_TRACKING_URI"))
    client = MlflowClient(tracking_uri=uri)
    table = Table()
    try:
        for key in client.get_run(run_id).data.metrics:
            for metric in client.get_metric_history(run_id, key):
                table.add({key: metric.value} | {"step": metric.step})
    except MlflowException as error:
        cause = str(error).splitlines()[0]
        raise InputError(Problem(name, "", shown_uri(cause), f"looked in {shown_uri(uri)}")) from None
    return make_log(name, table, wanted)


def run_pages(uri: str, address: str) -> list[str]:
    """Where the server at ``address`` lists the runs of each experiment; empty when the store cannot be read.

    MLflow opens an experiment on a page for chat traces unless the address asks for its runs.
    """
    import mlflow

    try:
        experiments = mlflow.MlflowClient(tracking_uri=uri).search_experiments()
    except Exception:
        return []
    asked = "workflowType=machine_learning&startTime=ALL"
    return [
        f"{each.name}: {address}/#/experiments/{each.experiment_id}/runs?{asked}"
        for each in experiments
        if each.name != "Default"
    ]


def server_command(uri: str, results: Path, port: int, python: str) -> list[str]:
    """The command that serves MLflow's pages for ``uri``, on loopback only."""
    hosts = ",".join(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))
    artifacts = artifacts_folder(results).as_uri()
    return [
        *(python, "-m", "mlflow", "server", "--backend-store-uri", uri),
        *("--default-artifact-root", artifacts, "--host", "127.0.0.1", "--port", str(port)),
        *("--allowed-hosts", hosts, "--workers", "1"),
    ]


def _cause(error: Exception) -> str:
    """The first line of an error, fit to be shown."""
    return shown_uri((str(error).strip() or type(error).__name__).splitlines()[0][:200])


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Makes Python collect garbage less often: MLflow creates tens of objects per point, none of them garbage yet.

    Otherwise a third of MLflow's time for a batch is spent on collecting.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
