"""Stores that others wrote are read and never changed: Optuna's studies, and files of other programs."""

import contextlib
import sqlite3
from pathlib import Path

import optuna
import pytest

from orchestrator.api.importing import import_results
from orchestrator.base.errors import InputError
from orchestrator.importing.collecting import collect
from orchestrator.importing.options import import_options
from orchestrator.ledger.writer import LedgerWriter

BY_VALUE = import_options(axis=["lr"], outcome="value", map=["skip=empty"])


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.db"
    storage = f"sqlite:///{path}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    theirs = optuna.create_study(storage=storage, study_name="theirs")
    theirs.optimize(lambda trial: trial.suggest_float("lr", 0.1, 1, step=0.1), n_trials=4)
    return path


def test_a_study_is_imported_and_stays_as_it_was(study: Path, tmp_path: Path) -> None:
    before = study.read_bytes()
    printed = list(import_results([f"optuna:sqlite:///{study}#theirs"], "theirs", BY_VALUE, tmp_path))
    assert str(printed[0]).startswith("theirs: imported 4 runs")
    assert study.read_bytes() == before


def test_runs_of_a_study_are_compared_by_what_it_optimizes(study: Path, tmp_path: Path) -> None:
    source = f"optuna:sqlite:///{study}"
    by_axis = collect([source], import_options(axis=["lr"]), tmp_path)
    assert by_axis.columns["outcome"] == "value"
    assert [run.result for run in by_axis.runs] == [run.result for run in collect([source], BY_VALUE, tmp_path).runs]


def test_a_study_with_two_objectives_asks_which_one_counts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'two.db'}"
    study = optuna.create_study(storage=url, directions=["minimize", "maximize"])
    study.optimize(lambda trial: (trial.suggest_float("lr", 0.1, 1), 1.0), n_trials=2)
    with pytest.raises(InputError, match=r"values\.0 and values\.1"):
        collect([f"optuna:{url}"], import_options(axis=["lr"]), tmp_path)
    assert len(collect([f"optuna:{url}"], import_options(axis=["lr"], outcome="values.1"), tmp_path).runs) == 2


def test_a_study_of_an_older_optuna_is_not_stamped_with_a_version(study: Path) -> None:
    with contextlib.closing(sqlite3.connect(study)) as db, db:
        db.execute("DELETE FROM alembic_version")
        db.execute("DELETE FROM version_info")
    before = study.read_bytes()
    assert len(collect([f"optuna:sqlite:///{study}"], BY_VALUE, Path("results")).runs) == 4
    assert study.read_bytes() == before


def test_no_tables_are_made_in_the_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    LedgerWriter(path).close()
    before = path.read_bytes()
    for driver in ("sqlite", "sqlite+pysqlite"):
        with pytest.raises(InputError, match="has no table studies"):
            collect([f"optuna:{driver}:///{path}"], BY_VALUE, Path("results"))
    assert path.read_bytes() == before


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    for driver in ("sqlite", "sqlite+pysqlite"):
        with pytest.raises(InputError, match="no such file"):
            collect([f"optuna:{driver}:///{tmp_path}/absent.db"], BY_VALUE, Path("results"))
    assert list(tmp_path.iterdir()) == []
