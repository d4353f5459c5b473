import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import optuna
import pytest
from sweep_cases import finished, ledger_at, map_ledger, record, sweep_of

from orchestrator.api.upkeep import export_optuna
from orchestrator.base.errors import InputError
from orchestrator.base.packs import Completed, Report
from orchestrator.driver.packing import make_packs
from orchestrator.render.optuna_study import export_study
from orchestrator.search.study import Parameter, StudyTrial, study_file

GRID = (
    "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 2}, beta2: {log1m: [0.9, 0.999], num: 2}, "
    "clip: {values: [1.0, null]}}\nfixed: {optimizer: adamw}\n"
)
LABELS = ["stable", "diverged", "spiked", "stalled"] * 4


def record_grid(folder: Path) -> None:
    """A sweep of 16 trials, of which each fourth diverged."""
    with ledger_at(folder) as ledger:
        record(ledger, sweep_of(GRID), LABELS, [float(i) if i != 1 else None for i in range(16)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of two trials."""
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n"), ["stable", "diverged"])
    return tmp_path / "case"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study of that sweep, which no test changes."""
    folder = tmp_path_factory.mktemp("exported") / "case"
    record_grid(folder)
    return export_study(folder)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[optuna.Study]:
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        yield optuna.load_study(study_name="case", storage=storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def test_a_study_has_every_trial_with_its_axes_result_and_outcome(exported: Path) -> None:
    with opened(exported) as study:
        trials = study.trials
        assert study.metric_names == ["loss", "not_stable"]
    assert [trial.user_attrs["outcome"] for trial in trials] == LABELS
    assert {trial.state for trial in trials} == {optuna.trial.TrialState.COMPLETE}
    assert [trial.values[1] for trial in trials] == [0, 1, 1, 1] * 4
    assert trials[0].params == {"lr": 0.001, "1-beta2": 0.1, "clip": 1.0}
    assert trials[0].user_attrs["beta2"] == 0.9
    assert trials[15].params == {"lr": 1.0, "1-beta2": 0.001, "clip": None}
    assert trials[15].user_attrs["seed"] == 1
    assert trials[2].values[0] == 1.5, "every trial that ran to its end has a validation loss"
    assert trials[2].user_attrs["onset_step"] == 7
    assert trials[2].user_attrs["reason"] == "because"


def test_a_degraded_trial_is_not_stable(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of(GRID), ["degraded", *["stable"] * 15])
    with opened(export_study(tmp_path / "case")) as study:
        assert [trial.values[1] for trial in study.trials] == [1, *[0] * 15]


def test_ranges_are_on_the_scale_of_their_axis(exported: Path) -> None:
    with opened(exported) as study:
        found = study.trials[0].distributions
    assert found == {
        "lr": optuna.distributions.FloatDistribution(0.001, 1.0, log=True),
        "1-beta2": optuna.distributions.FloatDistribution(0.001, 0.1, log=True),
        "clip": optuna.distributions.CategoricalDistribution((1.0, None)),
    }


def test_a_diverged_trial_is_told_as_twice_its_initial_loss_and_never_dropped(exported: Path) -> None:
    with opened(exported) as study:
        losses = [trial.values[0] for trial in study.trials if trial.user_attrs["outcome"] == "diverged"]
    assert losses == [200.0] * 4


def test_the_curve_is_in_the_intermediate_values_with_its_peaks(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        sweep = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n")
        map_ledger(ledger, sweep, ["planned", "planned"])
        loss = np.full(1000, 2.0)
        loss[333], loss[700:] = 50.0, np.inf
        (pack,) = make_packs(sweep, sweep.trials[:1], 1)
        ledger.start_pack(pack, "test")
        (trial, _) = sweep.trials
        curve = {trial.trial_id: {"step": np.arange(1000), "loss": loss}}
        done = (finished(trial.trial_id, "diverged"),)
        ledger.record(Report(pack.pack_id, 1000, 0, 0.5, curve, done, Completed()))
    with opened(export_study(tmp_path / "case")) as study:
        told = study.trials[0].intermediate_values
        assert study.trials[1].state == optuna.trial.TrialState.WAITING
    assert len(told) == 40
    assert told[333] == 50.0
    assert max(told.values()) == told[700] == 200.0, "twice the initial loss stands for infinity"
    assert set(told.values()) == {2.0, 50.0, 200.0}


def test_what_did_not_finish_is_waiting_and_what_failed_has_failed(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        body = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2]}}\n"
        record(ledger, sweep_of(body), ["stable", "errored", "planned", "unknown"])
    with opened(export_study(tmp_path / "case")) as study:
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "WAITING", "FAIL"]


def test_a_second_export_is_the_same_file_also_after_the_first_was_deleted(folder: Path) -> None:
    path = export_study(folder)
    content, written = path.read_bytes(), path.stat().st_mtime_ns
    export_study(folder)
    assert path.stat().st_mtime_ns == written
    path.unlink()
    assert export_study(folder).read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert not [found for found in folder.iterdir() if not found.name.startswith("ledger.db") and found != path]


def test_it_follows_the_ledger(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n")
    for labels in (["stable", "planned"], ["stable", "diverged"]):
        with ledger_at(tmp_path / "case") as ledger:
            map_ledger(ledger, sweep, labels)
        with opened(export_study(tmp_path / "case")) as study:
            told = [trial.user_attrs.get("outcome") for trial in study.trials]
        assert told == [None if label == "planned" else label for label in labels]


def test_optuna_can_work_with_it(exported: Path, tmp_path: Path) -> None:
    copy = shutil.copy(exported, tmp_path / "copy.db")
    with opened(Path(copy)) as study:
        assert study.best_trials
        shares = optuna.importance.get_param_importances(study)
    assert set(shares) == {"lr", "1-beta2", "clip"}


def test_a_sweep_without_axes_is_refused(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep_of("seeds: [0, 1]\naxes: {}\n"), ["stable", "stable"])
    with pytest.raises(InputError, match="no axes"):
        list(export_optuna(tmp_path / "case"))
    assert not (tmp_path / "case" / "optuna.db").exists()


def test_the_command_says_how_to_open_it(folder: Path) -> None:
    lines = list(export_optuna(folder))
    assert lines[0] == f"wrote {folder / 'optuna.db'}"
    assert lines[1].startswith(f"optuna-dashboard sqlite:///{folder / 'optuna.db'} shows it")


def test_the_same_trials_are_the_same_file() -> None:
    parameters = [Parameter("lr", 0.1, 1.0, is_log=True)]
    trials = [StudyTrial("complete", {"lr": 0.5}, (1.0,), {"seed": 0}, {3: 2.0}, 10.0, 20.0)]
    first, second = (study_file("one", ["loss"], parameters, trials) for _ in range(2))
    assert first == second
    assert first.startswith(b"SQLite format 3")
