"""Scripts that misbehave in every way at once: each gets its message, and the good ones their results."""

import subprocess
import sys
from pathlib import Path

import pytest
from fault_kit import assert_sound, run, wait_until

from orchestrator.base.files import LEDGER
from orchestrator.base.processes import is_alive
from orchestrator.ledger.reader import LedgerReader

SCRIPT = """
import os, signal, subprocess, sys, time
mode = sys.argv[1]
if mode == "crashes at once":
    raise ValueError("bad setting")
if mode == "says nothing":
    sys.exit(0)
if mode == "says other things":
    print("epoch 3 accuracy 0.5"); sys.exit(0)
if mode == "ignores SIGTERM":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "leaves a daemon":
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open("daemon", "w").write(str(daemon.pid))
if mode == "prints noise":
    for _ in range(200): print("no news " * 12500)
for step in range(60):
    if mode == "closes its output" and step == 50:
        os.close(1); os.close(2); time.sleep(0.3); os._exit(0)
    loss = 2 + 0.9**step
    if mode == "ignores SIGTERM" and step > 30:
        loss = float("nan")
    if mode == "crashes on the way" and step == 30:
        os._exit(7)
    if mode == "writes half a character":
        os.write(1, b"\\xe2\\x82")
    print(f"step {step} loss {loss}")
if mode == "ignores SIGTERM":
    time.sleep(1000)
"""
EXPECTED = {
    "is good": ("finished", "stable", ""),
    "crashes at once": ("errored", None, "ended with exit code 1: ValueError: bad setting"),
    "says nothing": ("errored", None, "exit code 0 and without a loss"),
    "says other things": ("errored", None, "names seen: epoch, accuracy"),
    "ignores SIGTERM": ("finished", "diverged", ""),
    "leaves a daemon": ("finished", "stable", ""),
    "prints noise": ("finished", "stable", ""),
    "closes its output": ("finished", "stable", ""),
    "crashes on the way": ("errored", None, "ended with exit code 7: step 29 loss"),
    "writes half a character": ("finished", "stable", ""),
    "is good; $(touch owned)": ("finished", "stable", ""),
}
SWEEP = f"""
name: edge
objective: {{command: [python, bad.py, "{{mode}}"], grace_s: 0.3}}
steps: 60
axes: {{mode: {{values: {list(EXPECTED)}}}}}
tracking: {{enabled: false}}
"""


def test_no_script_takes_the_sweep_with_it(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(SCRIPT)
    (tmp_path / "edge.yaml").write_text(SWEEP)
    code, output = run(tmp_path, "run", "edge.yaml", "--executor", "inline")
    assert code == 3, output
    assert "Traceback" not in output
    with LedgerReader(tmp_path / "results/edge" / LEDGER) as ledger:
        found = {row.cell["mode"]: row for row in ledger.trials()}
    for mode, (status, outcome, reason) in EXPECTED.items():
        row = found[mode]
        assert (row.status, row.outcome) == (status, outcome), (mode, row.reason)
        assert reason in (row.reason if status == "errored" else "")
    assert not is_alive(int((tmp_path / "daemon").read_text()))
    assert not (tmp_path / "owned").exists()
    assert_sound(tmp_path)
    code, output = run(tmp_path, "status", "edge")
    assert "bad setting" in output


SLOW = """
import os, sys, time
open(f"pid-{sys.argv[1]}", "w").write(str(os.getpid()))
for step in range(60):
    print(f"step {step} loss {2 + 0.9 ** step}")
    time.sleep(0.04)
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.faults)])
def test_scripts_of_a_driver_that_was_killed_end_and_the_next_run_goes_on(tmp_path: Path, executor: str) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "edge.yaml").write_text(
        'name: edge\nobjective: {command: [python, slow.py, "{lr}"]}\nsteps: 60\n'
        "axes: {lr: {values: [1, 2]}}\ntracking: {enabled: false}\n"
    )
    command = [sys.executable, "-m", "orchestrator.cli", "run", "edge.yaml", "--executor", executor]
    driver = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: any(path.read_text() for path in tmp_path.glob("pid-*")), "script")
    driver.kill()
    driver.wait()
    pids = [int(path.read_text()) for path in tmp_path.glob("pid-*") if path.read_text()]
    wait_until(lambda: not any(map(is_alive, pids)), "end of the scripts")
    code, output = run(tmp_path, "run", "edge.yaml", "--executor", executor)
    assert code == 0, output
    assert_sound(tmp_path)
    with LedgerReader(tmp_path / "results/edge" / LEDGER) as ledger:
        assert {row.outcome for row in ledger.trials()} == {"stable"}
