"""Faults of Ray and its workers, with real ones."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_kit import (
    DRIVERS,
    LONGER,
    assert_goes_on,
    assert_sound,
    environment,
    is_training,
    need,
    results_of,
    run,
    start,
    statuses,
    wait_until,
    write_sweep,
)

from orchestrator.base.files import LEDGER
from orchestrator.base.processes import all_marked, children, is_alive, leftovers, marked
from orchestrator.ledger.reader import LedgerReader

pytestmark = pytest.mark.faults
EXIT_FAILED = 4


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a sweep file, and no process left in the end."""
    write_sweep(tmp_path, LONGER)
    yield tmp_path
    ours = {str(driver.pid) for driver in DRIVERS}
    wait_until(lambda: not any(mark.split(".")[0] in ours for mark in all_marked().values()), "end of processes", 10)


def mark_of(driver: subprocess.Popen) -> str:
    """The mark of the processes that a driver has started."""
    return next((mark for mark in all_marked().values() if mark.startswith(f"{driver.pid}.")), "")


def processes_of(driver: subprocess.Popen, name: str) -> list[int]:
    """Processes of a driver's Ray by the beginning of their name."""
    found = []
    for pid in marked(mark_of(driver)):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if name in title.split(" ")[0]:
            found.append(pid)
    return found


def workers_of(folder: Path, driver: subprocess.Popen) -> list[int]:
    """Processes that train packs now."""
    path = folder / "results/edge" / LEDGER
    if not path.is_file():
        return []
    with LedgerReader(path) as ledger:
        packs = [pack for pack in ledger.packs() if pack.ended is None]
    return [pid for pack in packs if is_alive(pid := int(pack.environment.get("pid", 0)))]


def losses(folder: Path) -> list[str]:
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        return [pack.ended for pack in ledger.packs()].count("lost") * ["lost"]


def finish(driver: subprocess.Popen) -> str:
    output, _ = driver.communicate()
    assert "Traceback" not in output
    return output


def test_a_killed_worker_costs_its_pack_the_steps_since_the_checkpoint_and_no_one_else_notices(
    folder: Path, undisturbed_longer
) -> None:
    driver = start(folder)
    wait_until(lambda: is_training(folder) and workers_of(folder, driver), "worker")
    os.kill(workers_of(folder, driver)[0], signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: losses(folder), "loss", 30)
    print(f"lost after {time.monotonic() - began:.1f} s")
    output = finish(driver)
    assert driver.returncode == 0, output
    assert losses(folder) == ["lost"]
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        assert len([pack for pack in ledger.packs() if pack.resumed_from]) == 1
    assert_sound(folder)
    assert results_of(folder) == undisturbed_longer


@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_when_a_part_of_ray_dies_the_driver_says_so_and_the_next_run_goes_on(
    folder: Path, undisturbed_longer, part: str
) -> None:
    driver = start(folder)
    wait_until(lambda: is_training(folder) and processes_of(driver, part), part)
    mark = mark_of(driver)
    for pid in processes_of(driver, part):
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    output = finish(driver)
    assert time.monotonic() - began < 60
    assert driver.returncode == EXIT_FAILED, output
    (line,) = [line for line in output.splitlines() if line.startswith("error:")]
    assert "ay" in line
    assert marked(mark) == []
    assert "running" not in statuses(folder)
    assert_sound(folder)
    assert_goes_on(folder, undisturbed_longer)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_a_signal_pauses_the_workers_and_leaves_no_process(
    folder: Path, undisturbed_longer, number: int, code: int
) -> None:
    driver = start(folder)
    wait_until(lambda: is_training(folder), "checkpoint")
    mark = mark_of(driver)
    began = time.monotonic()
    driver.send_signal(number)
    output = finish(driver)
    assert driver.returncode == code, output
    assert time.monotonic() - began < 30
    wait_until(lambda: marked(mark) == [], "end of its processes", 5)
    assert "running" not in statuses(folder)
    assert "interrupted" in statuses(folder)
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        resumable = ledger.resumable()
    assert resumable
    assert_goes_on(folder, undisturbed_longer)


@pytest.mark.parametrize("also_its_children", [False, True], ids=["driver", "and the process between it and Ray"])
def test_what_a_killed_driver_leaves_behind_ends_by_itself_or_with_the_next_run(
    folder: Path, undisturbed_longer, also_its_children: bool
) -> None:
    driver = start(folder)
    wait_until(lambda: is_training(folder), "checkpoint")
    mark = mark_of(driver)
    for pid in [driver.pid, *(children(driver.pid) if also_its_children else ())]:
        os.kill(pid, signal.SIGKILL)
    driver.communicate()
    assert_goes_on(folder, undisturbed_longer)
    assert marked(mark) == []
    assert leftovers() == {}


def test_a_worker_that_hangs_is_killed_and_its_pack_goes_on(folder: Path, undisturbed_longer) -> None:
    write_sweep(folder, LONGER.replace("pack: 4", "pack: 4, stall_timeout_s: 15"))
    driver = start(folder)
    wait_until(lambda: is_training(folder) and workers_of(folder, driver), "worker")
    hung = workers_of(folder, driver)[0]
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: losses(folder), "loss", 60)
    wait_until(lambda: not is_alive(hung), "end of what hangs", 20)
    output = finish(driver)
    assert driver.returncode == 0, output
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        assert losses(folder) == ["lost"]
        assert {row.status for row in ledger.trials()} == {"finished"}
    assert_sound(folder)
    assert results_of(folder) == undisturbed_longer


def test_a_worker_that_the_kernel_kills_for_memory_gets_smaller_packs(folder: Path) -> None:
    """In a control group whose memory holds Ray and a few members of this transformer, not all of them."""
    group = Path("/sys/fs/cgroup/memory/sweep-test")
    try:
        group.mkdir()
    except OSError as error:
        pytest.fail(f"no control groups of version 1, so memory cannot be limited: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(2600 * 2**20))
        write_sweep(
            folder,
            "name: edge\nobjective: gpt\nsteps: 3\nseeds: [0, 1, 2, 3, 4, 5, 6, 7]\naxes: {lr: {values: [0.001]}}\n"
            "fixed: {width: 128, heads: 4, context: 128, batch_size: 76, validation_batches: 1}\n"
            "resources: {pack: 8, parallel: 1, kernels: default}\ntracking: {enabled: false}\n",
        )
        enter = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        driver = start(folder, preexec_fn=enter, env=environment(RAY_memory_monitor_refresh_ms="0"))
        output, _ = driver.communicate()
        assert driver.returncode == 0, output
        assert "Traceback" not in output
        assert statuses(folder) == ["finished"] * 8
        with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
            sizes = [len(pack.trial_ids) for pack in ledger.packs()]
            ended = [pack.ended for pack in ledger.packs()]
        assert "lost" in ended, "everything fitted: the limit is too high for this test"
        print(sizes, ended)
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), "empty group", 30)
        group.rmdir()


@pytest.mark.parametrize(
    "changes",
    [{"RAY_ADDRESS": "192.0.2.1:6379"}, {"RAY_TMPDIR": "/tmp/" + "long" * 30}, {"TMPDIR": "/tmp/" + "long" * 30}],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_meant_for_other_rays_do_not_reach_a_private_one(folder: Path, changes: dict[str, str]) -> None:
    for name, value in changes.items():
        if name.endswith("TMPDIR"):
            Path(value).mkdir(exist_ok=True)
    driver = start(folder, "--steps", "20", env=environment(**changes))
    output = finish(driver)
    assert driver.returncode == 0, output


def test_everything_that_listens_needs_a_token_or_is_on_loopback(folder: Path) -> None:
    need("ss")
    driver = start(folder)
    wait_until(lambda: is_training(folder), "checkpoint")
    code, output = run(folder, "doctor", "edge")
    assert code == 0, output
    listeners = re.findall(r"listens on (\S+)", output)
    print("\n".join(sorted(listeners)))
    assert listeners
    tokens = [
        b"RAY_AUTH_MODE=token" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for pid in processes_of(driver, "raylet") + processes_of(driver, "gcs_server")
    ]
    assert tokens == [True, True]
    assert [one for one in listeners if not one.startswith(("127.", "::1"))] == []
    driver.send_signal(signal.SIGINT)
    finish(driver)
