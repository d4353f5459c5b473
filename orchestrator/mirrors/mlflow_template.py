"""An empty store of MLflow, kept for the next results folder.

MLflow makes its tables by all the migrations of its history, which takes more than a second of processor time and
hundreds of writes to the disk. The tables are the same in every store of one version.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from pathlib import Path

from objectives.native.cache import cache_folder


def fill_from_template(new: Path) -> None:
    """Give the empty database ``new`` MLflow's tables from the template of this version, which is made if missing.

    A damaged template is made again. Where that is impossible, ``new`` stays empty, and MLflow makes the tables.
    """
    import mlflow

    template = cache_folder().absolute() / f"mlflow-{mlflow.__version__}.db"
    with contextlib.suppress(Exception):  # MLflow and SQLAlchemy have errors of their own
        if not _is_usable(template):
            _make(template)
        # In one transaction: half a copy would be worse than none.
        with _opened(template) as known, contextlib.closing(sqlite3.connect(new)) as database:
            known.backup(database)


def _opened(template: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"{template.as_uri()}?mode=ro", uri=True))


def _is_usable(template: Path) -> bool:
    """Whether a template is whole and has the newest tables, which change without the version in development."""
    from mlflow.store.db.utils import _get_latest_schema_revision

    try:
        with _opened(template) as known:
            is_whole = known.execute("PRAGMA quick_check").fetchone() == ("ok",)
            revisions = known.execute("SELECT version_num FROM alembic_version").fetchall()
            return is_whole and revisions == [(_get_latest_schema_revision(),)]
    except sqlite3.Error:
        return False


def _make(template: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    template.parent.mkdir(parents=True, exist_ok=True)
    # Others may make it too, and a killed process leaves its folder.
    with tempfile.TemporaryDirectory(prefix=f"{template.name}.", dir=template.parent) as folder:
        own = Path(folder) / template.name
        SqlAlchemyStore(f"sqlite:///{own}", own.parent.as_uri()).engine.dispose()
        with contextlib.closing(sqlite3.connect(own)) as database, database:
            database.execute("DELETE FROM experiments")  # which names a folder; MLflow makes the default one again
        os.replace(own, template)
