"""The installed command on real parts: Ray, MLflow on SQLite, real text, real signals and kills."""

import base64
import contextlib
import http.client
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from local_server import free_port
from mlflow import MlflowClient

from orchestrator.base.processes import is_alive, tree_of
from orchestrator.detection.run_monitor import is_audited

SWEEP = str(Path(sys.executable).with_name("sweep"))
GPT = """
name: small
objective: gpt
steps: 60
seeds: [0, 1]
axes:
  lr: {values: [1e-2, 100.0]}
  clip: {values: [1.0, null]}
fixed: {batch_size: 4, width: 16, warmup: 5}
stopping: {patience: 20, min_history: 10, audit: 0.5}
resources: {pack: 2, parallel: 2}
"""
# Long enough to be caught in the middle: twenty seconds alone, a pack every few seconds.
LONG = """
name: long
objective: function_fit
steps: 600
seeds: [0, 1, 2, 3, 4, 5]
axes: {beta2: {values: [0.9, 0.99, 0.999]}}
resources: {pack: 3}
tracking: {enabled: false}
"""


def table(folder: Path, *columns: str) -> list[tuple]:
    database = sqlite3.connect(folder / "ledger.db")
    try:
        return database.execute(f"SELECT {', '.join(columns)} FROM trials ORDER BY trial_id").fetchall()
    finally:
        database.close()


def finished(folder: Path) -> int:
    if not (folder / "ledger.db").exists():
        return 0
    try:
        return sum(status == "finished" for (status,) in table(folder, "status"))
    except sqlite3.OperationalError:  # the schema is on its way
        return 0


def wait_until(condition: Callable[[], bool], seconds: float = 1200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def sweep(cwd: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([SWEEP, *arguments], cwd=cwd, capture_output=True, text=True)


@pytest.mark.services
def test_a_sweep_on_ray_ends_in_a_map_and_in_mlflow(tmp_path: Path) -> None:
    # A folder whose name is hostile to URIs and shells.
    cwd = tmp_path / "it's a place"
    cwd.mkdir()
    (cwd / "small.yaml").write_text(GPT)
    done = sweep(cwd, "run", "small.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = cwd / "results" / "small"
    outcomes = dict(table(folder, "trial_id", "outcome"))
    assert len(outcomes) == 8
    # Trained on Python's own source, 1e-2 learns it; a learning rate of 100 cannot.
    for lr, outcome in table(folder, "json_extract(config, '$.lr')", "outcome"):
        assert (outcome == "diverged") == (lr == 100.0)
    # Half of those that are lost train on, also in a worker's process.
    for trial_id, audited, verdict, steps in table(folder, "trial_id", "is_audited", "verdict_step", "steps_done"):
        assert audited == is_audited(trial_id, 0.5)
        assert steps == 60 if audited or verdict is None else steps == verdict + 1
    client = MlflowClient(tracking_uri=f"sqlite:///{cwd / 'results' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sweep")
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    children = {r.data.tags["sweep.trial_id"]: r.data.tags["outcome"] for r in runs if "sweep.trial_id" in r.data.tags}
    assert children == outcomes
    assert Counter(run.data.tags["sweep.level"] for run in runs) == {"trial": 8, "cell": 4, "sweep": 1}
    assert (folder / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in done.stdout + done.stderr
    again = sweep(cwd, "run", "small.yaml")
    assert again.returncode == 0
    assert "nothing to train" in again.stdout
    environment = sqlite3.connect(folder / "ledger.db").execute("SELECT environment FROM packs").fetchone()[0]
    assert "standard library" in environment


@pytest.mark.slow  # without Ray it is among the tests of killed drivers
def test_ctrl_c_ends_in_seconds_and_the_next_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    folder = tmp_path / "results" / "long"
    arguments = [SWEEP, "run", "long.yaml"]
    driver = subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    wait_until(lambda: finished(folder) >= 3)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does it: to the whole group
    asked = time.monotonic()
    output, _ = driver.communicate()
    assert time.monotonic() - asked < 25
    assert driver.returncode == 130, output
    assert "the same command resumes" in output
    assert "Traceback" not in output
    kept = dict(table(folder, "trial_id", "finished_at"))
    statuses = {status for (status,) in table(folder, "status")}
    assert "running" not in statuses
    assert statuses != {"finished"}
    done = sweep(tmp_path, "run", "long.yaml", "--executor", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    now = dict(table(folder, "trial_id", "finished_at"))
    assert all(now[trial_id] == at for trial_id, at in kept.items() if at is not None), "results are kept"


@pytest.mark.slow
def test_the_map_of_function_fit_is_the_known_one(tmp_path: Path) -> None:
    # Seed 0 sits on the edge at beta2 = 0.99, eps = 1e-3, where rounding decides; seed 2 spikes there eight times.
    (tmp_path / "fit.yaml").write_text("""
name: fit
objective: function_fit
steps: 3000
seeds: [2]
axes:
  beta2: {values: [0.9, 0.95, 0.99, 0.995, 0.999]}
  eps: {values: [1e-8, 1e-3, 1e-2, 1e-1]}
fixed: {lr: 1e-2}
tracking: {enabled: false}
""")
    done = sweep(tmp_path, "run", "fit.yaml", "--executor", "inline")
    assert done.returncode == 0, done.stderr
    columns = ("json_extract(config, '$.beta2')", "json_extract(config, '$.eps')", "outcome")
    for beta2, eps, outcome in table(tmp_path / "results" / "fit", *columns):
        assert outcome == ("stable" if beta2 <= 0.95 or eps >= 1e-2 else "spiked"), (beta2, eps)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_the_pages_are_served_on_this_machine_to_this_machine(tmp_path: Path, number: int) -> None:
    (tmp_path / "small.yaml").write_text(LONG.replace("steps: 600", "steps: 5").replace("enabled: false", ""))
    assert sweep(tmp_path, "run", "small.yaml", "--executor", "inline").returncode == 0
    port = free_port()
    environment = {**os.environ, "MLFLOW_TRACKING_PASSWORD": "mine"}
    server = subprocess.Popen([SWEEP, "ui", "--port", str(port)], cwd=tmp_path, env=environment, start_new_session=True)
    login = {"Authorization": f"Basic {base64.b64encode(b'any:mine').decode()}"}

    def status(host: str) -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/", headers={"Host": host, **login})
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    try:
        wait_until(lambda: status(f"127.0.0.1:{port}") == 200)
        assert status("evil.example") == 403
        started = tree_of(server.pid)
        assert len(started) == 2, "MLflow and its server, without workers that judge chats"
        os.kill(server.pid, number)
        assert server.wait(30) == 0
        assert [process for process in started if is_alive(process.pid)] == []
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)
