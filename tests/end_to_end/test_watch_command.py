"""The installed command follows the log of another process, which is killed and restarted, and sends one message."""

import http.server
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SWEEP = str(Path(sys.executable).with_name("sweep"))
WAIT_S = 600.0
# A trainer with a checkpoint: each start goes on from it, and prints as nanoGPT does. It has one spike.
TRAINER = textwrap.dedent(
    """
    import math, os, random, sys, time
    start = int(open("ckpt").read()) if os.path.exists("ckpt") else 0
    print(f"number of parameters: 123.59M, resuming from {start}", flush=True)
    for step in range(start, 1000):
        noise = random.Random(step).gauss(0, 0.02)
        loss = 2 + 8 * math.exp(-step / 100) + noise + (2.0 if 600 <= step < 630 else 0.0)
        if step % 50 == 0:
            open("ckpt", "w").write(str(step))
            print(f"step {step}: train loss {loss:.4f}, val loss {loss + 0.1:.4f}", flush=True)
        print(f"iter {step}: loss {loss:.4f}, time {23.4 + noise:.2f}ms, mfu 12.30%", flush=True)
        if step in (300, 690) and start <= step - 50:
            time.sleep(600)  # until it is killed
    """
)


class Handler(http.server.BaseHTTPRequestHandler):
    """Keeps the messages that it is sent."""

    received: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    received: list[dict[str, Any]] = []
    handler = type("Own", (Handler,), {"received": received})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"json://somebody:pa55w0rd@127.0.0.1:{running.server_port}/", received
        running.shutdown()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """Start processes that are ended in the end."""
    started: list[subprocess.Popen] = []

    def call(*command: str, **options: Any) -> subprocess.Popen:
        started.append(subprocess.Popen(command, **options))
        return started[-1]

    yield call
    for each in started:
        each.kill()
        each.wait()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def rows_of(path: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if row["type"] == kind]


def test_a_run_that_is_killed_and_restarted_twice_sends_one_message_for_its_one_spike(
    tmp_path: Path, server, start
) -> None:
    url, received = server
    log, rows = tmp_path / "train.log", tmp_path / "rows.jsonl"
    log.touch()
    (tmp_path / "train.py").write_text(TRAINER)
    options = ["--steps", "1000", "--every", "0.2", "--notify", "NOTIFY_URL", "--on", "spike,lost", "--json", str(rows)]
    watch = start(
        SWEEP, "watch", "train.log", *options, cwd=tmp_path, env={**os.environ, "NOTIFY_URL": url},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until(lambda: bool(rows_of(rows, "report")))

    def last_step() -> int:
        return rows_of(rows, "report")[-1]["step"] or 0

    for stopped_at in (300, 690):
        with open(log, "ab") as out:
            trainer = start(sys.executable, "train.py", cwd=tmp_path, stdout=out)
        until(lambda at=stopped_at: last_step() == at)
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
    log.rename(tmp_path / "train.log.1")  # rotated, too
    with open(log, "ab") as out:
        start(sys.executable, "train.py", cwd=tmp_path, stdout=out)
    said, _ = watch.communicate(timeout=WAIT_S)
    assert watch.returncode == 0, said
    assert [(row["kind"], row["step"]) for row in rows_of(rows, "alarm")] == [("spike", 600)]
    assert [message["title"] for message in received] == ["train.log: spike"]
    assert "goes back to step 300" in said
    assert "goes back to step 650" in said
    (ended,) = rows_of(rows, "end")
    assert (ended["outcome"], ended["episodes"]) == ("spiked", [[600, 630]])
    assert "pa55w0rd" not in said + rows.read_text()
    assert "Traceback" not in said

    # What it came to is what a replay of the whole log says.
    whole = (tmp_path / "train.log.1").read_text() + log.read_text()
    (tmp_path / "whole.log").write_text(whole)
    done = subprocess.run(
        [SWEEP, "replay", "whole.log", "--no-figures", "--json", "-"], cwd=tmp_path, capture_output=True, text=True
    )
    (replayed,) = json.loads(done.stdout)
    assert (replayed["outcome"], replayed["onset_step"]) == (ended["outcome"], ended["onset_step"])
    assert [[each["onset_step"], each["recovery_step"]] for each in replayed["episodes"]] == ended["episodes"]


def test_a_lost_run_on_a_pipe_runs_the_command_and_ends_with_exit_code_5(tmp_path: Path) -> None:
    losses = [*(3 - step / 1000 for step in range(500)), float("nan")]
    text = "".join(f"step {step} loss {loss:.4f}\n" for step, loss in enumerate(losses))
    done = subprocess.run(
        [SWEEP, "watch", "-", "--exit-on", "lost", "--run", "echo $SWEEP_ALARM at $SWEEP_ALARM_STEP > told"],
        cwd=tmp_path, input=text, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (5, "")
    assert (tmp_path / "told").read_text() == "lost at 500\n"
    assert done.stdout.splitlines()[-1].startswith("ended (--exit-on lost): diverged from step 500: ")


def test_what_the_command_prints_does_not_mix_with_json_on_standard_output(tmp_path: Path) -> None:
    text = "".join(f"step {step} loss {loss}\n" for step, loss in enumerate([3.0] * 50 + ["nan"]))
    done = subprocess.run(
        [SWEEP, "watch", "-", "--json", "-", "--run", "echo told"],
        cwd=tmp_path, input=text, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["alarm", "alarm", "report", "end"]
    assert "told\n" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere.log"], "nowhere.log: no such file or folder"),
        (["train.log", "--on", "spikes"], "--on spikes: 'spikes' is not a kind of alarm"),
        (["train.log", "--notify", "NOWHERE_URL"], "the environment variable NOWHERE_URL is not set"),
        (["train.log", "--notify", "nothing://at/all"], "--notify nothing://...: its value is not a URL of Apprise"),
        (
            ["train.log", "--set", "width=2048"],
            "--set width=2048: is a setting of the run, which no sweep is compared with",
        ),
        (["train.log", "--beside", "nowhere"], "holds no sweep"),
        (["train.log", "--json", "no/such/folder.jsonl"], "--json"),
        (["train.log", "--pattern", "("], "is not a valid regular expression"),
    ],
)
def test_what_it_refuses_ends_with_two_and_says_what_to_do(
    tmp_path: Path, command_line, monkeypatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").touch()
    code, text = command_line("watch", *options)
    assert code == 2
    assert message in text
    assert "remedy: " in text
    assert "Traceback" not in text
