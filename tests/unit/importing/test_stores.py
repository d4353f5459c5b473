from __future__ import annotations

import math
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.importing.collecting import collect
from orchestrator.importing.options import import_options
from orchestrator.search.study import Parameter, StudyTrial, study_file

OPTIONS = import_options(axis=["lr"], outcome="value", diverged_above=5.0, map=("skip=empty",))


def study(path: Path, name: str = "theirs") -> str:
    """A study of four trials: two that are good, one above 5 and one that failed."""
    values = {0.001: 2.0, 0.01: 1.5, 0.1: 9.0, 1.0: None}
    trials = [
        StudyTrial(
            "fail" if value is None else "complete", {"lr": lr}, None if value is None else (value,), {}, {}, 0, 1
        )
        for lr, value in values.items()
    ]
    path.write_bytes(study_file(name, ["loss"], [Parameter("lr", 1e-3, 1.0, is_log=True)], trials))
    return f"optuna:sqlite:///{path}"


def test_the_trials_of_an_optuna_study_are_runs_and_a_failed_one_is_named(tmp_path: Path) -> None:
    source = study(tmp_path / "theirs.db")
    for named in (source, f"{source}#theirs"):
        found = collect([named], OPTIONS, tmp_path)
        assert [(run.settings.cell["lr"], run.result.outcome) for run in found.runs] == [
            (0.001, "stable"), (0.01, "stable"), (0.1, "diverged"),
        ]  # fmt: skip
        assert [run.result.final_loss for run in found.runs] == [2.0, 1.5, 9.0]
        assert [one.where for one in found.left_out] == [f"{named}:3"]
        assert not math.isnan(found.runs[0].result.final_loss)


def test_the_state_of_trials_can_be_the_outcome(tmp_path: Path) -> None:
    options = import_options(axis=["lr"], outcome="state", map=("stable=complete", "diverged=fail"))
    found = collect([study(tmp_path / "theirs.db")], options, tmp_path)
    assert [run.result.outcome for run in found.runs] == ["stable", "stable", "stable", "diverged"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("optuna:sqlite:///HERE/none.db", "no such file"),
        ("optuna:sqlite:///HERE/theirs.db#ours", "has no study 'ours'"),
        ("optuna:sqlite:///HERE/text.db", "cannot be read"),
        ("mlflow:ours", "no MLflow store"),
    ],
)
def test_a_store_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch, source: str, says: str) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study(tmp_path / "theirs.db")
    (tmp_path / "text.db").write_text("no database, but long enough to be taken for one by its size " * 20)
    with pytest.raises(InputError, match=says):
        collect(
            [source.replace("HERE", str(tmp_path))],
            OPTIONS if "optuna" in source else import_options(axis=["lr"]),
            tmp_path,
        )


def test_stores_of_two_kinds_are_two_imports(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a store of another kind"):
        collect(["mlflow:ours", "optuna:sqlite:///a.db"], OPTIONS, tmp_path)
