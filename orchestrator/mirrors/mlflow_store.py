"""MLflow's store for the sweeps of one results folder: its location, its SQLite file, its runs and its pages."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import urllib.parse
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import database_copy, make_folder, make_private, waiting_lock, without_users
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log, Table, make_log
from orchestrator.mirrors.mlflow_client import forget_store
from orchestrator.mirrors.mlflow_template import fill_from_template
from orchestrator.mirrors.records import differences
from orchestrator.mirrors.tracker import MAP_AXES
from orchestrator.sweepfile.sections import TrackingConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient

# An unreachable store must cost seconds instead of MLflow's default of minutes. A call takes at most twice ten seconds,
# so MLflow reports a hanging server before the mirror's patience ends.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# MLflow's client of HTTP ignores this warning, but forgets to if another thread restores its filters just then.
warnings.filterwarnings("ignore", "SOCKS support in urllib3")

STORE = "mlflow.db"
_BUSY_TIMEOUT_S = 20.0  # for a locked database, as in MLflow
_PAGE = 1000  # runs
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_MOST_NAMES = 8  # of experiments in an error


# --- location --------------------------------------------------------------------------------------


def tracking_uri(tracking: TrackingConfig, results: Path) -> str:
    """Return the URI of the store for sweeps under ``results``: the configured one, or mlflow.db there."""
    return tracking.uri or f"sqlite:///{(results / STORE).absolute()}"


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite store, or None for another kind of store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def folder_tag(folder: Path) -> str:
    """Return the tag that identifies the runs of the sweep in ``folder``. MLflow's filters cannot escape a quote."""
    return str(folder.absolute()).replace("'", "_")


def artifacts_folder(results: Path) -> Path:
    """Return the folder for artifacts of sweeps under ``results``, in a store on this machine."""
    return (results / "mlflow_artifacts").absolute()


def local_folder(uri: str | None) -> Path | None:
    """Return the folder of a file: URI, or None for another kind of URI."""
    return Path(url2pathname(urlsplit(uri).path)) if uri and uri.startswith("file:") else None


# --- the SQLite file -------------------------------------------------------------------------------


def prepare_database(path: Path, lock: Path, on_response: Callable[[], None]) -> None:
    """Ensure that the store at ``path`` is writable, and create it if needed.

    MLflow itself would retry for minutes to open a broken store. If it is killed while creating one, or if two
    processes create one at once, the partial store can never be opened again. Raises sqlite3.Error if the file is
    unusable.
    """
    if _has_tables(path):
        return
    with waiting_lock(lock):
        on_response()
        if _has_tables(path):
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        new = path.with_name(f".{path.name}.new")
        # A killed process may have left a journal, which must not be replayed into a different database.
        for file in (new, path):
            for leftover in ("-journal", "-wal", "-shm"):
                file.with_name(file.name + leftover).unlink(missing_ok=True)
        new.unlink(missing_ok=True)
        make_folder(path.parent)
        make_private(new)  # SQLite gives the journal the mode of its database
        fill_from_template(new)
        SqlAlchemyStore(f"sqlite:///{new}", artifacts_folder(path.parent).as_uri()).engine.dispose()
        os.replace(new, path)
        forget_store(path)
    on_response()


def rehome(path: Path, results: Path) -> None:
    """Update the paths in the store at ``path`` after it was copied or moved with ``results``.

    MLflow stores absolute paths of artifacts, so a copy would miss its artifacts or write to the old folder. A store
    outside ``results``, or with runs of several results folders, is left unchanged. Raises sqlite3.Error if the file is
    unusable.
    """
    here = artifacts_folder(results)
    if path.absolute() != (results / STORE).absolute() or not path.is_file():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as database, database:
        rows = database.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        locations = {
            folder if folder.name == here.name else folder.parent for (uri,) in rows if (folder := local_folder(uri))
        }
        for there in locations - {here}:
            if there.name != here.name or not _has_left(path, there):
                continue
            changes = (
                ("experiments", "artifact_location", "1", there.as_uri(), here.as_uri()),
                ("runs", "artifact_uri", "1", there.as_uri(), here.as_uri()),
                ("tags", "value", "key = 'sweep.folder'", folder_tag(there.parent), folder_tag(here.parent)),
            )
            for table, column, condition, old, new in changes:
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
                    f" WHERE {condition} AND ({column} = ? OR substr({column}, 1, ?) = ?)",
                    (new, len(old) + 1, old, len(old) + 1, f"{old}/"),
                )


def _has_left(store: Path, artifacts: Path) -> bool:
    """Return whether ``store`` is a copy from, or was moved out of, the folder that ``artifacts`` are in."""
    before = artifacts.parent / STORE
    if before.exists():
        return not before.samefile(store)
    return not artifacts.exists()


def _has_tables(path: Path) -> bool:
    """Return whether the database at ``path`` exists, is writable and has tables. Raises sqlite3.Error."""
    if not path.exists():
        return False
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_S)
    with contextlib.closing(connection) as database:
        database.execute("BEGIN IMMEDIATE")
        num_tables = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        database.execute("ROLLBACK")
    return num_tables > 0


# --- reading ---------------------------------------------------------------------------------------


def all_runs(
    client: MlflowClient, experiment_id: str, query: str = "", on_response: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """Iterate over the runs of an experiment that match ``query``; ``on_response`` is called for each page."""
    token: str | None = None
    while True:
        page = client.search_runs([experiment_id], query, max_results=_PAGE, page_token=token)
        on_response()
        yield from page
        token = page.token
        if not token:
            return


def read_run(run_id: str, results: Path, wanted: Columns) -> Log:
    """Return the log in a run's metrics, from MLFLOW_TRACKING_URI or the store under ``results``.

    Raises InputError if there is no such run.
    """
    name = f"mlflow:{run_id}"
    with _connection(name, results) as (client, _):
        table = _metrics(client, run_id, client.get_run(run_id).data.metrics)
    return make_log(name, table, wanted)


def read_experiment(name: str, results: Path) -> Iterator[tuple[str, dict[str, str], Table]]:
    """Iterate over the runs of an experiment in the store of ``read_run``: id, parameters, metrics by step.

    Raises InputError if there is no such experiment.
    """
    source = f"mlflow:{name}"
    with _connection(source, results) as (client, uri):
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            names = ", ".join(e.name for e in client.search_experiments(max_results=_PAGE)[:_MOST_NAMES])
            raise InputError(Problem(source, "", f"{uri} has no experiment {name!r}", f"there are: {names}"))
        for run in all_runs(client, experiment.experiment_id):
            yield run.info.run_id, dict(run.data.params), _metrics(client, run.info.run_id, run.data.metrics)


@contextlib.contextmanager
def _connection(source: str, results: Path) -> Iterator[tuple[MlflowClient, str]]:
    """Connect to MLFLOW_TRACKING_URI or the store under ``results``, and yield the client and the URI for display.

    MLflow makes or migrates the tables of a database that it opens: a file is copied first, and another database must
    have them all. Raises InputError if the store's file is missing, and in place of MLflow's errors.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or tracking_uri(TrackingConfig(), results)
    where = without_users(uri)
    if (path := sqlite_file(uri)) is not None and not path.is_file():
        raise InputError(Problem(source, "", f"no MLflow store at {where}", "set MLFLOW_TRACKING_URI"))
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        if path is not None:
            with database_copy(path, "experiments") as copy:
                yield MlflowClient(tracking_uri=f"sqlite:///{copy}"), where
                forget_store(copy)
            return
        if urlsplit(uri).scheme.partition("+")[0] in _DATABASES:
            _check_tables(uri, source, where)
        yield MlflowClient(tracking_uri=uri), where
    except (sqlite3.Error, OSError) as error:
        raise InputError(Problem(source, "", f"cannot be read: {error}", f"looked in {where}")) from None
    except MlflowException as error:
        cause = str(error).splitlines()[0]
        raise InputError(Problem(source, "", without_users(cause), f"looked in {where}")) from None


def _check_tables(uri: str, source: str, where: str) -> None:
    import sqlalchemy
    from mlflow.store.tracking.dbmodels.models import Base

    engine = sqlalchemy.create_engine(uri)
    try:
        is_current = set(Base.metadata.tables) <= set(sqlalchemy.inspect(engine).get_table_names())
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise InputError(Problem(source, "", without_users(str(error).splitlines()[0]), f"looked in {where}")) from None
    finally:
        engine.dispose()
    if not is_current:
        message = f"the installed MLflow would change the tables in {where}"
        raise InputError(Problem(source, "", message, "set MLFLOW_TRACKING_URI to the address of its server"))


def _metrics(client: MlflowClient, run_id: str, keys: Iterable[str]) -> Table:
    table = Table()
    for key in keys:
        for metric in client.get_metric_history(run_id, key):
            table.add({key: metric.value} | {"step": metric.step})
    return table


def runs_without_driver(folder: Path, tracking: TrackingConfig) -> int:
    """Return how many runs of the sweep in ``folder`` are RUNNING in MLflow. Call it when no driver has the sweep.

    Returns 0 without a readable store. Neither creates a store nor changes what one has.
    """
    uri, tag = tracking_uri(tracking, folder.parent), folder_tag(folder)
    try:
        if (path := sqlite_file(uri)) is not None:
            # MLflow would create or migrate the store. A writer that was killed may have left half a transaction, which
            # SQLite takes back before it reads, and cannot if the file is opened for reading only.
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database:
                query = (
                    "SELECT COUNT(*) FROM runs JOIN tags USING (run_uuid) WHERE tags.key = 'sweep.folder'"
                    " AND tags.value = ? AND runs.status = 'RUNNING' AND runs.lifecycle_stage = 'active'"
                )
                return database.execute(query, (tag,)).fetchone()[0]
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(tracking.experiment)
        if experiment is None:
            return 0
        query = f"tags.`sweep.folder` = '{tag}' and attributes.status = 'RUNNING'"
        return len(client.search_runs([experiment.experiment_id], query, max_results=_PAGE))
    except Exception:
        return 0


# --- pages: prepared views, as the tag that MLflow's share button writes -----------------------

_VIEW = "mlflow.sharedViewState."
# As many as fit a page of usual width; MLflow orders them by name.
_SWEEP_COLUMNS = ("stable_fraction", "edge_low", "edge_high", "recommended_margin", "lr_sensitivity")
_CELL_COLUMNS = ("stable_fraction", "distance_to_edge", "final_loss", "num_diverged", "num_spiked")
_MOST_MAPS = 12  # on one page


def run_pages(uri: str, address: str) -> list[str]:
    """Prepare each experiment's views and return a line for each: what it shows, and its URL from ``address`` on.

    Empty if the store is unreadable. The URLs ask for runs: by default MLflow opens an experiment's chat traces.
    """
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    lines = []
    try:
        for experiment in client.search_experiments():
            if experiment.name == "Default":
                continue
            page = f"{address}#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning"
            query = "tags.`sweep.level` = 'sweep'"
            sweeps = client.search_runs([experiment.experiment_id], query, max_results=_PAGE)
            if not sweeps:
                lines.append(f"runs of {experiment.name}: {page}&startTime=ALL")
                continue
            views = {
                "sweeps": (
                    f"sweeps of {experiment.name}, the widest stable region first",
                    sweeps_view(sweeps),
                    "TABLE",
                ),
                "maps": (
                    "their maps side by side (blue, 0: every seed is stable; grey, 1: none is)",
                    maps_view(sweeps),
                    "CHART",
                ),
            }
            for key, (title, view, mode) in views.items():
                client.set_experiment_tag(experiment.experiment_id, _VIEW + key, json.dumps(view))
                parameters = urllib.parse.urlencode({"viewStateShareKey": key, "compareRunsMode": mode})
                lines.append(f"{title}: {page}&{parameters}")
    except Exception:
        return lines
    return lines


def sweeps_view(sweeps: Sequence[Any]) -> dict[str, Any]:
    """Return the view of sweeps with their edges and what differs, ordered by the fraction of stable seeds."""
    columns = [f"metrics.`{name}`" for name in _SWEEP_COLUMNS]
    names = differences(sweep.data.params for sweep in sweeps)[:2]
    columns += ["tags.`edge_axis`", *(f"params.`{name}`" for name in names)]
    return _view("tags.`sweep.level` = 'sweep'", "metrics.`stable_fraction`", columns)


def maps_view(sweeps: Sequence[Any]) -> dict[str, Any]:
    """Return the view with a chart of the stable fraction per sweep, over the axes in the run's tag.

    Charts come in pairs under a heading with the sweeps' names, since MLflow titles a chart by its axes alone.
    """
    named = [
        (str(sweep.info.run_name), [axis for axis in sweep.data.tags.get(MAP_AXES, "").split(",") if axis])
        for sweep in sweeps[:_MOST_MAPS]
    ]
    charts, sections = [], []
    drawn = [(name, axes) for name, axes in named if axes]
    for start in range(0, len(drawn), 2):
        pair = drawn[start : start + 2]
        section = f"maps of {' and '.join(name for name, _ in pair)}"
        title = "   |   ".join(name for name, _ in pair)
        sections.append({
            "uuid": section, "name": f"unstable fraction of cells:   {title}", "display": True, "isReordered": False,
            "deleted": False, "isGenerated": False, "columns": 2, "cardHeight": 480,
        })  # fmt: skip
        charts += [_map_chart(name, axes, section) for name, axes in pair]
    # MLflow puts empty sections for the metrics of sweeps above the maps: they are folded.
    empty = {"display": False, "isReordered": False, "deleted": True, "isGenerated": True}
    sections += [{"uuid": name, "name": name, **empty} for name in ("edge_high", "edge_low")]
    columns = [f"metrics.`{name}`" for name in _CELL_COLUMNS]
    view = _view("tags.`sweep.level` = 'cell'", "params.`sweep`", [*columns, "params.`sweep`"])
    return {**view, "runListHidden": True, "compareRunSections": sections, "compareRunCharts": charts}


def _map_chart(sweep: str, axes: Sequence[str], section: str) -> dict[str, Any]:
    """Return a contour chart over two axes, or a scatter chart over one."""
    fraction = {"key": f"unstable_fraction/{sweep}", "type": "METRIC"}
    x, y = ({"key": name, "type": "PARAM"} for name in (axes[0], axes[-1]))
    shared = {"uuid": f"map-{sweep}", "metricSectionId": section, "deleted": False, "isGenerated": False}
    shared |= {"displayName": sweep, "runsCountToCompare": _PAGE}
    if len(axes) > 1:
        return {**shared, "type": "CONTOUR", "xaxis": x, "yaxis": y, "zaxis": fraction}
    return {**shared, "type": "SCATTER", "xaxis": x, "yaxis": fraction}


def _view(query: str, order: str, columns: Sequence[str]) -> dict[str, Any]:
    """Return the state of MLflow's page of runs."""
    return {
        "searchFilter": query, "orderByKey": order, "orderByAsc": False, "startTime": "ALL",
        "lifecycleFilter": "Active", "datasetsFilter": [], "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns), "columnOrder": [], "columnWidths": {}, "runsExpanded": {}, "runsPinned": [],
        "runsHidden": [], "runsVisibilityMap": {}, "runsHiddenMode": "SHOWALL", "viewMaximized": False,
        "runListHidden": False, "isAccordionReordered": False, "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True, "groupBy": None, "groupsExpanded": {}, "autoRefreshEnabled": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }  # fmt: skip
