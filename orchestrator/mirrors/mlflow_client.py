"""MLflow's client of a store, and the connections that MLflow keeps to a SQLite file."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

_GC_THRESHOLD = 200_000


def client_of(uri: str, rebuilt: str) -> MlflowClient:
    """Return a client of the store at ``uri``.

    MLflow commits several times for each run, and SQLite lets each commit wait for the disk. In the store ``rebuilt``,
    which a sync makes again after a loss of power, none waits; a process that is killed leaves it whole all the same.
    """
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    if uri == rebuilt and (engine := _engine_of(uri)) is not None:
        from sqlalchemy import event

        if not event.contains(engine, "checkout", _without_waiting):
            event.listen(engine, "checkout", _without_waiting)
    return client


def write_out(path: Path | None) -> None:
    """Wait until the disk has the file ``path``, if there is one."""
    if path is not None:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            os.fsync(file.fileno())


def forget_store(path: Path) -> None:
    """Close the connections that MLflow holds to a deleted file."""
    if (engine := _engine_of(f"sqlite:///{path}")) is not None:
        engine.dispose()


def _without_waiting(connection: Any, *_: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")


def _engine_of(uri: str) -> Any:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    return getattr(SqlAlchemyStore, "_engine_map", {}).get(uri)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often: MLflow creates tens of live objects per point.

    At the default threshold, a third of MLflow's time for a batch is garbage collection.
    """
    before = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
