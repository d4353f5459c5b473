"""MLflow's store for the sweeps of one results folder: its URI, its SQLite file, and the place of its artifacts."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from orchestrator.base.files import make_folder, make_private, waiting_lock
from orchestrator.sweepfile.sections import TrackingConfig

# An unreachable store must cost seconds, not MLflow's default of minutes: one call takes at most twice ten seconds, so
# MLflow's error for a server that hangs comes before the mirror's patience ends.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

STORE = "mlflow.db"
# MLflow waits as long for a database that another process has locked.
_BUSY_TIMEOUT_S = 20.0


def tracking_uri(tracking: TrackingConfig, results: Path) -> str:
    """The MLflow store of sweeps under ``results``: the configured one, or mlflow.db there."""
    return tracking.uri or f"sqlite:///{(results / STORE).absolute()}"


def shown_uri(uri: str) -> str:
    """A tracking URI for display: without user and password."""
    return re.sub(r"//[^/@]*@", "//", uri)


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for another kind of store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def folder_tag(folder: Path) -> str:
    """The tag that identifies the runs of the sweep in ``folder``; MLflow's filters cannot escape a quote."""
    return str(folder.absolute()).replace("'", "_")


def prepare_database(path: Path, lock: Path, sign_of_life: Callable[[], None]) -> None:
    """Make sure that the store at ``path`` can be written, and create one if needed.

    MLflow itself tries for minutes to open a broken store. If it is killed while creating one, or two processes create
    one at once, it leaves a partial store that it can never open again. Raises sqlite3.Error when the file cannot be
    used.
    """
    if _has_tables(path):
        return
    with waiting_lock(lock):
        sign_of_life()
        if _has_tables(path):
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        new = path.with_name(f".{path.name}.new")
        # A journal left by a killed process would be replayed into a database that it does not belong to.
        for file in (new, path):
            for leftover in ("-journal", "-wal", "-shm"):
                file.with_name(file.name + leftover).unlink(missing_ok=True)
        new.unlink(missing_ok=True)
        make_folder(path.parent)
        make_private(new)  # SQLite gives the journal the mode of its database
        SqlAlchemyStore(f"sqlite:///{new}", artifacts_folder(path.parent).as_uri()).engine.dispose()
        os.replace(new, path)
        # In this process MLflow may still hold a store that was deleted.
        if (known := getattr(SqlAlchemyStore, "_engine_map", {}).get(f"sqlite:///{path}")) is not None:
            known.dispose()
    sign_of_life()


def rehome(path: Path, results: Path) -> None:
    """Update the places of artifacts and sweeps in the store at ``path`` if it was copied or moved with ``results``.

    MLflow stores absolute paths, so in a copy artifacts would not be found, or be written to the old place. A store
    that is not that of ``results``, or that has runs of several results folders, is left unchanged. Raises
    sqlite3.Error when the file cannot be used.
    """
    here = artifacts_folder(results)
    if path.absolute() != (results / STORE).absolute() or not path.is_file():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as database, database:
        found = database.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        places = {
            place if place.name == here.name else place.parent for (uri,) in found if (place := local_folder(uri))
        }
        for there in places - {here}:
            if there.name != here.name or not _is_left(there, path):
                continue
            changes = (
                ("experiments", "artifact_location", "1", there.as_uri(), here.as_uri()),
                ("runs", "artifact_uri", "1", there.as_uri(), here.as_uri()),
                ("tags", "value", "key = 'sweep.folder'", folder_tag(there.parent), folder_tag(here.parent)),
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


def artifacts_folder(results: Path) -> Path:
    """Where artifacts of sweeps under ``results`` are, in a store on this machine."""
    return (results / "mlflow_artifacts").absolute()


def local_folder(uri: str | None) -> Path | None:
    """The folder that a file: URI names; None for another kind."""
    return Path(url2pathname(urlsplit(uri).path)) if uri and uri.startswith("file:") else None


def _has_tables(path: Path) -> bool:
    """Whether the database at ``path`` exists, can be written, and has tables. Raises sqlite3.Error."""
    if not path.exists():
        return False
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_S)
    with contextlib.closing(connection) as database:
        database.execute("BEGIN IMMEDIATE")
        found = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        database.execute("ROLLBACK")
    return found > 0
