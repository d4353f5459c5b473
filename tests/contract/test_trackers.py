"""What every tracker does with a sweep; one suite for all of them, and for one in memory that can be made to fail."""

import math
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from driver_cases import Observer
from PIL import Image
from stored_sweeps import Stored, as_in_event_files, in_tensorboard, in_wandb
from sweep_cases import sweep_with

from orchestrator.base.files import LEDGER
from orchestrator.base.space import format_value
from orchestrator.base.vocabulary import TRACKERS
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.table import read_table
from orchestrator.mirrors.mirror import BackgroundMirror, Mirror
from orchestrator.mirrors.records import log_columns, running_record
from orchestrator.mirrors.tracker import Point, SweepRecord, Tracker, TrackingError, TrialRecord, tracker_class
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.worker.packed_run import Pace

NAME = "edge"


class MemoryTracker:
    """A tracker whose store is a dictionary."""

    name = title = "memory"
    library = "json"
    stores: ClassVar[dict[str, dict]] = {}
    is_down: ClassVar[bool] = False

    def __init__(self, folder: Path, tracking: TrackingConfig, on_response: Callable[[], None]) -> None:
        self.where = self.shown_store(folder, tracking)
        self._check()
        self._store = self.stores.setdefault(self.where, {"trials": {}, "sweep": None, "artifacts": []})
        self._on_response = on_response

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        return f"memory of {folder}"

    @classmethod
    def may_exist(cls, folder: Path, tracking: TrackingConfig) -> bool:
        return cls.shown_store(folder, tracking) in cls.stores

    @property
    def known(self) -> Mapping[str, str]:
        return {trial_id: trial.version for trial_id, trial in self._store["trials"].items()}

    def write_trial(self, trial: TrialRecord) -> None:
        self._check()
        self._store["trials"][trial.trial_id] = trial
        self._on_response()

    def write_running(self, trial: TrialRecord) -> None:
        self._check()
        before = self._store["trials"].get(trial.trial_id)
        is_same = before is not None and before.version == trial.version
        points = [*before.points, *trial.points] if is_same else trial.points
        self._store["trials"][trial.trial_id] = replace(trial, points=points)

    def write_machine(self) -> None:
        self._check()

    def write_results(self, sweep: SweepRecord) -> None:
        self._check()

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        self._check()
        self._store["sweep"] = sweep
        self._store["artifacts"] = [path.name for path in artifacts]

    def _check(self) -> None:
        if self.is_down:
            raise TrackingError(f"memory at {self.where}: is down")


def in_memory(results: Path) -> Stored:
    store = MemoryTracker.stores.get(f"memory of {results / NAME}")
    if store is None:
        return Stored({})
    sweep = store["sweep"]
    shares = sweep.shares if sweep else {}
    trials = {
        trial_id: {
            "status": trial.status,
            "outcome": trial.tags.get("outcome"),
            "values": {key: str(value) for key, value in trial.values.items()},
            "cell": trial.cell.name,
            "loss": [(point.step, point.value) for point in trial.points if point.name == "loss"],
            "learned_share": shares.get(trial_id, {}).get("learned_share"),
        }
        for trial_id, trial in store["trials"].items()
    }
    if sweep is None:
        return Stored(trials)
    cells = {
        cell.key.name: (
            {key: str(value) for key, value in cell.key.values.items()},
            cell.metrics.get("stable_fraction"),
        )
        for cell in sweep.cells
    }
    return Stored(trials, sweep.is_over, sweep.metrics, store["artifacts"], sweep.settings, cells)


def in_mlflow(results: Path) -> Stored:
    from mlflow import MlflowClient

    path = results / "mlflow.db"
    if not path.is_file():
        return Stored({})
    client = MlflowClient(tracking_uri=f"sqlite:///{path}")
    experiment = client.get_experiment_by_name("sweep")
    runs = client.search_runs([experiment.experiment_id], max_results=500) if experiment else []
    children = [run for run in runs if "sweep.trial_id" in run.data.tags]
    cells = {run.info.run_id: run for run in runs if "sweep.cell_id" in run.data.tags}
    parents = [run for run in runs if run.data.tags["sweep.level"] == "sweep"]
    assert len(children) + len(cells) + len(parents) == len(runs)
    assert {run.data.tags["mlflow.parentRunId"] for run in cells.values()} <= {run.info.run_id for run in parents}
    assert len({run.data.tags["sweep.trial_id"] for run in children}) == len(children), "a trial has one run"
    assert len(parents) <= 1
    trials = {
        run.data.tags["sweep.trial_id"]: {
            "status": run.data.tags.get("status"),
            "outcome": run.data.tags.get("outcome"),
            "values": dict(run.data.params),
            "cell": cells[run.data.tags["mlflow.parentRunId"]].info.run_name,
            "loss": [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")],
            "learned_share": run.data.metrics.get("learned_share"),
        }
        for run in children
    }
    if not parents:
        return Stored(trials)
    own = ("cells.json", "images")
    artifacts = [item.path for item in client.list_artifacts(parents[0].info.run_id) if item.path not in own]
    is_over = {"FINISHED": True, "KILLED": False}.get(parents[0].info.status)
    of_cells = {run.info.run_name: (run.data.params, run.data.metrics.get("stable_fraction")) for run in cells.values()}
    return Stored(trials, is_over, parents[0].data.metrics, artifacts, parents[0].data.params, of_cells)


def break_mlflow(results: Path) -> None:
    (results / "mlflow.db").unlink(missing_ok=True)
    (results / "mlflow.db").write_bytes(b"this is no database" * 100)


@dataclass(frozen=True)
class Case:
    """A tracker under test: its class, what its store holds, and how the store is lost and broken."""

    tracker: type[Tracker]
    stored: Callable[[Path], Stored]
    lose: Callable[[Path], None]
    break_store: Callable[[Path], None]
    number: Callable[[float], float] = float  # as the store has it


def memory_case() -> Case:
    class Fresh(MemoryTracker):
        pass

    MemoryTracker.stores.clear()
    return Case(Fresh, in_memory, lambda _: MemoryTracker.stores.clear(), lambda _: setattr(Fresh, "is_down", True))


def mlflow_case() -> Case:
    return Case(tracker_class("mlflow"), in_mlflow, lambda results: (results / "mlflow.db").unlink(), break_mlflow)


def files_case(name: str, stored: Callable[[Path], Stored], number: Callable[[float], float] = float) -> Case:
    """The case of a tracker that writes files in a folder of its name, in that of the sweep."""

    def break_store(results: Path) -> None:
        (results / NAME / name).write_text("this is no folder")

    return Case(
        tracker_class(name),
        lambda results: stored(results / NAME),
        lambda results: shutil.rmtree(results / NAME / name),
        break_store,
        number,
    )


def tensorboard_case() -> Case:
    return files_case("tensorboard", in_tensorboard, as_in_event_files)


def wandb_case() -> Case:
    return files_case("wandb", in_wandb)


CASES = {"memory": memory_case, "mlflow": mlflow_case, "tensorboard": tensorboard_case, "wandb": wandb_case}
OWN_MARKS = {"mlflow": [pytest.mark.services], "wandb": [pytest.mark.trackers]}


# Weights & Biases gets a trial whole when it ends.
LIVE = ("memory", "mlflow", "tensorboard")


@pytest.fixture(params=[pytest.param(name, marks=OWN_MARKS.get(name, [])) for name in LIVE])
def live_case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture(params=[pytest.param(name, marks=OWN_MARKS.get(name, [])) for name in CASES])
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    return CASES[request.param]()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a sweep that was trained, and mirrored nowhere."""
    results = tmp_path_factory.mktemp("trained")
    run_sweep(sweep_with("steps=30"), results / NAME, InlineExecutor)
    return results


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "results")
    return tmp_path / "results"


def mirror_all(case: Case, results: Path, artifacts: Sequence[Path] = ()) -> None:
    with Mirror(results / NAME, TrackingConfig(every=1), tracker=case.tracker) as mirror:
        mirror.mirror_sweep(artifacts)


def test_every_tracker_that_ships_is_tested_here() -> None:
    assert set(TRACKERS) == set(CASES) - {"memory"}


def test_the_store_says_what_the_ledger_says(case: Case, results: Path) -> None:
    picture = results / "picture.png"
    Image.new("RGB", (2, 2)).save(picture)
    mirror_all(case, results, [picture])
    stored = case.stored(results)
    with LedgerReader(results / NAME / LEDGER) as ledger:
        trials = ledger.statuses(removed=True)
        assert set(stored.trials) == set(trials)
        rows = {row.trial_id: row for row in read_table(ledger).trials}
        assert len(trials) == 12
        for trial_id, found in stored.trials.items():
            row, trace = rows[trial_id], ledger.trace(trial_id)
            assert found["learned_share"] == (None if row.learned_share is None else case.number(row.learned_share))
            assert (found["status"], found["outcome"]) == (row.status, row.outcome)
            own = {**row.cell, "seed": row.seed, "sweep": NAME}
            assert {key: str(value) for key, value in own.items()}.items() <= found["values"].items()
            assert set(found["values"]) - set(own) <= {"log10_lr"}, "what varies, which MLflow's plots begin with"
            assert found["cell"] == " ".join(f"{key}={format_value(value)}" for key, value in row.cell.items())
            losses = [case.number(loss) for loss in trace["loss"].tolist()]
            pairs = zip(trace["step"].tolist(), losses, strict=True)
            assert found["loss"] == [(step, loss) for step, loss in pairs if math.isfinite(loss)]
    assert stored.is_over is True
    assert stored.counts["num_trials"] == 12
    assert stored.counts["num_diverged"] == sum(trial["outcome"] == "diverged" for trial in stored.trials.values()) > 0
    assert list(stored.artifacts) == ["picture.png"]


def test_cells_stand_between_the_sweep_and_its_trials_with_what_a_map_shows_of_them(case: Case, results: Path) -> None:
    mirror_all(case, results)
    stored = case.stored(results)
    with LedgerReader(results / NAME / LEDGER) as ledger:
        made = cell_map(read_table(ledger))
    assert len(stored.cells) == len(made.cells)
    for (x, y), cell in made.cells.items():
        values, fraction = stored.cells[f"{made.x.name}={format_value(x)} {made.y.name}={format_value(y)}"]
        assert (values[made.x.name], values["sweep"]) == (str(x), NAME)
        assert fraction == case.number(cell.fraction_stable)
    fractions = [cell.fraction_stable for cell in made.cells.values()]
    assert stored.counts["stable_fraction"] == pytest.approx(sum(fractions) / len(fractions))
    assert stored.counts["edge_low"] < stored.counts["edge_high"]
    assert stored.settings["objective"] == "quadratic"
    assert stored.settings["steps"] == "30"


def test_what_is_written_twice_is_there_once(case: Case, results: Path) -> None:
    mirror_all(case, results)
    before = case.stored(results)
    mirror_all(case, results)
    assert case.stored(results) == before


def test_a_trial_that_the_store_has_is_not_written_again(case: Case, results: Path) -> None:
    mirror_all(case, results)
    written: list[str] = []

    class Counting(case.tracker):
        def write_trial(self, trial: TrialRecord) -> None:
            written.append(trial.trial_id)
            super().write_trial(trial)

    with Mirror(results / NAME, TrackingConfig(every=1), tracker=Counting) as mirror:
        mirror.mirror_sweep([])
    assert written == []


def test_progress_is_said_between_trials(case: Case, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.mirrors.mirror._SAID_EVERY", 1)
    said: list[str] = []
    with Mirror(results / NAME, TrackingConfig(every=1), tracker=case.tracker) as mirror:
        mirror.mirror_sweep([], say=said.append)
        num = len(mirror.tracker.known)
    assert [text.split()[0] for text in said] == [str(i) for i in range(1, num)]


def test_trials_one_by_one_and_the_rest_later_are_the_same_as_all_at_once(case: Case, results: Path) -> None:
    with (
        LedgerReader(results / NAME / LEDGER) as ledger,
        Mirror(results / NAME, TrackingConfig(every=1), tracker=case.tracker) as mirror,
    ):
        some = list(ledger.statuses())[:5]
        mirror.mirror_trials(ledger, some)
        assert set(mirror.tracker.known) == set(some)
    partial = case.stored(results)
    assert set(partial.trials) == set(some)
    assert partial.is_over is not True
    mirror_all(case, results)
    piecewise = case.stored(results)
    case.lose(results)
    mirror_all(case, results)
    assert case.stored(results) == piecewise


class Live(Observer):
    """Mirrors what trains at every change of a run, and keeps what the store then has."""

    def __init__(self, case: Case, results: Path, mirror: Mirror) -> None:
        self.case, self.results, self.mirror = case, results, mirror
        self.seen: list[dict[str, dict[str, Any]]] = []

    def changed(self, progress: Any, finished: Sequence[Any]) -> None:
        with LedgerReader(self.results / NAME / LEDGER) as ledger:
            self.mirror.mirror_running(ledger, lambda: False)
        self.seen.append(self.case.stored(self.results).trials)


def test_the_curve_of_a_trial_grows_while_it_trains_and_is_whole_in_the_end(live_case: Case, tmp_path: Path) -> None:
    case = live_case
    results, sweep = tmp_path / "results", sweep_with("steps=200", "axes={lr: {values: [0.1]}}", "seeds=[0]")
    (results / NAME).mkdir(parents=True)
    with Mirror(results / NAME, TrackingConfig(every=1), tracker=case.tracker) as mirror:
        live = Live(case, results, mirror)
        run_sweep(sweep, results / NAME, lambda: InlineExecutor(Pace(report_s=0.0)), [live])
        lengths = [len(trial["loss"]) for trials in live.seen for trial in trials.values()]
        assert 0 < lengths[0] < lengths[len(lengths) // 2] < lengths[-1]
        assert {trial["status"] for trials in live.seen for trial in trials.values()} == {"running"}
        mirror.mirror_sweep([])
    grown = case.stored(results)
    with LedgerReader(results / NAME / LEDGER) as ledger:
        (row,) = ledger.trials()
        trace = ledger.trace(row.trial_id)
    curve = list(zip(trace["step"].tolist(), map(case.number, trace["loss"].tolist()), strict=True))
    assert all(set(trial["loss"]) <= set(curve) for trials in live.seen for trial in trials.values())
    assert grown.trials[row.trial_id]["loss"] == curve
    assert grown.trials[row.trial_id]["status"] == "finished"
    case.lose(results)
    mirror_all(case, results)
    assert case.stored(results) == grown


def test_points_of_an_attempt_that_was_lost_do_not_stay(live_case: Case, results: Path) -> None:
    case = live_case
    mirror_all(case, results)
    before = case.stored(results)
    with (
        LedgerReader(results / NAME / LEDGER) as ledger,
        Mirror(results / NAME, TrackingConfig(every=1), tracker=case.tracker) as mirror,
    ):
        row = ledger.trials()[0]
        logs = log_columns(read_table(ledger).axes)
        record, _ = running_record(ledger, replace(row, status="running", pack_id="another"), logs, NAME, 0)
        mirror.tracker.write_running(replace(record, points=[Point("loss", 123.0, 0)]))
        assert case.stored(results).trials[row.trial_id]["loss"] == [(0, 123.0)]
    mirror_all(case, results)
    assert case.stored(results) == before


def test_a_store_that_was_lost_is_written_again(case: Case, results: Path) -> None:
    mirror_all(case, results)
    before = case.stored(results)
    case.lose(results)
    assert case.stored(results).trials == {}
    mirror_all(case, results)
    assert case.stored(results) == before


def test_the_store_reports_its_responses(case: Case, results: Path) -> None:
    responses: list[None] = []
    with Mirror(results / NAME, TrackingConfig(), lambda: responses.append(None), case.tracker) as mirror:
        before = len(responses)
        mirror.mirror_sweep([])
    assert len(responses) - before >= 12, "one a trial"


def test_one_process_at_a_time_writes_a_sweep(case: Case, results: Path) -> None:
    with Mirror(results / NAME, TrackingConfig(), tracker=case.tracker):
        with pytest.raises(TrackingError, match="another process is writing this sweep"):
            Mirror(results / NAME, TrackingConfig(), tracker=case.tracker, patience_s=0.0)
    Mirror(results / NAME, TrackingConfig(), tracker=case.tracker, patience_s=0.0).close()


def test_a_store_that_cannot_be_used_is_one_tracking_error(case: Case, results: Path) -> None:
    case.break_store(results)
    with pytest.raises(TrackingError) as refused:
        mirror_all(case, results)
    assert str(refused.value).startswith(f"{case.tracker.title} at ")


def test_the_mirror_beside_the_run_writes_all_and_knows_whether_all_is_there(case: Case, results: Path) -> None:
    mirror = BackgroundMirror(results / NAME, TrackingConfig(), case.tracker)
    assert not mirror.is_current()
    mirror.start()
    mirror.ended(None)
    assert mirror.finish([]) is None
    assert mirror.is_current()
    assert len(case.stored(results).trials) == 12
    case.lose(results)
    assert not mirror.is_current()


def test_the_mirror_beside_the_run_keeps_what_went_wrong_and_lets_go(case: Case, results: Path) -> None:
    case.break_store(results)
    mirror = BackgroundMirror(results / NAME, TrackingConfig(), case.tracker)
    mirror.start()
    mirror.ended(None)
    assert isinstance(mirror.finish([]), TrackingError)
    assert not mirror.is_current()


def test_a_store_that_hangs_holds_the_end_of_a_run_no_longer_than_the_patience(results: Path) -> None:
    release = threading.Event()

    class Hanging(memory_case().tracker):
        def write_trial(self, trial: TrialRecord) -> None:
            release.wait(60)

    mirror = BackgroundMirror(results / NAME, TrackingConfig(), Hanging, patience_s=0.3)
    mirror.start()
    mirror.ended(None)
    assert "does not answer, or too slowly" in str(mirror.finish([]))
    release.set()


def test_the_mirror_is_behind_training_until_the_end_of_the_run_waits_for_it(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, is_writing, may_write = list[int](), threading.Event(), threading.Event()

    class Waiting(memory_case().tracker):
        def write_trial(self, trial: TrialRecord) -> None:
            is_writing.set()
            may_write.wait()
            super().write_trial(trial)

    def noted(which: int, thread: int, niceness: int) -> None:
        order.append(niceness)
        if niceness != 19:
            may_write.set()

    monkeypatch.setattr(os, "setpriority", noted)
    mirror = BackgroundMirror(results / NAME, TrackingConfig(), Waiting)
    mirror.start()
    with LedgerReader(results / NAME / LEDGER) as ledger:
        mirror.changed(None, [SimpleNamespace(trial_id=ledger.trials()[0].trial_id)])
    is_writing.wait()
    mirror.ended(None)
    assert mirror.finish([]) is None
    assert order == [19, os.nice(0)]


class Duplicating(MemoryTracker):
    """Wrong: writes half of the trials, and says that it has none."""

    def write_trial(self, trial: TrialRecord) -> None:
        if trial.position % 2:
            super().write_trial(trial)

    known = {}


def test_the_suite_can_fail(results: Path) -> None:
    MemoryTracker.stores.clear()
    wrong = Case(Duplicating, in_memory, lambda _: None, lambda _: None)
    for broken in (
        test_the_store_says_what_the_ledger_says,
        test_a_trial_that_the_store_has_is_not_written_again,
        test_the_store_reports_its_responses,
    ):
        with pytest.raises(AssertionError):
            broken(wrong, results)
    with pytest.raises(pytest.fail.Exception):
        test_a_store_that_cannot_be_used_is_one_tracking_error(wrong, results)
