"""The example scripts that a sweep starts as they are: they go on exactly, and train alike on more processes."""

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.ledger.reader import LedgerReader

SWEEPS = Path(__file__).parents[2] / "sweeps"
TRAINERS = SWEEPS / "trainers"
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ITERATION = re.compile(r"^iter (\d+): loss (\S+), norm ([\d.]+)", re.MULTILINE)
NUM_COMPARED = 50
SAVED_EVERY = 20
SHORT = (f"--max_iters={NUM_COMPARED}", "--device=cpu")
# Long enough that a signal comes before the end, also on a busy machine.
LONG = ("--max_iters=300", f"--eval_interval={SAVED_EVERY}", "--device=cpu")


def start(script: str, *arguments: str, rank: int = 0, world_size: int = 1, port: int = 0) -> subprocess.Popen[str]:
    """One process of a script; of several with what torchrun gives each."""
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    if world_size > 1:
        values = (rank, rank, world_size, world_size, "127.0.0.1", port)
        environment |= {name: str(value) for name, value in zip(LAUNCHER, values, strict=True)}
    command = [sys.executable, str(TRAINERS / script), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outputs(*processes: subprocess.Popen[str]) -> list[str]:
    """What each printed, all having ended well and without a warning."""
    try:
        ended = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert (process.returncode, "Warning" in errors) == (0, False), errors
    return [printed for printed, _ in ended]


def start_two(script: str, *arguments: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [start(script, *arguments, rank=rank, world_size=2, port=port) for rank in range(2)]


def curve(printed: str) -> list[tuple[float, float]]:
    """Loss and gradient norm of the first iterations, none of which is missing."""
    rows = ITERATION.findall(printed)[:NUM_COMPARED]
    assert [int(row[0]) for row in rows] == list(range(NUM_COMPARED))
    return [(float(loss), float(norm)) for _, loss, norm in rows]


def losses(printed: str) -> list[float]:
    return [loss for loss, _ in curve(printed)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What train.py prints when nothing stops it."""
    return outputs(start("train.py", *LONG, f"--out_dir={tmp_path_factory.mktemp('whole')}"))[0]


def stop_at(process: subprocess.Popen[str], iter_num: int, number: signal.Signals) -> str:
    """Send a signal once an iteration is printed; what was printed until the end."""
    printed = ""
    for line in process.stdout:
        printed += line
        if line.startswith(f"iter {iter_num}:"):
            process.send_signal(number)
            break
    rest, errors = process.communicate()
    # A shell shows 143 for a process that ends so by itself.
    expected = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 128 + signal.SIGTERM}
    assert process.returncode == expected[number], errors
    return printed + rest


@pytest.mark.slow
def test_a_script_that_is_killed_and_then_terminated_goes_on_as_if_nothing_had_been(tmp_path: Path, whole: str) -> None:
    settings = (*LONG, f"--out_dir={tmp_path / 'out'}")
    killed = stop_at(start("train.py", *settings), 21, signal.SIGKILL)
    terminated = stop_at(start("train.py", *settings, "--init_from=resume"), 60, signal.SIGTERM)
    resumed = outputs(start("train.py", *settings, "--init_from=resume"))[0]

    expected = {int(i): rest for i, *rest in ITERATION.findall(whole)}
    found = [{int(i): rest for i, *rest in ITERATION.findall(printed)} for printed in (killed, terminated, resumed)]
    assert all(part.items() <= expected.items() for part in found)
    # A kill costs what was not saved; it may come between the saving and the next line.
    assert min(found[1]) % SAVED_EVERY == 0
    assert max(found[0]) - SAVED_EVERY < min(found[1]) <= max(found[0]) + 1
    assert min(found[2]) == max(found[1]) + 1
    assert max(found[2]) == max(expected)
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]
    assert whole.splitlines()[-1].startswith(f"step {len(expected)}: train loss ")


def test_an_unknown_setting_is_refused() -> None:
    process = start("train.py", "--learning_rat=1")
    printed, errors = process.communicate()
    assert (process.returncode, printed) == (2, "")
    assert errors == "--learning_rat=1: no such setting, or not --name=value\n"


@pytest.mark.parametrize("argument", ["learning_rate=1", "--learning_rate", "--seed=x", "--__name__=x", "--math=1"])
def test_what_is_no_setting_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    train = runpy.run_path(str(TRAINERS / "train.py"))
    with pytest.raises(SystemExit) as ended:
        train["configure"]([argument])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"{argument}: ")


@pytest.mark.slow
def test_two_processes_train_what_one_does_on_the_same_batches(tmp_path: Path, whole: str) -> None:
    first, second = outputs(*start_two("train.py", *SHORT, f"--out_dir={tmp_path}"))
    assert second == ""
    assert losses(first) == pytest.approx(losses(whole), rel=1e-4)
    assert (tmp_path / "ckpt.pt").stat().st_size > 0


@pytest.mark.slow
def test_a_sharded_model_trains_what_a_whole_one_does(whole: str) -> None:
    alone, first, second = outputs(start("train_fsdp.py", *SHORT), *start_two("train_fsdp.py", *SHORT))
    assert second == ""
    assert losses(first) == pytest.approx(losses(alone), rel=1e-5)
    # The gradient is ill-conditioned at some steps: there rounding alone moves its norm by a ten-thousandth.
    assert [norm for _, norm in curve(first)] == pytest.approx([norm for _, norm in curve(alone)], rel=1e-2)
    assert losses(alone) == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "train_script", "train_fsdp"])
def test_the_shipped_maps_have_stable_and_diverged_cells(tmp_path: Path, name: str) -> None:
    sweep = str(Path(sys.executable).with_name("sweep"))
    command = [sweep, "run", str(SWEEPS / f"{name}.yaml"), "--allow-import"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    with LedgerReader(tmp_path / "results" / name / "ledger.db") as ledger:
        outcomes = {row.outcome for row in ledger.trials()}
    assert outcomes >= {"stable", "diverged"}
    assert None not in outcomes
