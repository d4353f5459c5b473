"""Ledger -> MLflow (the one importer of MLflow): a mirror, written by the driver alone.

The mirror is idempotent: runs are found again by the tags ``sweep.folder`` and ``sweep.trial_id``, and
every number carries a time that follows from the ledger, so MLflow drops what it already has.
It may be deleted and made again at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import getpass
import json
import logging
import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from orchestrator.detection.outcomes import OUTCOMES
from orchestrator.errors import InputError, Problem, SweepError
from orchestrator.files import LEDGER, MIRRORED, atomic_write, make_folder, make_private, open_private, waiting_lock
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.files import Columns, Log, Table, make_log
from orchestrator.replay.audit import Audit, audit
from orchestrator.space import Trial
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.sweepfile.settings import settings_of

# A store that is down must cost seconds, not MLflow's default of minutes: one call takes at most twice ten
# seconds, so that what MLflow says of a server that hangs comes before this module's patience ends.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

_MAX_METRICS = 800  # of one call of log_batch, which takes 1000 things
_PAGE = 1000
_COLLECT_AFTER = 200_000
_POINTS_PER_CURVE = 50
_RESULTS = ("onset_step", "num_spikes", "steps_done", "initial_loss", "best_loss", "final_loss", "validation_loss")
_FINAL_STATUS = {
    "errored": "FAILED",
    "lost": "FAILED",
    "interrupted": "KILLED",
    "running": "KILLED",  # the driver writes only what is over, and sync runs when there is no driver
    "planned": "SCHEDULED",
}
_UNFINISHED = ("planned", "running", "interrupted", "lost")
# How long the end of a run is held by a store that does nothing.
PATIENCE_S = 30.0
# MLflow waits as long for a database that another process has locked.
_BUSY_TIMEOUT_S = 20.0
STORE = "mlflow.db"
_WRITER_LOCK = "mirror.lock"
# What is said of a database that was cut off while it was made or migrated, is of another version, or is none.
_UNUSABLE = re.compile(
    "no such (table|column)|has no column|table .* already exists|revision|schema|malformed|not a database"
)


class TrackingError(SweepError):
    """MLflow cannot be reached or refuses; never the end of a sweep."""


def tracking_uri(tracking: TrackingConfig, results: Path) -> str:
    """The MLflow store of sweeps under ``results``: the configured one, or mlflow.db there."""
    return tracking.uri or f"sqlite:///{(results / STORE).absolute()}"


def shown_uri(uri: str) -> str:
    """A tracking URI that may be printed: without user and password."""
    return re.sub(r"//[^/@]*@", "//", uri)


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for another kind of store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _folder_tag(folder: Path) -> str:
    """What the runs of the sweep in ``folder`` are found by; MLflow's filters know no escape for a quote."""
    return str(folder.absolute()).replace("'", "_")


def runs_without_driver(folder: Path, tracking: TrackingConfig) -> int:
    """How many runs of the sweep in ``folder`` are RUNNING for MLflow, to ask when no driver has the sweep.

    0 where there is no store, or none that can be read. Makes no store and changes none.
    """
    uri, tag = tracking_uri(tracking, folder.parent), _folder_tag(folder)
    try:
        if (path := sqlite_file(uri)) is not None:
            # MLflow would make, or migrate, what is only to be looked at.
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
    """The log in an MLflow run's metrics, from MLFLOW_TRACKING_URI or else the store under ``results``.

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
                table.add([("step", metric.step), (key, metric.value)])
    except MlflowException as error:
        cause = str(error).splitlines()[0]
        raise InputError(Problem(name, "", shown_uri(cause), f"looked in {shown_uri(uri)}")) from None
    return make_log(name, table, wanted)


class Mirror:
    """One sweep's runs in MLflow: a parent, and a child for each trial. One process at a time writes them."""

    def __init__(self, folder: Path, tracking: TrackingConfig, sign_of_life: Callable[[], None] = lambda: None) -> None:
        """Connect to the store; ``sign_of_life`` is called whenever it has answered.

        Raises TrackingError when the store cannot be used.
        """
        self.folder, self.tracking = folder, tracking
        self.uri = tracking_uri(tracking, folder.parent)
        self.run_of_trial: dict[str, str] = {}
        self._complete: dict[str, str] = {}
        self._still_running: set[str] = set()
        self._sign_of_life = sign_of_life
        self._holds = contextlib.ExitStack()
        try:
            self._guard(self._connect)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others write this sweep's runs."""
        self._holds.close()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mirror_trials(self, ledger: LedgerReader, trial_ids: Sequence[str]) -> None:
        """Write these trials' runs, from the ledger. Raises TrackingError."""
        for trial_id in trial_ids:
            self._guard(self._mirror_trial, ledger, ledger.trial(trial_id))

    def mirror_sweep(self, artifacts: Sequence[Path]) -> None:
        """Write what is missing of all trials, and the parent with ``artifacts``. Raises TrackingError.

        The parent is FINISHED when none of the sweep's trials is still to train, else KILLED.
        """
        with LedgerReader(self.folder / LEDGER) as ledger:
            for trial_id, (status, _) in ledger.statuses(removed=True).items():
                # Planned trials of an interrupted sweep have no run yet.
                if status != "planned" or trial_id in self.run_of_trial:
                    self._guard(self._mirror_trial, ledger, ledger.trial(trial_id))
            self._guard(self._end_strays)
            self._guard(self._finish_parent, ledger, artifacts)
            state = ledger.state()
        atomic_write(self.folder / MIRRORED, f"{shown_uri(self.uri)} {state}")

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """MLflow raises anything from its own errors to SQLAlchemy's; none of it may end a sweep."""
        try:
            with _rare_collections():
                action(*arguments)
        except SweepError:
            raise
        except Exception as error:
            cause, path = _cause(error), sqlite_file(self.uri)
            if path is not None and _UNUSABLE.search(cause):
                cause += f"; MLflow cannot use {path}: delete it, or move it away if others use it"
            raise TrackingError(f"MLflow at {shown_uri(self.uri)}: {cause}") from error

    def _connect(self) -> None:
        import mlflow
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic", "urllib3"):
            # What goes wrong is said once, as a warning of the sweep, and never with a traceback.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._entities = mlflow.entities
        # MLflow's modules are hundreds of thousands of objects that live as long as the process.
        gc.freeze()
        self._sign_of_life()
        # Two that look for a run, and find none, would both make it.
        self._holds.enter_context(_only_writer(self.folder / _WRITER_LOCK))
        if (path := sqlite_file(self.uri)) is not None:
            _prepare_database(path, self.folder.parent / ".mlflow.lock", self._sign_of_life)
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
        # A local store's default place for artifacts is the folder one happens to stand in.
        is_local = self.uri.startswith("sqlite:")
        location = _artifacts(self.folder.parent).as_uri() if is_local else None
        try:
            return self._client.create_experiment(self.tracking.experiment, artifact_location=location)
        except Exception:
            found = self._client.get_experiment_by_name(self.tracking.experiment)
            if found is None:
                raise
            return found.experiment_id  # another sweep has just made it

    def _find_runs(self) -> None:
        folder = _folder_tag(self.folder)
        self._owner = {"sweep.folder": folder, "mlflow.user": getpass.getuser()}
        query, token = f"tags.`sweep.folder` = '{folder}'", None
        self.parent_id, surplus = "", []
        while True:
            page = self._client.search_runs([self._experiment_id], query, max_results=_PAGE, page_token=token)
            for run in page:
                run_id, trial_id = run.info.run_id, run.data.tags.get("sweep.trial_id")
                known = self.parent_id if trial_id is None else self.run_of_trial.get(trial_id)
                if known:
                    # A request to make a run was sent again, because its answer came too late.
                    surplus.append(run_id)
                elif trial_id is None:
                    self.parent_id = run_id
                else:
                    self.run_of_trial[trial_id] = run_id
                    # One whose writing was cut off before its last call is RUNNING, with everything in it.
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

    def _mirror_trial(self, ledger: LedgerReader, row: Mapping[str, Any]) -> None:
        trial_id = row["trial_id"]
        version = f"{row['status']}:{row['pack_id']}"
        if self._complete.get(trial_id) == version:
            return
        run_id = self.run_of_trial.get(trial_id) or self._create_child(row)
        entities = self._entities
        trace = ledger.trace(trial_id) if row["status"] == "finished" else {}
        started_ms = int(1000 * (row["started_at"] or 0))
        metrics = [*self._curve(trace, row["steps"], started_ms), *self._results(row, started_ms)]
        tags = {"sweep.mirrored": version, "status": row["status"], "outcome": row["outcome"], "reason": row["reason"]}
        tags |= {"audited": "true"} if row.get("is_audited") else {}
        shown = [entities.RunTag(key, str(value)) for key, value in tags.items() if value is not None]
        # One call writes everything of an ordinary trial; a call costs as much as forty points.
        last = max(0, (len(metrics) - 1) // _MAX_METRICS * _MAX_METRICS)
        for start in range(0, last, _MAX_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + _MAX_METRICS])
            self._sign_of_life()
        self._client.log_batch(run_id, metrics=metrics[last:], params=self._params(row), tags=shown)
        ended_ms = int(1000 * row["finished_at"]) if row["finished_at"] else None
        status = _FINAL_STATUS.get(row["status"], "FINISHED")
        # Nobody else writes these runs, so one that runs for MLflow would run for ever after a crash.
        self._client.set_terminated(run_id, status=status, end_time=ended_ms)
        self._still_running.discard(run_id)
        self._complete[trial_id] = version
        self._sign_of_life()

    def _create_child(self, row: Mapping[str, Any]) -> str:
        trial = Trial(row["trial_id"], row["cell"], row["seed"], row["config"])
        tags = {**self._owner, "sweep.trial_id": trial.trial_id, "mlflow.parentRunId": self.parent_id}
        # MLflow lists the newest first, and trials of a pack began at one moment: a millisecond makes the order.
        started_ms = int(1000 * row["started_at"]) - (row["position"] or 0) if row["started_at"] else None
        run = self._client.create_run(self._experiment_id, start_time=started_ms, tags=tags, run_name=trial.name[:250])
        run_id = self.run_of_trial[trial.trial_id] = run.info.run_id
        return run_id

    def _end_strays(self) -> None:
        """End the runs of trials that the ledger does not know: it was deleted, and the sweep was changed."""
        for run_id in self._still_running:
            self._client.set_terminated(run_id, status="KILLED")
        self._still_running.clear()

    def _params(self, row: Mapping[str, Any]) -> list[Any]:
        # What does not vary is on the parent: MLflow's plots begin with whichever name sorts first.
        values = {**row["cell"], "seed": row["seed"]}
        return [self._entities.Param(key, _param(value)) for key, value in values.items()]

    def _curve(self, trace: Mapping[str, Any], num_steps: int, started_ms: int) -> list[Any]:
        """Every n-th step's finite numbers; MLflow would store infinity as 1.8e308 and hide NaN."""
        if not trace:
            return []
        step_N = trace["step"]
        every = self.tracking.every if self.tracking.every != "auto" else max(1, round(num_steps / _POINTS_PER_CURVE))
        is_kept_N = step_N % every == 0
        return [
            self._entities.Metric(name, float(value), started_ms + step, step)
            for name, values in trace.items()
            if name != "step"
            for step, value in zip(step_N[is_kept_N].tolist(), values[is_kept_N].tolist(), strict=True)
            if math.isfinite(value)
        ]

    def _results(self, row: Mapping[str, Any], started_ms: int) -> list[Any]:
        if row["status"] != "finished":
            return []
        values = {name: row[name] for name in _RESULTS if row[name] is not None}
        values |= {outcome: float(row["outcome"] == outcome) for outcome in OUTCOMES}
        return [self._entities.Metric(name, float(value), started_ms, 0) for name, value in values.items()]

    def _finish_parent(self, ledger: LedgerReader, artifacts: Sequence[Path]) -> None:
        facts, packs, rows = ledger.facts(), ledger.packs(), ledger.trials()
        environment = packs[-1]["environment"] if packs else {}
        tags = {
            "objective": facts.get("objective", ""),
            "mlflow.source.name": "sweep",
            "sweep_version": facts.get("sweep_version", ""),
            **({"mlflow.source.git.commit": facts["git_commit"]} if facts.get("git_commit") else {}),
            # Tags, not params: those of a run can never change, and a person may edit the sweep.
            **{f"fixed.{key}": _param(value) for key, value in _fixed(rows).items()},
            **{f"environment.{key}": value for key, value in environment.items() if key != "pid"},
        }
        counts = {f"num_{outcome}": sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES}
        counts["num_trials"] = len(rows)
        counts |= _audit_metrics(audit(rows, None))
        entities = self._entities
        now_ms = int(1000 * max((row["finished_at"] or 0 for row in rows), default=0))
        self._client.log_batch(
            self.parent_id,
            metrics=[entities.Metric(key, float(value), now_ms, 0) for key, value in counts.items()],
            tags=[entities.RunTag(key, value[:5000]) for key, value in tags.items()],
        )
        if (place := _local(self._client.get_run(self.parent_id).info.artifact_uri)) is not None:
            make_folder(place)  # MLflow would make it as the umask says
        for path in artifacts:
            self._client.log_artifact(self.parent_id, str(path))
            self._sign_of_life()
        is_over = not any(row["status"] in _UNFINISHED for row in rows)
        self._client.set_terminated(self.parent_id, status="FINISHED" if is_over else "KILLED")


def _cause(error: Exception) -> str:
    """The first line of what went wrong, fit to be shown."""
    return shown_uri((str(error).strip() or type(error).__name__).splitlines()[0][:200])


@contextlib.contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, waiting a while for others. Raises TrackingError when they do not let go."""
    deadline = time.monotonic() + PATIENCE_S
    with open_private(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrackingError("another process is writing this sweep to MLflow") from None
                time.sleep(0.1)
        yield


def _prepare_database(path: Path, lock: Path, sign_of_life: Callable[[], None]) -> None:
    """Make sure that the store at ``path`` can be written, and make one where there is none.

    MLflow itself tries for minutes to open what cannot be opened, and leaves half a store behind, which it
    can never open again, when it is killed while it makes one or when two make one at once.
    Raises sqlite3.Error when the file cannot be used.
    """
    if _has_tables(path):
        return
    with waiting_lock(lock):
        sign_of_life()
        if _has_tables(path):
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        new = path.with_name(f".{path.name}.new")
        # A journal that a killed process left would be played back into a database that is not its own.
        for file in (new, path):
            for leftover in ("-journal", "-wal", "-shm"):
                file.with_name(file.name + leftover).unlink(missing_ok=True)
        new.unlink(missing_ok=True)
        make_folder(path.parent)
        make_private(new)  # SQLite gives the journal the mode of its database
        SqlAlchemyStore(f"sqlite:///{new}", _artifacts(path.parent).as_uri()).engine.dispose()
        os.replace(new, path)
        # In this process MLflow may still hold one that was deleted.
        if (known := getattr(SqlAlchemyStore, "_engine_map", {}).get(f"sqlite:///{path}")) is not None:
            known.dispose()
    sign_of_life()


def rehome(path: Path, results: Path) -> None:
    """Let the store at ``path`` say where artifacts and sweeps are, if it came with ``results`` from another place.

    MLflow keeps absolute paths, so that in a copy artifacts would not be found, or be written to the old place. A
    store that is not that of ``results``, or in which several results folders have their runs, is left as it is.
    Raises sqlite3.Error when the file cannot be used.
    """
    here = _artifacts(results)
    if path.absolute() != (results / STORE).absolute() or not path.is_file():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as database, database:
        found = database.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        places = {place if place.name == here.name else place.parent for (uri,) in found if (place := _local(uri))}
        for there in places - {here}:
            if there.name != here.name or not _is_left(there, path):
                continue
            changes = (
                ("experiments", "artifact_location", "1", there.as_uri(), here.as_uri()),
                ("runs", "artifact_uri", "1", there.as_uri(), here.as_uri()),
                ("tags", "value", "key = 'sweep.folder'", _folder_tag(there.parent), _folder_tag(here.parent)),
            )
            for table, column, which, old, new in changes:
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
                    f" WHERE {which} AND ({column} = ? OR substr({column}, 1, ?) = ?)",
                    (new, len(old) + 1, old, len(old) + 1, f"{old}/"),
                )


def _is_left(artifacts: Path, store: Path) -> bool:
    """Whether ``store`` was copied or moved away from where ``artifacts`` are."""
    before = artifacts.parent / STORE
    if before.exists():
        return not before.samefile(store)
    return not artifacts.exists()


def _artifacts(results: Path) -> Path:
    """Where artifacts of sweeps under ``results`` are, in a store on this machine."""
    return (results / "mlflow_artifacts").absolute()


def _local(uri: str | None) -> Path | None:
    """The folder that a file: URI names; None for another kind."""
    return Path(url2pathname(urlsplit(uri).path)) if uri and uri.startswith("file:") else None


def _has_tables(path: Path) -> bool:
    """Whether the database at ``path`` is there, can be written, and has tables. Raises sqlite3.Error."""
    if not path.exists():
        return False
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_S)
    with contextlib.closing(connection) as database:
        database.execute("BEGIN IMMEDIATE")
        found = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        database.execute("ROLLBACK")
    return found > 0


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for garbage less often: MLflow makes tens of objects a point, and none is garbage yet.

    A third of the time that MLflow takes to write a batch is otherwise spent on looking.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _audit_metrics(balance: Audit) -> dict[str, float]:
    """What early stopping saved, and how often it was wrong where that is known."""
    metrics: dict[str, float] = {
        "num_audited": balance.num_judged,
        "steps_saved": balance.steps_saved,
        "steps_audited": balance.steps_audited,
    }
    if balance.wrong_rate is not None and balance.wrong_interval is not None:
        metrics |= {"num_wrong_stops": balance.num_wrong, "wrong_stop_rate": balance.wrong_rate}
        metrics |= dict(zip(("wrong_stop_rate_low", "wrong_stop_rate_high"), balance.wrong_interval, strict=True))
    return metrics


def _fixed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that are no axis; a sweep fixes them for all its trials."""
    if not rows:
        return {}
    settings = settings_of(rows[0]["objective"], rows[0]["config"])
    return {key: value for key, value in settings.items() if key not in rows[0]["cell"]}


def run_pages(uri: str, address: str) -> list[str]:
    """Where the server at ``address`` lists the runs of each experiment; none when the store cannot be read.

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


def load_mlflow() -> None:
    """Import MLflow now, which takes seconds; whether that works is said by whoever needs it."""
    with contextlib.suppress(Exception):
        import mlflow  # noqa: F401


def _param(value: Any) -> str:
    return "none" if value is None else json.dumps(value) if isinstance(value, list | tuple) else str(value)


def server_command(uri: str, results: Path, port: int, python: str) -> list[str]:
    """The command that serves MLflow's pages for ``uri``, on loopback only."""
    hosts = ",".join(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))
    artifacts = _artifacts(results).as_uri()
    return [
        *(python, "-m", "mlflow", "server", "--backend-store-uri", uri),
        *("--default-artifact-root", artifacts, "--host", "127.0.0.1", "--port", str(port)),
        *("--allowed-hosts", hosts, "--workers", "1"),
    ]
