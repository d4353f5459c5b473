import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import mlflow
import numpy as np
import pytest
from fault_kit import wait_until
from mlflow import MlflowClient
from scipy.stats import binomtest
from sweep_cases import QUADRATIC, finished

from orchestrator.api.running import run_lines
from orchestrator.api.upkeep import sync
from orchestrator.base.errors import InputError
from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.columns import Columns
from orchestrator.mirrors.mirror import BackgroundMirror, Mirror
from orchestrator.mirrors.mlflow_server import server_command
from orchestrator.mirrors.mlflow_store import folder_tag, read_run, rehome, tracking_uri
from orchestrator.mirrors.tracker import SweepAnswer
from orchestrator.render.text import show
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document


def tracked_sweep(*sets: str):
    return build_sweep(parse_document(QUADRATIC, "edge.yaml"), Overrides(sets=("tracking.enabled=true", *sets)))


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory) -> Path:
    """A store with its schema in place: making one takes seconds, a copy none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def results(tmp_path: Path, empty_store: Path) -> Path:
    (tmp_path / "results").mkdir()
    shutil.copy(empty_store, tmp_path / "results" / "mlflow.db")
    return tmp_path / "results"


def train_and_mirror(sweep, results: Path) -> int:
    return show(run_lines(sweep, results, "inline"))


def all_runs(results: Path):
    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sweep")
    runs = client.search_runs([experiment.experiment_id], max_results=500)
    parents = [run for run in runs if run.data.tags["sweep.level"] == "sweep"]
    cells = [run for run in runs if run.data.tags["sweep.level"] == "cell"]
    children = {run.data.tags["sweep.trial_id"]: run for run in runs if "sweep.trial_id" in run.data.tags}
    assert len(children) + len(cells) + len(parents) == len(runs), "a trial has one run"
    return client, parents, children


def cells_of(client: MlflowClient) -> list:
    return client.search_runs(["1"], "tags.`sweep.level` = 'cell'")


def test_the_mirror_says_what_the_ledger_says(results: Path) -> None:
    assert train_and_mirror(tracked_sweep(), results) == 0
    client, (parent,), children = all_runs(results)
    with LedgerReader(results / "edge" / LEDGER) as ledger:
        rows = ledger.trials()
        assert set(children) == {row.trial_id for row in rows}
        for row in rows:
            child = children[row.trial_id]
            cell = client.get_run(child.data.tags["mlflow.parentRunId"])
            assert cell.data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert child.data.tags["outcome"] == row.outcome
            note = f"{row.outcome}: {row.reason}" if row.reason else row.outcome
            described, _, cause = child.data.tags["mlflow.note.content"].partition("\n\nCause: ")
            assert described == note
            assert (cause == "step over the threshold from the start.") == ("diagnosis" in child.data.tags)
            assert {name for name in ("stable", "spiked", "diverged", "stalled") if child.data.metrics[name]} == {
                row.outcome
            }
            assert child.info.status == "FINISHED"
            assert child.info.run_name.startswith("lr=")
            assert float(child.data.params["lr"]) == row.config["lr"]
            assert set(child.data.params) == {"lr", "beta1", "log10_lr", "seed", "sweep"}, "what varies"
            assert child.data.params["seed"] == str(row.seed)
            assert child.data.metrics.get("onset_step") == row.onset_step
            trace = ledger.trace(row.trial_id)
            for name in ("loss", "grad_norm", "update_norm", "lr"):
                history = {(m.step, m.value) for m in client.get_metric_history(child.info.run_id, name)}
                recorded = list(zip(trace["step"].tolist(), trace[name].tolist(), strict=True))
                assert {recorded[0], recorded[-1]} <= history <= set(recorded), name
                assert history == set(recorded) or name != "loss", "a short curve of the loss is there whole"
    assert {item.path for item in client.list_artifacts(parent.info.run_id)} == {
        "sweep.yaml", "map.csv", "trials.csv", "heatmap.png", "report.html", "cells.json", "images",
    }  # fmt: skip
    table = json.loads(Path(client.download_artifacts(parent.info.run_id, "cells.json")).read_text())
    at = table["columns"].index("stable_fraction")
    fractions = [cell.data.metrics["stable_fraction"] for cell in cells_of(client)]
    assert sorted(row[at] for row in table["data"]) == sorted(fractions)
    assert json.loads(parent.data.tags["mlflow.loggedArtifacts"]) == [{"path": "cells.json", "type": "table"}]
    assert parent.info.status == "FINISHED"
    for part in (
        "12 trials finished.", "**83% of the seeds are stable**", "table up to lr", "take lr",
        f"![heatmap](get-artifact?path=heatmap.png&run_uuid={parent.info.run_id})",
    ):  # fmt: skip
        assert part in parent.data.tags["mlflow.note.content"]
    assert parent.data.metrics["num_diverged"] == sum(row.outcome == "diverged" for row in rows)
    assert sum("diagnosis" in child.data.tags for child in children.values()) == 1, "of one unstable cell"
    assert parent.data.tags["environment.torch"]
    assert parent.data.tags["mlflow.source.name"] == f"sweep run {results / 'edge' / FROZEN_SWEEP}"
    assert len(parent.data.tags["mlflow.source.git.commit"].rstrip("+")) == 40
    assert parent.inputs.dataset_inputs == [], "the quadratic reads no text"


def test_a_sweep_says_which_text_it_was_trained_on(results: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    body = f"""
name: reads
objective: gpt
steps: 12
seeds: [0]
axes: {{lr: {{values: [0.001, 0.002]}}}}
fixed: {{text: [{text}], width: 8, depth: 1, heads: 1, context: 8, batch_size: 2}}
tracking: {{to: [mlflow]}}
"""
    train_and_mirror(build_sweep(parse_document(body, "reads.yaml")), results)
    for _ in range(2):  # what is there is not added again
        _, (parent,), _ = all_runs(results)
        (found,) = parent.inputs.dataset_inputs
        assert found.dataset.name == str(text)
        source = json.loads(found.dataset.source)
        assert source == {"uri": str(text), "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}
        assert source["sha256"].startswith(found.dataset.digest)
        assert json.loads(found.dataset.profile) == {"num_bytes": text.stat().st_size}
        assert {tag.key: tag.value for tag in found.tags} == {"mlflow.data.context": "training"}
        show(sync(results / "reads", None))


def test_the_map_is_an_image_whose_step_is_the_number_of_results(results: Path) -> None:
    train_and_mirror(tracked_sweep("seeds=[0]"), results)
    train_and_mirror(tracked_sweep(), results)
    show(sync(results / "edge", None))
    client, (parent,), children = all_runs(results)
    images = [Path(file.path) for file in client.list_artifacts(parent.info.run_id, "images")]
    full = {path.name.split("+timestamp")[0] for path in images if path.suffix == ".png"}
    assert f"heatmap+step+{len(children)}" in full
    assert len([path for path in images if path.suffix == ".png"]) == len(full), "no image is written twice"


def test_the_load_of_the_machine_is_written_while_it_trains(results: Path) -> None:
    sweep = tracked_sweep("tracking.enabled=false")
    train_and_mirror(sweep, results)
    with Mirror(results / "edge", sweep.tracking) as mirror:
        mirror.tracker.write_machine()
        mirror.tracker.write_machine()
    client, (parent,), _ = all_runs(results)
    (memory,) = client.get_metric_history(parent.info.run_id, "system/system_memory_usage_percentage")
    assert 0 < memory.value <= 100, "the second reading would have come too soon"
    assert "system/cpu_utilization_percentage" in parent.data.metrics
    assert next(iter(parent.data.metrics)) == "num_stable", "MLflow compares sweeps by their first metric"


def test_every_nth_step_is_logged_when_asked(results: Path) -> None:
    train_and_mirror(tracked_sweep("tracking.every=25"), results)
    client, _, children = all_runs(results)
    stable = next(child for child in children.values() if child.data.tags["outcome"] == "stable")
    assert [m.step for m in client.get_metric_history(stable.info.run_id, "loss")] == [0, 25, 50]


# --- results of a real run, with what MLflow writes ------------------------------------------------


def sweep_command(folder: Path, *arguments: str, umask: int = -1) -> str:
    """A command in a process of its own: MLflow remembers where the artifacts of a run are."""
    command = [sys.executable, "-m", "orchestrator.cli", *arguments]
    options = {"env": ENVIRONMENT, "capture_output": True, "text": True, "timeout": 200}
    done = subprocess.run(command, cwd=folder, umask=umask, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


@pytest.mark.parametrize(("uri", "synchronous"), [(None, 0), ("other.db", 2)], ids=["own", "named"])
def test_only_in_the_store_that_a_sync_makes_again_a_commit_does_not_wait(results, tmp_path, uri, synchronous) -> None:
    sets = () if uri is None else (f"tracking.uri=sqlite:///{tmp_path / uri}",)
    sweep = tracked_sweep(*sets)
    train_and_mirror(sweep, results)
    client = MlflowClient(tracking_uri=tracking_uri(sweep.tracking, results))
    with client._tracking_client.store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == synchronous


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A folder in which a sweep was run, compared, diagnosed and explained, with a umask that forbids nothing."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "edge.yaml").write_text(QUADRATIC.replace("enabled: false", "enabled: true"))
    (folder / "log.csv").write_text("step,loss\n" + "".join(f"{step},1\n" for step in range(50)))
    # What the run could not mirror in time, on a busy machine, the sync does.
    commands = ("run edge.yaml --executor inline", "sync edge", "compare edge edge", "diagnose edge", "replay log.csv")
    for command in commands:
        sweep_command(folder, *command.split(), umask=0)
    return folder


@pytest.mark.slow
def test_all_that_a_run_and_mlflow_write_is_for_its_owner_alone(real: Path) -> None:
    found = [real / "results", *(real / "results").rglob("*")]
    assert {"mlflow.db", "ledger.db", "heatmap.png", "lock", "mirror.lock", "artifacts", "compare"} <= {
        path.name for path in found
    }
    modes = {path: oct(stat.S_IMODE(path.stat().st_mode)) for path in found}
    assert {path: mode for path, mode in modes.items() if mode != ("0o700" if path.is_dir() else "0o600")} == {}


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "-shm" not in path.name}


@pytest.mark.slow
def test_a_copy_of_results_has_its_own_artifacts_and_writes_nothing_to_the_old_place(real: Path, tmp_path) -> None:
    old, new = real / "results", tmp_path / "it's a copy" / "results"
    new.parent.mkdir()
    shutil.copytree(old, new)
    before, num_runs = content_of(old), len(runs_in(new))
    sweep_command(new.parent, "sync", "edge")
    assert artifact_places(new) == {new / "mlflow_artifacts"}
    assert len(runs_in(new)) == num_runs, "no run is there twice"
    assert content_of(old) == before
    (parent,) = (run for run in runs_in(new) if run.data.tags["sweep.level"] == "sweep")
    assert parent.data.tags["sweep.folder"] == folder_tag(new / "edge")
    client = MlflowClient(tracking_uri=f"sqlite:///{new / 'mlflow.db'}")
    picture = Path(client.download_artifacts(parent.info.run_id, "heatmap.png", str(tmp_path)))
    assert picture.read_bytes() == (new / "edge" / "heatmap.png").read_bytes()


@pytest.mark.slow
def test_moved_results_have_their_artifacts_where_they_are_now(real: Path, tmp_path: Path) -> None:
    places = [tmp_path / "first results", tmp_path / "then"]
    shutil.copytree(real / "results", places[0])
    rehome(places[0] / "mlflow.db", places[0])
    places[0].rename(places[1])
    for _ in range(2):
        rehome(places[1] / "mlflow.db", places[1])
        assert artifact_places(places[1]) == {places[1] / "mlflow_artifacts"}
    places[0].symlink_to(places[1])
    rehome(places[0] / "mlflow.db", places[0])
    assert artifact_places(places[1]) == {places[1] / "mlflow_artifacts"}, "one place under two names"


def test_a_store_that_several_results_folders_share_is_left_as_it_is(real: Path, tmp_path: Path) -> None:
    """Its artifacts are where the folder is that was first."""
    shutil.copytree(real / "results", tmp_path / "results")
    rehome(tmp_path / "results" / "mlflow.db", tmp_path / "other")
    assert artifact_places(tmp_path / "results") == {real / "results" / "mlflow_artifacts"}
    (tmp_path / "first" / "mlflow_artifacts").mkdir(parents=True)
    with sqlite3.connect(tmp_path / "results" / "mlflow.db") as database:
        first = (tmp_path / "first" / "mlflow_artifacts").as_uri()
        database.execute("UPDATE experiments SET artifact_location = ?", (first,))
        database.execute("UPDATE runs SET artifact_uri = ? || '/x/artifacts'", (first,))
    database.close()
    rehome(tmp_path / "results" / "mlflow.db", tmp_path / "results")
    assert artifact_places(tmp_path / "results") == {tmp_path / "first" / "mlflow_artifacts"}


def runs_in(results: Path) -> list:
    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    return client.search_runs([client.get_experiment_by_name("sweep").experiment_id], max_results=500)


def artifact_places(results: Path) -> set[Path]:
    """The folders in which the store of ``results`` says that artifacts are."""
    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    locations = [client.get_experiment_by_name("sweep").artifact_location]
    locations += [run.info.artifact_uri.removesuffix(f"/{run.info.run_id}/artifacts") for run in runs_in(results)]
    return {Path(unquote(location.removeprefix("file://").removesuffix("/x/artifacts"))) for location in locations}


AUDITED = ("steps=120", "axes={lr: {values: [0.5, 2.4]}, schedule: {values: [constant, cosine]}}", "seeds=[0, 1, 2]",
           "fixed.beta1=0.0", "stopping={patience: 10, min_history: 10, window: 10, audit: 0.6}")  # fmt: skip
COUNTS = {"num_stable", "num_degraded", "num_spiked", "num_diverged", "num_stalled", "num_trials", "num_audited",
          "steps_saved", "steps_audited"}  # fmt: skip
RATES = {"num_wrong_stops", "wrong_stop_rate", "wrong_stop_rate_low", "wrong_stop_rate_high"}


def test_the_parent_has_the_audit_and_audited_trials_are_tagged(results: Path) -> None:
    assert train_and_mirror(tracked_sweep(*AUDITED), results) == 0
    _, (parent,), children = all_runs(results)
    with LedgerReader(results / "edge" / LEDGER) as ledger:
        rows = {row.trial_id: row for row in ledger.trials()}
    judged = [row for row in rows.values() if row.is_audited and row.verdict_step is not None]
    num_wrong = sum(row.outcome == "spiked" for row in judged)
    assert 0 < num_wrong < len(judged)
    low, high = binomtest(num_wrong, len(judged)).proportion_ci(method="wilson")
    saved = sum(120 - row.steps_done for row in rows.values())
    trained_on = sum(119 - row.verdict_step for row in judged)
    found = parent.data.metrics
    assert set(found) >= COUNTS | RATES, "names that others' dashboards rely on"
    assert {name: found[name] for name in RATES | {"num_audited", "steps_saved", "steps_audited"}} == pytest.approx(
        {
            "num_audited": len(judged),
            "steps_saved": saved,
            "steps_audited": trained_on,
            "num_wrong_stops": num_wrong,
            "wrong_stop_rate": num_wrong / len(judged),
            "wrong_stop_rate_low": low,
            "wrong_stop_rate_high": high,
        }
    )
    tagged = {trial_id for trial_id, child in children.items() if child.data.tags.get("audited") == "true"}
    assert tagged == {trial_id for trial_id, row in rows.items() if row.is_audited}
    assert all("audited" not in children[trial_id].data.tags for trial_id in set(rows) - tagged)


def test_where_nothing_was_audited_there_is_no_rate_of_wrong_stops(results: Path) -> None:
    train_and_mirror(tracked_sweep("steps=5"), results)
    _, (parent,), _ = all_runs(results)
    assert set(parent.data.metrics) >= COUNTS
    assert not RATES & set(parent.data.metrics)
    assert parent.data.metrics["num_audited"] == 0


def test_an_ordinary_trial_is_written_in_one_call_and_a_long_one_whole(results: Path, monkeypatch) -> None:
    calls: Counter[str] = Counter()
    log_batch = MlflowClient.log_batch

    def counted(self, run_id, **things):
        # The machine's load is written by the clock.
        names = [metric.key for metric in things.get("metrics", ())]
        calls[run_id] += not (names and all(name.startswith("system/") for name in names))
        assert sum(len(thing) for thing in things.values()) <= 1000, "MLflow takes no more"
        return log_batch(self, run_id, **things)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    train_and_mirror(tracked_sweep("axes={lr: {values: [0.5]}}", "seeds=[0]"), results)
    client, (parent,), children = all_runs(results)
    (child,) = children.values()
    # Its share of what was learned may be known only later.
    assert calls[parent.info.run_id] == 3, "its first metric, params and tags, and metrics"
    assert calls[child.info.run_id] in (1, 2)
    train_and_mirror(tracked_sweep("axes={lr: {values: [0.5]}}", "seeds=[1]", "steps=450", "tracking.every=1"), results)
    _, _, children = all_runs(results)
    (long,) = (found for found in children.values() if found.info.run_id != child.info.run_id)
    assert calls[long.info.run_id] in (3, 4), "450 steps of four metrics and a few results, 800 at a time"
    for name in ("loss", "grad_norm", "update_norm", "lr"):
        assert [m.step for m in client.get_metric_history(long.info.run_id, name)] == list(range(450))
    assert long.data.tags["status"] == "finished"


def test_results_are_mirrored_while_others_train_and_cells_while_files_are_made(results: Path) -> None:
    sweep = tracked_sweep("tracking.enabled=false")
    train_and_mirror(sweep, results)
    with LedgerReader(results / "edge" / LEDGER) as ledger:
        some = [row.trial_id for row in ledger.trials()][:3]
    mirror = BackgroundMirror(results / "edge", sweep.tracking)
    mirror.start()
    mirror.changed(None, [finished(trial_id, "stable") for trial_id in some])
    wait_until(lambda: mirror._mirror is not None and len(mirror._mirror.tracker.known) == 3, "three results")
    client, _, children = all_runs(results)
    assert set(children) == set(some)
    mirror.ended(None)
    assert mirror._last is not None
    mirror._last.join(60)
    _, (parent,), children = all_runs(results)
    assert len(children) == 12
    assert {"stable_fraction" in cell.data.metrics for cell in cells_of(client)} == {True}
    assert parent.info.status == "RUNNING"
    assert mirror.finish([]) is None
    _, (parent,), _ = all_runs(results)
    assert parent.info.status == "FINISHED"


def test_a_later_prediction_replaces_the_earlier_one_also_where_it_is_lower(results: Path) -> None:
    sweep = tracked_sweep()
    train_and_mirror(sweep, results)
    for at, edge in (("width=64", 2.0), ("width=128", 1.0)):
        answer = SweepAnswer({"predicted.at": at}, {"predicted_edge": edge}, f"at {at}")
        with Mirror(results / "edge", sweep.tracking) as mirror:
            mirror.mirror_sweep([], [answer])
    _, (parent,), _ = all_runs(results)
    assert parent.data.tags["predicted.at"] == "width=128"
    assert "at width=128" in parent.data.tags["mlflow.note.content"]
    assert parent.data.metrics["predicted_edge"] == 1.0


# --- logs from runs ------------------------------------------------------------------------------


@pytest.fixture
def no_uri(monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_the_curve_of_a_run_is_read_back_as_the_ledger_has_it(results: Path, no_uri, monkeypatch) -> None:
    train_and_mirror(tracked_sweep("axes={lr: {values: [0.5]}}", "seeds=[0]", "tracking.every=1"), results)
    _, _, children = all_runs(results)
    ((trial_id, child),) = children.items()
    log = read_run(child.info.run_id, results, Columns())
    with LedgerReader(results / "edge" / LEDGER) as ledger:
        trace = ledger.trace(trial_id)
    assert log.columns == Columns("step", "loss", "grad_norm")
    np.testing.assert_array_equal(log.step_N, trace["step"])
    np.testing.assert_array_equal(log.loss_N, trace["loss"])
    np.testing.assert_array_equal(log.grad_norm_N, trace["grad_norm"])
    norms = read_run(child.info.run_id, results, Columns(loss="update_norm"))
    np.testing.assert_array_equal(norms.loss_N, trace["update_norm"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{results / 'mlflow.db'}")
    elsewhere = read_run(child.info.run_id, results / "nowhere", Columns())
    np.testing.assert_array_equal(elsewhere.loss_N, log.loss_N)


def test_a_run_that_is_not_there_is_refused_with_where_it_was_looked_for(results: Path, no_uri) -> None:
    with pytest.raises(InputError, match=r"mlflow:nobody.*") as refused:
        read_run("nobody", results, Columns())
    assert str(results / "mlflow.db") in str(refused.value)


def test_without_a_store_none_is_made_to_look_into(tmp_path: Path, no_uri) -> None:
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI"):
        read_run("anything", tmp_path, Columns())
    assert list(tmp_path.iterdir()) == []


def test_pages_are_served_on_loopback_only(tmp_path: Path) -> None:
    command = server_command("sqlite:///x.db", tmp_path, 5001, "python")
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--allowed-hosts") + 1] == "127.0.0.1:5001,localhost:5001"


def test_the_mirror_leaves_the_global_tracking_state_alone(results: Path) -> None:
    before = mlflow.get_tracking_uri()
    train_and_mirror(tracked_sweep(), results)
    assert mlflow.get_tracking_uri() == before
    assert mlflow.active_run() is None


SWEEP = """
name: beyond
objective: quadratic
steps: 80
axes: {lr: {values: [0.5, 3.0]}}
fixed: {optimizer: sgd, beta1: 0.0, warmup: 40}
tracking: {to: [mlflow]}
"""
ASKED = ("--fork", "0", "--replicates", "2", "--no-pairs")


@pytest.fixture
def call(command_line: Callable, tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "beyond.yaml").write_text(SWEEP)

    def run(*arguments: str) -> str:
        code, printed = command_line(*arguments, "--results", str(tmp_path / "results"))
        assert code == 0, printed
        return printed

    return run


def unstable_run(tmp_path: Path) -> tuple[MlflowClient, mlflow.entities.Run]:
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'results' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sweep")
    runs = client.search_runs([experiment.experiment_id], "tags.outcome = 'diverged'")
    (run,) = [run for run in runs if "sweep.trial_id" in run.data.tags]
    return client, run


def test_the_run_of_the_trial_has_its_remedies_and_another_question_replaces_them(
    call: Callable[..., str], tmp_path: Path
) -> None:
    call("run", str(tmp_path / "beyond.yaml"), "--executor", "inline")
    client, before = unstable_run(tmp_path)
    assert "remedy.cheapest" not in before.data.tags
    assert "2 trials are in MLflow" in call("remedy", "beyond", *ASKED, "--try", "lr=x0.5,x0.99")
    client, run = unstable_run(tmp_path)
    assert run.info.run_id == before.info.run_id
    assert run.data.tags["remedy.cheapest"] == run.data.tags["remedy.best"] == "lr x0.5 from step 0"
    assert run.data.tags["remedy.control_repeats"] == "yes"
    assert run.data.tags["diagnosis"] == "step over the threshold from the start"
    assert run.data.metrics["remedies_tried"] == 2
    assert run.data.metrics["remedies_helped"] == 1
    assert run.data.metrics["remedy_cheapest_step"] == 0
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"remedies.json", "remedies.png"}
    table = json.loads(Path(client.download_artifacts(run.info.run_id, "remedies.json")).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    found = [(row["remedy"], row["saved"], row["helped"]) for row in rows]
    assert found == [("no change", 0, False), ("lr x0.5", 2, True), ("lr x0.99", 0, False)]

    call("sync", "beyond")
    assert len(client.get_metric_history(run.info.run_id, "remedies_tried")) == 1, "it is there already"
    call("remedy", "beyond", *ASKED, "--try", "lr=x0.99")
    _, run = unstable_run(tmp_path)
    assert run.data.tags["remedy.cheapest"] == "none"
    assert run.data.metrics["remedies_tried"] == 1, "the last question counts, though its number is lower"
    (tmp_path / "results" / "mlflow.db").unlink()
    call("sync", "beyond")
    _, again = unstable_run(tmp_path)
    assert {name: again.data.tags[name] for name in run.data.tags if name.startswith("remedy.")} == {
        name: value for name, value in run.data.tags.items() if name.startswith("remedy.")
    }


FORGOTTEN = """
import warnings
import orchestrator.mirrors.mlflow_store
with warnings.catch_warnings():  # as another thread's that ends while mlflow is imported
    import requests
from urllib3.exceptions import DependencyWarning
warnings.warn("SOCKS support in urllib3 requires the installation of optional dependencies", DependencyWarning)
warnings.warn("another one", DependencyWarning)
"""


def test_a_warning_that_mlflows_library_ignores_stays_ignored_whatever_other_threads_do() -> None:
    done = subprocess.run([sys.executable, "-c", FORGOTTEN], capture_output=True, text=True, check=True)
    (warned,) = [line for line in done.stderr.splitlines() if "DependencyWarning:" in line]
    assert warned.endswith("another one")
