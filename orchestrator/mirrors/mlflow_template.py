"""An empty store of MLflow, kept for the next results folder.

MLflow makes its tables by all the migrations of its history, which takes more than a second of processor time and
hundreds of writes to the disk. The tables are the same in every store of one version.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

from objectives.native.cache import cache_folder


def fill_from_template(new: Path) -> None:
    """Give the empty database ``new`` MLflow's tables from the template of this version, which is made if missing.

    Where that is impossible, ``new`` stays empty, and MLflow makes the tables.
    """
    import mlflow

    template = cache_folder() / f"mlflow-{mlflow.__version__}.db"
    with contextlib.suppress(OSError, sqlite3.Error):
        if not template.is_file():
            _make(template)
        # MLflow itself checks that the tables are those of its version.
        with contextlib.closing(sqlite3.connect(f"{template.as_uri()}?mode=ro", uri=True)) as known:
            if known.execute("PRAGMA quick_check").fetchone() == ("ok",):
                shutil.copyfile(template, new)


def _make(template: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    template.parent.mkdir(parents=True, exist_ok=True)
    own = template.with_name(f"{template.name}.{os.getpid()}")  # others may make it too
    own.touch(exist_ok=False)
    try:
        SqlAlchemyStore(f"sqlite:///{own}", own.parent.as_uri()).engine.dispose()
        with contextlib.closing(sqlite3.connect(own)) as database, database:
            database.execute("DELETE FROM experiments")  # which names a folder; MLflow makes the default one again
        os.replace(own, template)
    finally:
        own.unlink(missing_ok=True)
