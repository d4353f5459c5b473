"""TensorBoard's files and those of Weights & Biases under faults: sweeps do not care, and sync completes them."""

import contextlib
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from fault_kit import assert_ends_as_any_other, command, end_drivers, environment, need, start, wait_until
from faults.tracker_victim import mirror
from stored_sweeps import Stored, in_tensorboard, in_wandb

from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.mirrors.mirror import Mirror
from orchestrator.mirrors.records import log_columns, running_record
from orchestrator.mirrors.tracker import Point, tracker_class
from orchestrator.sweepfile.sections import TrackingConfig

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
NAME = "edge"
TINY = f"""
name: {NAME}
objective: quadratic
steps: 40
seeds: [0]
axes: {{lr: {{values: [0.1, 3.0]}}}}
fixed: {{optimizer: sgd}}
tracking: {{to: [TRACKER]}}
"""
# Some seconds of trials one by one: long enough to be caught in the middle.
LONG = TINY.replace("steps: 40", "steps: 1200").replace("[0]", "[0, 1, 2, 3, 4, 5, 6, 7]") + "resources: {pack: 1}\n"
HELD_AT_MOST_S = 600.0  # half a minute of waiting, however busy the machine; what hangs would hold it for good
SERVICE = "wandb-core"


@dataclass(frozen=True)
class Case:
    """A tracker that writes files in a folder of its name."""

    name: str
    title: str
    stored: Callable[[Path], Stored]
    stride: int  # of the calls that are hit: each takes the time of a start of the library

    def store(self, place: Path) -> Path:
        return place / "results" / NAME / self.name


TENSORBOARD = Case("tensorboard", "TensorBoard", in_tensorboard, stride=1)
WANDB = Case("wandb", "Weights & Biases", in_wandb, stride=5)


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=[TENSORBOARD, pytest.param(WANDB, marks=pytest.mark.trackers)], ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for a sweep."""
    yield tmp_path
    end_drivers()


def write(place: Path, case: Case, text: str = TINY) -> None:
    (place / "edge.yaml").write_text(text.replace("TRACKER", case.name))


def warned_once(place: Path, case: Case, driver: subprocess.Popen[str], *said: str) -> float:
    """The run is as any other but for one warning; returns how long it was held at its end."""
    assert driver.stdout is not None
    lines, asked = [], time.monotonic()
    with driver.stdout:
        for line in driver.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("mirroring to"):
                asked = time.monotonic()
        driver.wait(60)
    output, held_s = "\n".join(lines), time.monotonic() - asked
    print(f"held for {held_s:.1f} s\n{output}")
    assert driver.returncode == 0, output
    assert_warned_once(case, lines, *said)
    with LedgerReader(place / "results" / NAME / LEDGER) as ledger:
        assert {row.status for row in ledger.trials()} == {"finished"}
    assert held_s < HELD_AT_MOST_S
    return held_s


def assert_warned_once(case: Case, lines: list[str], *said: str) -> None:
    assert "Traceback" not in "\n".join(lines)
    (at,) = (i for i, line in enumerate(lines) if "warning" in line.lower())
    assert lines[at].startswith(f"warning: {case.title} at ")
    assert lines[at + 1] == f"    remedy: `sweep sync {NAME}` writes what is missing"
    assert_ends_as_any_other(lines[at + 2 :])
    for text in said:
        assert text in lines[at]


def assert_sync_completes(place: Path, case: Case) -> None:
    """After a sync the store is as one that was written without faults, and further syncs change nothing."""
    words = command("sync", NAME, "--to", case.name)
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert_as_undisturbed(place / "results" / NAME, case)


def assert_as_undisturbed(folder: Path, case: Case) -> None:
    found = case.stored(folder)
    mirror(case.name, folder)
    assert case.stored(folder) == found
    shutil.rmtree(folder / case.name)
    mirror(case.name, folder)
    assert case.stored(folder) == found


# --- a writer that dies --------------------------------------------------------------------------


@pytest.fixture
def trained(place: Path, case: Case) -> Path:
    """The folder of a sweep that was trained and mirrored nowhere."""
    write(place, case, TINY.replace("to: [TRACKER]", "enabled: false"))
    driver = start(place, "--executor", "inline")
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    return place / "results" / NAME


def leave_growing(folder: Path) -> None:
    """What a driver leaves that was killed while all trials were in training, in another attempt."""
    tracker = tracker_class("tensorboard")
    with LedgerReader(folder / LEDGER) as ledger, Mirror(folder, TrackingConfig(), tracker=tracker) as store:
        logs = log_columns(read_table(ledger).axes)
        for row in ledger.trials():
            record, _ = running_record(ledger, replace(row, status="running", pack_id="another"), logs, NAME, 0)
            store.tracker.write_running(replace(record, points=[Point("loss", 123.0, 0)]))


@pytest.mark.parametrize("call", ["write", "rename", "truncate", "unlink", "mkdir"])
def test_a_mirror_that_is_killed_at_a_write_is_completed_by_the_next(
    trained: Path, case: Case, call: str, tmp_path: Path
) -> None:
    need("strace")
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    script, log = str(ROOT / "tests/faults/tracker_victim.py"), tmp_path / "trace"
    number, was_killed, times = 1, True, 0
    while was_killed:
        folder = tmp_path / f"{call}{number}" / NAME
        shutil.copytree(trained, folder)
        if case.name == "tensorboard":
            leave_growing(folder)
        fault = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
        words = ["strace", "-qq", "-o", str(log), *fault, sys.executable, script, case.name, str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        was_killed = "killed by SIGKILL" in log.read_text()
        assert done.returncode in ((-9, 137) if was_killed else (0,)), done
        mirror(case.name, folder)
        assert_as_undisturbed(folder, case)
        number, times = number + case.stride, times + was_killed
    print(f"SIGKILL at {call}: {times} times")


@pytest.mark.parametrize(
    ("number", "codes"),
    # A run that has trained all no longer stops by itself at SIGTERM: it is ended by it.
    [
        (signal.SIGKILL, (-signal.SIGKILL,)),
        (signal.SIGTERM, (128 + signal.SIGTERM, -signal.SIGTERM)),
        (signal.SIGINT, (130,)),
    ],
    ids=["SIGKILL", "SIGTERM", "SIGINT"],
)
def test_a_driver_that_is_gone_leaves_no_process_and_what_its_next_run_completes(
    place: Path, case: Case, number: signal.Signals, codes: tuple[int, ...]
) -> None:
    write(place, case, LONG)
    driver = start(place, "--executor", "inline")
    wait_until(lambda: num_written(place, case) >= 2, "mirrored trial")
    driver.send_signal(number)
    output, _ = driver.communicate()
    assert driver.returncode in codes, output
    assert "Traceback" not in output
    wait_until(lambda: services_of(driver.pid) == [], "end of its processes")
    assert_sync_completes(place, case)
    output, _ = (again := start(place, "--executor", "inline")).communicate()
    assert (again.returncode, "warning" in output) == (0, False), output
    assert_as_undisturbed(place / "results" / NAME, case)


def num_written(place: Path, case: Case) -> int:
    """Number of trials that the store has as a whole."""
    store = case.store(place)
    if case == TENSORBOARD:
        markers = [path.read_text() for path in store.glob("trials/*/sweep.json")]
        return sum(json.loads(text)["version"] != "" for text in markers)
    with contextlib.suppress(FileNotFoundError):
        return (store / "sweep.jsonl").read_text().count('"trial_id"')
    return 0


def services_of(pid: int) -> list[psutil.Process]:
    """The processes of Weights & Biases that a process has started, also after its end."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if process.name() == SERVICE and words[words.index("--pid") + 1] == str(pid):
                found.append(process)
    return found


# --- a store that cannot be written --------------------------------------------------------------


@pytest.mark.parametrize("size", ["8k", "24k", "48k", "80k"])
def test_a_full_disk_costs_a_warning_and_space_lets_sync_complete(place: Path, case: Case, size: str) -> None:
    first = in_own_mount(place, case, f"mount -t tmpfs -o size={size} none $STORE", "mount -o remount,size=200m $STORE")
    assert_warned_once(case, first, str(case.store(Path())))


def test_a_read_only_store_costs_a_warning_and_is_completed_once_it_can_be_written(place: Path, case: Case) -> None:
    first = in_own_mount(place, case, "mount -t tmpfs -o ro none $STORE", "mount -o remount,rw $STORE")
    assert_warned_once(case, first)


def test_a_store_that_turns_read_only_costs_a_warning(place: Path, case: Case) -> None:
    # A busy file system cannot turn read-only, but another mount of it over it can.
    wait = "while ! ls $STORE/* > /dev/null 2>&1; do sleep 0.1; done"
    before = "mount -t tmpfs none $STORE"
    turn = f"({wait}; sleep 1; mount --bind $STORE $STORE; mount -o remount,ro,bind $STORE) &"
    first = in_own_mount(place, case, f"{before}\n{turn}", "wait; umount $STORE", LONG)
    assert_warned_once(case, first)


def in_own_mount(place: Path, case: Case, before: str, between: str, text: str = TINY) -> list[str]:
    """A run after ``before`` and a sync after ``between``, where mounts are their own; the lines of the run."""
    need("unshare", "mount")
    write(place, case, text)
    store = str(case.store(Path()))
    run, sync = (
        " ".join(words) for words in (command("run", "edge.yaml", "--executor", "inline"), command("sync", NAME))
    )
    script = (
        f"mkdir -p $STORE\n{before}\n{run} 2>&1\necho exit $?\necho SECOND\n{between}\n"
        f"{sync} 2>&1\necho exit $?\ncp -r results copy"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=place, env={**os.environ, "STORE": store}, capture_output=True, text=True,
    )  # fmt: skip
    first, _, second = done.stdout.partition("SECOND\n")
    print(done.stdout, done.stderr)
    assert first.endswith("exit 0\n")
    assert second.endswith("exit 0\n")
    shutil.rmtree(place / "results")
    (place / "copy").rename(place / "results")
    assert_as_undisturbed(place / "results" / NAME, case)
    return first.splitlines()


def test_a_store_that_is_deleted_under_way_costs_a_warning(place: Path, case: Case) -> None:
    write(place, case, LONG)
    driver = start(place, "--executor", "inline")
    wait_until(lambda: num_written(place, case) >= 2, "mirrored trial")
    gone = case.store(place).rename(place / "gone")
    shutil.rmtree(gone)
    warned_once(place, case, driver)
    assert_sync_completes(place, case)


# --- what hangs ----------------------------------------------------------------------------------


def test_a_file_that_never_answers_holds_the_run_for_half_a_minute(place: Path, case: Case) -> None:
    write(place, case)
    known = "trials/one/sweep.json" if case == TENSORBOARD else "sweep.jsonl"
    silent = case.store(place) / known
    silent.parent.mkdir(parents=True)
    os.mkfifo(silent)
    warned_once(place, case, start(place, "--executor", "inline"), "does not answer, or too slowly")
    silent.unlink()
    if case == TENSORBOARD:
        silent.parent.rmdir()
    assert_sync_completes(place, case)


@pytest.mark.trackers
@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGSTOP, "does not answer, or too slowly"), (signal.SIGKILL, "")], ids=["STOP", "KILL"]
)
def test_a_process_of_the_library_that_hangs_or_dies_costs_a_warning(
    place: Path, number: signal.Signals, said: str
) -> None:
    write(place, WANDB, LONG)
    driver = start(place, "--executor", "inline")
    wait_until(lambda: num_written(place, WANDB) >= 2, "mirrored trial")
    [service] = services_of(driver.pid)
    service.send_signal(number)
    warned_once(place, WANDB, driver, said)
    assert services_of(driver.pid) == []
    assert_sync_completes(place, WANDB)


@pytest.mark.trackers
def test_a_sync_ends_when_the_library_cannot_start_its_process(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place, WANDB)
    driver = start(place, "--executor", "inline")
    driver.communicate()
    assert driver.returncode == 0
    (place / "sitecustomize.py").write_text(
        "import pathlib, subprocess\n"
        "start = subprocess.Popen.__init__\n"
        "def fail(self, words, *rest, **options):\n"
        "    is_service = isinstance(words, list) and pathlib.Path(str(words[0])).name == 'wandb-core'\n"
        "    start(self, ['false'] if is_service else words, *rest, **options)\n"
        "subprocess.Popen.__init__ = fail\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(place), str(ROOT))))
    words = command("sync", NAME)
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert done.returncode == 3, done
    assert done.stderr.startswith("error: Weights & Biases at ")
    assert "Traceback" not in done.stderr
    monkeypatch.undo()


# --- servers of Weights & Biases -----------------------------------------------------------------


@pytest.mark.trackers
def test_online_without_an_account_nothing_is_asked_even_on_a_terminal(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    write(place, WANDB)
    ours, theirs = pty.openpty()
    wide = environment(COLUMNS="500")  # no warning is wrapped
    driver = start(place, "--executor", "inline", stdin=theirs, stdout=theirs, stderr=theirs, env=wide)
    os.close(theirs)
    output = b""
    with contextlib.suppress(OSError):  # the terminal is gone when the process is
        while part := os.read(ours, 4096):
            output += part
    os.close(ours)
    assert driver.wait(60) == 0, output
    assert_warned_once(WANDB, output.decode().replace("\r", "").splitlines(), "No API key configured")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert_sync_completes(place, WANDB)


@pytest.mark.trackers
@pytest.mark.parametrize("answers", [False, True], ids=["unreachable", "silent"])
def test_a_server_that_does_not_answer_costs_a_warning(
    place: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    key = "0123456789" * 4
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        if not answers:
            server.close()
        monkeypatch.setenv("WANDB_API_KEY", key)
        monkeypatch.setenv("WANDB_BASE_URL", address)
        write(place, WANDB)
        warned_once(place, WANDB, start(place, "--executor", "inline"), address)
    for path in (place / "results").rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), "a secret is in no file"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert_sync_completes(place, WANDB)
