"""MLflow is down, slow, locked, read-only, deleted or half made: sweeps do not care, and sync completes it."""

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_kit import assert_ends_as_any_other, command, need, wait_until
from local_server import free_port
from mlflow import MlflowClient

from orchestrator.api.upkeep import sync
from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.mirrors.mirror import Mirror
from orchestrator.mirrors.mlflow_server import server_command
from orchestrator.mirrors.mlflow_store import runs_without_driver
from orchestrator.mirrors.tracker import TrackingError
from orchestrator.render.text import show
from orchestrator.sweepfile.sections import TrackingConfig

pytestmark = pytest.mark.faults

NAME = "tiny"
TINY = f"""
name: {NAME}
objective: quadratic
steps: 40
seeds: [0, 1]
axes: {{lr: {{values: [0.1, 3.0]}}}}
fixed: {{optimizer: sgd}}
resources: {{pack: 4}}
"""
# A trial every half second, after those in which MLflow starts: long enough to be caught in the middle.
LONG = f"""
name: {NAME}
objective: quadratic
steps: 3000
seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
axes: {{lr: {{values: [0.1, 0.2]}}}}
fixed: {{optimizer: sgd}}
resources: {{pack: 1}}
"""
HELD_AT_MOST_S = 600.0  # half a minute of waiting, however busy the machine; what hangs would hold it for good


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its schema in place: making one takes seconds, a copy none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a sweep file, and nothing of MLflow."""
    prepare(tmp_path)
    return tmp_path


@pytest.fixture
def with_store(place: Path, empty_store: Path) -> Path:
    """A folder with a sweep file and an empty store."""
    shutil.copy(empty_store, store(place))
    return place


def prepare(folder: Path) -> None:
    (folder / "results").mkdir()
    (folder / "sweep.yaml").write_text(TINY)


def store(place: Path) -> Path:
    return place / "results" / "mlflow.db"


def start(place: Path, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    words = [*before, *command("run", "sweep.yaml", "--executor", "inline", *arguments)]
    return subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end_of(driver: subprocess.Popen[str]) -> tuple[str, float]:
    """What a run said, and how long MLflow held it at its end."""
    assert driver.stdout is not None
    lines, asked = [], time.monotonic()
    with driver.stdout:
        for line in driver.stdout:
            lines.append(line)
            if line.startswith("mirroring to MLflow"):
                asked = time.monotonic()
        driver.wait(60)
    return "".join(lines), time.monotonic() - asked


def trial_statuses(place: Path, name: str = NAME) -> list[str]:
    with LedgerReader(place / "results" / name / LEDGER) as ledger:
        return [row.status for row in ledger.trials()]


def assert_warned_once(place: Path, driver: subprocess.Popen[str], *said: str) -> float:
    """The run is as any other but for one warning; returns how long it was held."""
    output, held_s = end_of(driver)
    print(f"held for {held_s:.1f} s\n{output}")
    assert driver.returncode == 0, output
    assert set(trial_statuses(place)) == {"finished"}
    assert "Traceback" not in output
    lines = output.splitlines()
    (at,) = (i for i, line in enumerate(lines) if "warning" in line.lower())
    assert "MLflow" in lines[at]
    assert f"`sweep sync {NAME}`" in lines[at + 1]
    assert_ends_as_any_other(lines[at + 2 :])
    assert not any(word in output for word in ("ERROR", "WARNING", "INFO")), "nothing of MLflow's own log"
    for text in said:
        assert text in lines[at]
    assert held_s < HELD_AT_MOST_S
    return held_s


def runs_in(path: Path, name: str = NAME) -> dict[str, tuple[str, int]]:
    """Status and number of points of each run of a sweep, by its trial or cell; the sweep's own is named parent.

    The load of the machine, which no ledger has, does not count, nor do points of the sweep's run from during a run.
    """
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = database.execute(
            "SELECT COALESCE(t.value, 'cell ' || c.value, 'parent'), r.status,"
            " (SELECT COUNT(DISTINCT CASE WHEN COALESCE(t.value, c.value) IS NULL THEN m.key ELSE m.rowid END)"
            " FROM metrics m WHERE m.run_uuid = r.run_uuid AND m.key NOT LIKE 'system/%')"
            " FROM runs r JOIN tags f ON f.run_uuid = r.run_uuid AND f.key = 'sweep.folder' AND f.value LIKE ?"
            " LEFT JOIN tags t ON t.run_uuid = r.run_uuid AND t.key = 'sweep.trial_id'"
            " LEFT JOIN tags c ON c.run_uuid = r.run_uuid AND c.key = 'sweep.cell_id'"
            " WHERE r.lifecycle_stage = 'active'",
            (f"%/{name}",),
        ).fetchall()
    found = {trial_id: (status, points) for trial_id, status, points in rows}
    assert len(found) == len(rows), "each trial and each cell has one run, and the sweep has one"
    return found


def num_mirrored(path: Path) -> int:
    try:
        return sum(name != "parent" and not name.startswith("cell ") for name in runs_in(path))
    except sqlite3.OperationalError:  # it is being made
        return -1


def assert_sync_completes(place: Path, path: Path | None = None, uri: str | None = None) -> None:
    """Sync writes all of a finished sweep, and a second time nothing."""
    path = path or store(place)
    show(sync(place / "results" / NAME, uri))
    found = runs_in(path)
    with LedgerReader(place / "results" / NAME / LEDGER) as ledger:
        rows = ledger.trials()
        trials = {name for name in found if not name.startswith("cell ")}
        assert trials == {"parent", *(row.trial_id for row in rows)}
        assert len(found) - len(trials) == len({tuple(row.cell.items()) for row in rows})
        for row in rows:
            assert found[row.trial_id][1] >= min(40, len(ledger.trace(row.trial_id)["step"])), "at least the loss"
    assert {status for status, _ in found.values()} == {"FINISHED"}
    show(sync(place / "results" / NAME, uri))
    assert runs_in(path) == found
    assert runs_without_driver(place / "results" / NAME, TrackingConfig(uri=uri)) == 0


@contextlib.contextmanager
def served(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that does ``answer`` with each connection."""
    server = socket.create_server(("127.0.0.1", 0))
    connections = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in connections:
            connection.close()


def drip(connection: socket.socket) -> None:
    """Answer a header a second, for ever: every single wait is short."""
    with contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for i in range(1000):
            connection.sendall(b"X-Later-%d: yes\r\n" % i)
            time.sleep(1)


# --- the store is away, slow, locked or cannot be written ----------------------------------------


def test_a_server_that_is_down_costs_a_warning_and_gets_everything_once_it_is_up(with_store: Path) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    assert_warned_once(with_store, start(with_store, "--tracking-uri", uri), uri)
    assert runs_without_driver(with_store / "results" / NAME, TrackingConfig(uri=uri)) == 0
    words = server_command(f"sqlite:///{store(with_store)}", with_store / "results", port, sys.executable)
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def is_up() -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{uri}/health").status == 200
        return False

    try:
        wait_until(is_up, "server")
        assert_sync_completes(with_store, uri=uri)
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("sweep")
        run = client.search_runs([experiment.experiment_id])[0]
        client.update_run(run.info.run_id, status="RUNNING")
        assert runs_without_driver(with_store / "results" / NAME, TrackingConfig(uri=uri)) == 1
        assert_sync_completes(with_store, uri=uri)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def test_servers_that_never_answer_hold_the_run_for_half_a_minute(tmp_path: Path, empty_store: Path) -> None:
    with served(lambda connection: None) as silent, served(drip) as dripping, ThreadPoolExecutor() as pool:
        waits = []
        for uri in (silent, dripping):
            folder = tmp_path / uri.rpartition(":")[2]
            folder.mkdir()
            prepare(folder)
            waits.append(pool.submit(assert_warned_once, folder, start(folder, "--tracking-uri", uri), uri))
        for wait in waits:
            wait.result()
        shutil.copy(empty_store, store(folder))
    assert_sync_completes(folder, uri=f"sqlite:///{store(folder)}")


def test_a_store_that_another_process_has_locked_is_given_up(with_store: Path) -> None:
    code = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "database.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(store(with_store))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        assert_warned_once(with_store, start(with_store), "database is locked")
    finally:
        holder.communicate()
    assert_sync_completes(with_store)


def test_a_store_on_a_read_only_mount_is_left_alone(with_store: Path) -> None:
    need("unshare", "mount")
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    unshare = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--mount", "--map-root-user")
    before = store(with_store).read_bytes()
    driver = start(with_store, before=(*unshare, "sh", "-c", script, str(store(with_store))))
    held_s = assert_warned_once(with_store, driver, "readonly")
    assert held_s < 15
    assert store(with_store).read_bytes() == before
    assert_sync_completes(with_store)


def test_a_folder_where_the_store_should_be_is_named(place: Path) -> None:
    store(place).mkdir()
    held_s = assert_warned_once(place, start(place), str(store(place)), "unable to open")
    assert held_s < 15, "MLflow alone tries for two minutes"
    assert runs_without_driver(place / "results" / NAME, TrackingConfig()) == 0
    store(place).rmdir()
    assert_sync_completes(place)


# --- the store is deleted ------------------------------------------------------------------------


def test_a_store_that_was_deleted_is_written_again(with_store: Path) -> None:
    output, _ = end_of(start(with_store))
    assert "warning" not in output
    before = runs_in(store(with_store))
    assert len(before) == 7, "four trials, two cells and the sweep"
    store(with_store).unlink()
    assert runs_without_driver(with_store / "results" / NAME, TrackingConfig()) == 0
    assert not store(with_store).exists(), "looking makes no store"
    output, _ = end_of(start(with_store))
    assert "nothing to train" in output
    assert runs_in(store(with_store)) == before, "a run notices, too"
    store(with_store).unlink()
    assert_sync_completes(with_store)
    assert runs_in(store(with_store)) == before


def test_a_store_that_is_deleted_under_way_costs_a_warning(with_store: Path) -> None:
    (with_store / "sweep.yaml").write_text(LONG)
    driver = start(with_store)
    wait_until(lambda: num_mirrored(store(with_store)) >= 2, "mirrored trial")
    store(with_store).unlink()
    assert_warned_once(with_store, driver)
    assert_sync_completes(with_store)


# --- the store is half made ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE alembic_version SET version_num = 'bogus'",
        "DROP TABLE metrics; DROP TABLE latest_metrics; DROP TABLE runs",
    ],
    ids=["of no known version", "without some tables"],
)
def test_a_half_migrated_store_is_named_with_a_remedy(with_store: Path, damage: str) -> None:
    with contextlib.closing(sqlite3.connect(store(with_store))) as database:
        database.executescript(damage)
    assert_warned_once(with_store, start(with_store), f"sqlite:///{store(with_store)}", "delete it, or move it away")
    with pytest.raises(TrackingError, match="delete it, or move it away"):
        show(sync(with_store / "results" / NAME, None))
    assert runs_without_driver(with_store / "results" / NAME, TrackingConfig()) == 0
    store(with_store).unlink()
    assert_sync_completes(with_store)


def test_a_driver_that_is_killed_while_it_makes_the_store_leaves_none_half_made(place: Path) -> None:
    new = place / "results" / ".mlflow.db.new"
    driver = start(place)
    wait_until(lambda: new.exists() and new.stat().st_size > 100_000, "store in the making")
    driver.kill()
    driver.communicate()
    assert not store(place).exists()
    assert new.exists(), "it was caught in the middle"
    output, _ = end_of(start(place))
    assert "warning" not in output
    assert_sync_completes(place)
    assert not new.exists()


def test_eight_processes_may_use_a_fresh_folder_at_once(place: Path) -> None:
    names = [f"tiny{i}" for i in range(8)]
    drivers = [start(place, "--name", name, "--seeds", "0") for name in names]
    outputs = [driver.communicate()[0] for driver in drivers]
    for name, driver, output in zip(names, drivers, outputs, strict=True):
        assert driver.returncode == 0, output
        assert "warning" not in output
        assert "Traceback" not in output
        assert {status for status, _ in runs_in(store(place), name).values()} == {"FINISHED"}
        assert len(runs_in(store(place), name)) == 5, "two trials, two cells and the sweep"
    with contextlib.closing(sqlite3.connect(store(place))) as database:
        assert database.execute("SELECT COUNT(*) FROM experiments WHERE name = 'sweep'").fetchone() == (1,)
        assert database.execute("SELECT COUNT(*) FROM runs").fetchone() == (40,)


# --- drivers that die ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)],
    ids=["SIGKILL", "SIGTERM", "SIGINT"],
)
def test_no_run_stays_running_when_its_driver_is_gone(with_store: Path, number: signal.Signals, code: int) -> None:
    (with_store / "sweep.yaml").write_text(LONG)
    folder = with_store / "results" / NAME
    driver = start(with_store)
    wait_until(lambda: num_mirrored(store(with_store)) >= 2, "mirrored trial")
    assert runs_without_driver(folder, TrackingConfig()) >= 1
    driver.send_signal(number)
    output, _ = driver.communicate()
    assert driver.returncode == code, output
    assert "Traceback" not in output
    assert set(trial_statuses(with_store)) != {"finished"}, "it was caught in the middle"
    assert (runs_without_driver(folder, TrackingConfig()) == 0) == (number != signal.SIGKILL)
    show(sync(folder, None))
    found = runs_in(store(with_store))
    assert "RUNNING" not in {status for status, _ in found.values()}
    assert found["parent"][0] == "KILLED", "trials are still to train"
    assert runs_without_driver(folder, TrackingConfig()) == 0
    show(sync(folder, None))
    assert runs_in(store(with_store)) == found
    if number == signal.SIGKILL:  # going on takes as long as the rest; the ledger is the same for all three
        output, _ = end_of(start(with_store))
        assert set(trial_statuses(with_store)) == {"finished"}, output
        assert {status for status, _ in runs_in(store(with_store)).values()} == {"FINISHED"}
        assert_sync_completes(with_store)


HALF = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN")
database.execute("UPDATE metrics SET value = value + 1")
os._exit(0)
"""


@pytest.fixture
def mirrored(with_store: Path) -> Path:
    """A folder with a finished sweep that MLflow has."""
    output, _ = end_of(start(with_store))
    assert "warning" not in output
    return with_store


def test_a_run_is_counted_where_its_killed_driver_left_half_a_transaction(mirrored: Path) -> None:
    before = runs_in(store(mirrored))
    client = MlflowClient(tracking_uri=f"sqlite:///{store(mirrored)}")
    run, *_ = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    client.update_run(run.info.run_id, status="RUNNING")
    subprocess.run([sys.executable, "-c", HALF, str(store(mirrored))], check=True)
    assert store(mirrored).with_name("mlflow.db-journal").stat().st_size, "half a transaction"
    assert runs_without_driver(mirrored / "results" / NAME, TrackingConfig()) == 1
    show(sync(mirrored / "results" / NAME, None))
    assert runs_in(store(mirrored)) == before


def test_runs_that_were_made_twice_or_cut_off_are_put_right(mirrored: Path) -> None:
    before = runs_in(store(mirrored))
    client = MlflowClient(tracking_uri=f"sqlite:///{store(mirrored)}")
    experiment = client.get_experiment_by_name("sweep")
    runs = client.search_runs([experiment.experiment_id])
    parent = next(run for run in runs if run.data.tags["sweep.level"] == "sweep")
    child = next(run for run in runs if "sweep.trial_id" in run.data.tags)
    # As a request does that was sent again because its answer was lost on the way.
    for run in (parent, child):
        client.create_run(experiment.experiment_id, tags=run.data.tags)
    # As a driver does that is killed between the last numbers and the last call.
    client.update_run(runs[-1].info.run_id, status="RUNNING")
    # As a ledger does that was deleted, with a sweep that was changed afterwards.
    unknown = client.create_run(experiment.experiment_id, tags={**child.data.tags, "sweep.trial_id": "unknown"})
    assert runs_without_driver(mirrored / "results" / NAME, TrackingConfig()) == 4
    show(sync(mirrored / "results" / NAME, None))
    found = runs_in(store(mirrored))
    assert found.pop("unknown")[0] == "KILLED"
    assert found == before
    assert client.get_run(unknown.info.run_id).info.status == "KILLED"


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has opened ``path``, which it does to lock it."""
    with contextlib.suppress(FileNotFoundError):  # a file closed, or the process ended, while we look
        return any(handle.resolve() == path.resolve() for handle in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_a_sync_waits_for_a_run_that_is_still_writing_and_makes_nothing_twice(mirrored: Path) -> None:
    folder, tracking = mirrored / "results" / NAME, TrackingConfig()
    store(mirrored).unlink()
    writer = Mirror(folder, tracking)
    other = subprocess.Popen(command("sync", NAME), cwd=mirrored, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: has_open(other.pid, folder / "mirror.lock"), "attempt to lock")
    time.sleep(1)  # in which it would write what the first one has not written yet
    assert other.poll() is None
    writer.mirror_sweep([])
    writer.close()
    assert other.wait(60) == 0
    other.communicate()
    assert len(runs_in(store(mirrored))) == 7
    assert_sync_completes(mirrored)
