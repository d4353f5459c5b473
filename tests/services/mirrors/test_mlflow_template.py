"""A store of MLflow that was filled from the template is the one that MLflow itself makes."""

import sqlite3
from contextlib import closing
from pathlib import Path

import mlflow
import pytest

from orchestrator.mirrors import mlflow_store, mlflow_template
from orchestrator.mirrors.mlflow_store import artifacts_folder, prepare_database


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def new_store(results: Path) -> Path:
    path = results / "mlflow.db"
    prepare_database(path, results.parent / f"{results.name}.lock", lambda: None)
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def content(path: Path) -> list[list[str]]:
    """Its statements without the order of indices and constraints, which changes, and the default experiment."""
    with closing(sqlite3.connect(path)) as database:
        statements = [line for line in database.iterdump() if 'INTO "experiments"' not in line]
    return sorted(sorted(part.strip(" ,") for part in statement.splitlines()) for statement in statements)


def default_experiment(path: Path) -> list[tuple]:
    with closing(sqlite3.connect(path)) as database:
        columns = "experiment_id, name, artifact_location, lifecycle_stage"
        return database.execute(f"SELECT {columns} FROM experiments").fetchall()


def test_a_store_from_the_template_is_that_of_mlflow(tmp_path: Path, cache: Path, monkeypatch) -> None:
    first, second = new_store(tmp_path / "first"), new_store(tmp_path / "second")
    assert [path.name for path in cache.iterdir()] == [f"mlflow-{mlflow.__version__}.db"]
    monkeypatch.setattr(mlflow_store, "fill_from_template", lambda new: None)
    own = new_store(tmp_path / "own")
    assert content(first) == content(second) == content(own)
    for path in (first, second, own):
        location = f"{artifacts_folder(path.parent).as_uri()}/0"
        assert default_experiment(path) == [(0, "Default", location, "active")]


@pytest.mark.parametrize("damaged", [b"", b"no database at all", b"SQLite format 3\0" + bytes(4000)])
def test_a_damaged_template_costs_no_store_and_is_made_again(tmp_path: Path, cache: Path, damaged: bytes) -> None:
    cache.mkdir()
    template = cache / f"mlflow-{mlflow.__version__}.db"
    template.write_bytes(damaged)
    assert default_experiment(new_store(tmp_path / "results"))[0][1] == "Default"
    assert content(template) == content(tmp_path / "results" / "mlflow.db")


@pytest.mark.parametrize("how", ["half of it", "other tables"])
def test_a_template_that_lost_a_part_or_is_of_other_tables_is_made_again(tmp_path: Path, cache: Path, how: str) -> None:
    own = content(new_store(tmp_path / "first"))
    template = cache / f"mlflow-{mlflow.__version__}.db"
    if how == "half of it":
        template.write_bytes(template.read_bytes()[: template.stat().st_size // 2])
    else:
        with closing(sqlite3.connect(template)) as database, database:
            database.execute("UPDATE alembic_version SET version_num = '0a8213491aaa'")
    assert content(new_store(tmp_path / "second")) == content(template) == own


def test_a_template_that_cannot_be_made_costs_no_store(tmp_path: Path, cache: Path, monkeypatch) -> None:
    def make(template: Path) -> None:
        raise mlflow.MlflowException("disk I/O error")

    monkeypatch.setattr(mlflow_template, "_make", make)
    assert default_experiment(new_store(tmp_path / "results"))[0][1] == "Default"


def test_a_cache_may_be_named_by_a_relative_path(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEP_CACHE", "cache")
    new_store(tmp_path / "results")
    assert [path.name for path in Path("cache").iterdir()] == [f"mlflow-{mlflow.__version__}.db"]


def test_without_a_cache_mlflow_makes_the_tables(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file in the place of the folder")
    assert default_experiment(new_store(tmp_path / "results"))[0][1] == "Default"
