"""SIGKILL, signals and a second driver, also while rules act and forks train, with real processes."""

import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fault_kit import (
    DRIVERS,
    LONGER,
    SEARCH,
    SWEEP,
    assert_goes_on,
    assert_sound,
    can_go_on,
    command,
    is_training,
    kill_at_random_moments,
    results_of,
    run,
    start,
    statuses,
    undisturbed_results,
    wait_until,
    write_sweep,
)

from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader

KILLS = 4  # `make soak` has two hundred
MOST_TRIES = 8


@pytest.mark.slow
def test_a_driver_killed_at_random_moments_loses_nothing(folder: Path, undisturbed) -> None:
    """A sweep that was over before its kill begins anew, so that the kills do not hang on how quick the machine is."""
    moments = random.Random(0)
    killed = tries = 0
    while killed < KILLS and tries < MOST_TRIES:
        tries += 1
        driver = start(folder, "--executor", "inline")
        if killed % 2:
            wait_until(lambda: is_training(folder) or driver.poll() is not None, "checkpoint")  # noqa: B023
        time.sleep(moments.uniform(0.0, 0.8))
        driver.kill()
        driver.communicate()
        if driver.returncode == -signal.SIGKILL:
            killed += 1
            if statuses(folder):
                assert_sound(folder)
        else:
            shutil.rmtree(folder / "results")
    assert_goes_on(folder, undisturbed, "--executor", "inline")
    assert killed >= KILLS // 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["edge", "tpe"])
def test_a_search_whose_driver_is_killed_at_random_moments_tries_the_same_trials(tmp_path: Path, method: str) -> None:
    text = SEARCH.replace("METHOD", method)
    (tmp_path / "calm").mkdir()
    calm = undisturbed_results(tmp_path / "calm", text)
    assert len(calm) == 24
    write_sweep(tmp_path, text)
    kill_at_random_moments(tmp_path, 1, MOST_TRIES, 0.6)
    assert_goes_on(tmp_path, calm, "--executor", "inline")


@pytest.mark.slow
def test_a_killed_driver_costs_only_the_steps_since_its_checkpoints(folder: Path, undisturbed) -> None:
    for _ in range(10):  # a pack may end between the look and the kill
        driver = start(folder, "--executor", "inline")
        wait_until(lambda: can_go_on(folder), "checkpoint in the ledger")
        driver.kill()
        driver.communicate()
        if can_go_on(folder):
            break
    output = assert_goes_on(folder, undisturbed, "--executor", "inline")
    assert "as before it was interrupted" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="INT"),
        pytest.param(signal.SIGTERM, 143, id="TERM", marks=pytest.mark.faults),
        pytest.param(signal.SIGHUP, 129, id="HUP", marks=pytest.mark.faults),
    ],
)
def test_a_signal_lets_packs_write_a_checkpoint_and_ends_with_its_own_code(
    folder: Path, undisturbed, number: int, code: int
) -> None:
    driver = start(folder, "--executor", "inline")
    wait_until(lambda: is_training(folder), "checkpoint")
    driver.send_signal(number)
    output, _ = driver.communicate()
    assert driver.returncode == code, output
    assert "the same command resumes" in output
    assert "Traceback" not in output
    assert set(statuses(folder)) <= {"finished", "interrupted", "planned"}
    assert is_training(folder) == ("interrupted" in statuses(folder)), "its checkpoint stays"
    assert_sound(folder)
    assert run(folder, "run", "edge.yaml", "--executor", "inline")[0] == 0
    assert results_of(folder) == undisturbed
    assert not is_training(folder), "nobody needs it any more"


@pytest.mark.faults
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_on_a_terminal_stops_the_run_and_twice_at_once(folder: Path, undisturbed, presses: int) -> None:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []
    driver = subprocess.Popen(
        command("run", "edge.yaml", "--executor", "inline"),
        cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(theirs)
    reader = threading.Thread(target=_read_all, args=(ours, shown))
    reader.start()
    wait_until(lambda: is_training(folder), "checkpoint")
    for _ in range(presses):
        os.write(ours, b"\x03")
        time.sleep(0.05)
    assert driver.wait(15) == 130
    reader.join()
    os.close(ours)
    assert b"Traceback" not in b"".join(shown)
    assert_sound(folder)
    assert run(folder, "run", "edge.yaml", "--executor", "inline")[0] == 0
    assert results_of(folder) == undisturbed


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_all(handle: int, shown: list[bytes]) -> None:
    try:
        while piece := os.read(handle, 4096):
            shown.append(piece)
    except OSError:
        pass  # the other side is closed


@pytest.mark.slow
def test_of_drivers_that_start_at_once_one_trains_and_the_others_say_who(folder: Path, undisturbed_longer) -> None:
    write_sweep(folder, LONGER)  # the slowest start is over before the first run ends
    drivers = [start(folder, "--executor", "inline") for _ in range(4)]
    ended = [(driver.communicate()[0], driver.returncode) for driver in drivers]
    assert sorted(code for _, code in ended) == [0, 2, 2, 2], ended
    winner = next(driver.pid for driver, (_, code) in zip(drivers, ended, strict=True) if code == 0)
    for output, code in ended:
        if code == 2:
            assert re.search(rf"is in use by pid {winner} since \d{{4}}-", output), output
    assert results_of(folder) == undisturbed_longer


@pytest.mark.slow
def test_the_lock_of_a_dead_driver_is_taken_over(folder: Path) -> None:
    driver = start(folder, "--executor", "inline")
    wait_until(lambda: (folder / "results/edge/lock").is_file() and statuses(folder), "ledger")
    driver.kill()
    driver.communicate()
    assert f"pid {driver.pid}" in (folder / "results/edge/lock").read_text()
    assert run(folder, "run", "edge.yaml", "--executor", "inline", "--steps", "10")[0] == 0


# Rules with ramps, cool-downs and several readings in a row, so that a kill falls into any of them.
CONTROL = """
  control:
    values:
      - []
      - [{on: curvature, above: 0.2, readings: 2, do: {lr: x0.5}, every: 7, at_most: 4, cool_down: 150, over: 90}]
      - [{on: loss, above: 1, do: [{skip: 3}, {clip_to_quantile: 0.5}, {lr: x0.5}], every: 40, after: 20, at_most: 9}]
"""


def fired_of(folder: Path) -> dict[str, Any]:
    with LedgerReader(folder / "results" / "edge" / LEDGER) as ledger:
        return {row.trial_id: row.fired for row in ledger.trials()}


@pytest.mark.slow
def test_a_sweep_with_rules_that_is_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    text = SWEEP.replace("axes:\n", f"axes:{CONTROL}")
    assert text != SWEEP
    (tmp_path / "calm").mkdir()
    calm = undisturbed_results(tmp_path / "calm", text)
    write_sweep(tmp_path, text)
    kill_at_random_moments(tmp_path, 0, 6, 1.5)
    assert_goes_on(tmp_path, calm, "--executor", "inline")
    fired = fired_of(tmp_path)
    assert fired == fired_of(tmp_path / "calm")
    assert sum(map(len, fired.values())) > 20


LR, AS_JSON = ("--try", "lr=x0.5,x0.25"), ("--json", "answer.json")
ASKED = ("remedy", "edge", "--fork", "0", *LR, "--try", "skip=5", "--replicates", "4", *AS_JSON)
OF_EACH_CELL = ("remedies", "edge", "--fork", "onset", *LR, "--replicates", "2", *AS_JSON)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [ASKED, OF_EACH_CELL], ids=["one trial", "each cell"])
def test_forks_that_are_killed_at_random_moments_give_the_same_answer(folder: Path, asked: tuple[str, ...]) -> None:
    write_sweep(folder, LONGER)
    code, output = run(folder, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    moments, killed = random.Random(0), 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            command(*asked), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        DRIVERS.append(process)
        time.sleep(moments.uniform(1.0, 5.0))
        process.kill()
        process.communicate()
        killed += process.returncode < 0
    code, output = run(folder, *asked)
    assert code == 0, output
    assert killed > 0, "no kill came before the end"
    disturbed = json.loads((folder / "answer.json").read_text())
    (folder / "results" / "edge" / "remedies").rename(folder / "elsewhere")
    code, output = run(folder, *asked)
    assert code == 0, output
    assert json.loads((folder / "answer.json").read_text()) == disturbed
    for answer in disturbed.get("cells", [disturbed]):
        assert answer["control_repeats"] is True
        assert answer["num_missing"] == 0


@pytest.mark.slow
def test_a_killed_refinement_goes_on_with_what_is_left_of_it(folder: Path) -> None:
    write_sweep(folder, SWEEP.replace("lr: {values: [0.1, 1.0, 3.0]}", "lr: {log: [0.1, 30.0], num: 3}"))
    assert run(folder, "run", "edge.yaml", "--executor", "inline")[0] == 0
    num = len(statuses(folder))
    refine = ("run", "edge", "--refine", "--trials", "32", "--factor", "1.001", "--executor", "inline")
    driver = subprocess.Popen(command(*refine), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    DRIVERS.append(driver)
    wait_until(lambda: statuses(folder).count("finished") > num, "trial of the refinement")
    driver.kill()
    driver.communicate()
    code, output = run(folder, *refine)
    assert code == 0, output
    assert statuses(folder) == ["finished"] * (num + 32)
    assert_sound(folder)
