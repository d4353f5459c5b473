import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from custom_cases import SWEEP, only_pack, sweep_in, trained

from orchestrator.base.packs import Lost
from orchestrator.base.processes import is_alive
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep, load_sweep
from orchestrator.worker import launcher as trial_process
from orchestrator.worker.run import run_pack

NOISY = """
import random

import numpy as np
import torch


def run(config, report):
    random.seed(config["seed"])
    np.random.seed(config["seed"])
    torch.manual_seed(config["seed"])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    for step in range(config["steps"]):
        data = torch.randn(8, 4) + random.random() + float(np.random.rand())
        loss = ((model(data) - data.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, loss=loss.item())
"""
FUNCTION = """
name: mine
objective: {python: "mine_function:run"}
steps: 12
seeds: [0, 1]
axes: {lr: {values: [0.1, 1.0]}}
tracking: {enabled: false}
"""


@pytest.fixture(autouse=True)
def _no_server_is_left() -> Iterator[None]:
    yield
    trial_process.close_server()


def function_in(folder: Path, script: str, text: str = FUNCTION) -> Sweep:
    (folder / "mine_function.py").write_text(script)
    (folder / "mine.yaml").write_text(text)
    return load_sweep(folder / "mine.yaml")


def writes(what: str, before: str = "") -> str:
    """A function that writes the value of ``what`` to a file in the trial's folder."""
    return f"""
import json, os, random, sys, threading
import numpy as np
{before}

def run(config, report):
    with open(os.path.join(config["folder"], "said"), "w") as file:
        json.dump({what}, file)
    for step in range(config["steps"]):
        report(step, loss=1.0 + config["seed"] - 0.01 * step)
"""


def said_by(sweep: Sweep, folder: Path) -> list:
    """What each trial wrote."""
    rows = trained(sweep, folder)
    assert [row.status for row in rows] == ["finished"] * len(rows), [row.error for row in rows]
    return [json.loads(file.read_text()) for file in sorted(folder.glob("results/mine/trials/*/said"))]


@pytest.mark.slow
def test_a_trial_computes_the_same_in_a_fork_and_in_a_program_of_its_own(tmp_path: Path) -> None:
    found = []
    for preload in ("auto", "false"):
        folder = tmp_path / preload
        folder.mkdir()
        text = FUNCTION.replace('run"}', f'run", preload: {preload}}}')
        found.append([row.curve["loss"].tolist() for row in trained(function_in(folder, NOISY, text), folder)])
    forks, programs = found
    assert len(forks) == 4
    assert len({tuple(curve) for curve in forks}) == 4
    assert forks == programs


def test_each_fork_begins_in_a_clean_state(tmp_path: Path) -> None:
    script = writes(
        '[len(seen), os.environ.get("LEFT"), getattr(np, "left", None), os.getcwd(), threading.active_count()]',
        before="seen = []\n",
    ).replace("    for step", '    seen.append(1)\n    os.environ["LEFT"] = "1"\n    np.left = 1\n    for step')
    assert said_by(function_in(tmp_path, script), tmp_path) == [[0, None, None, str(tmp_path), 1]] * 4


def test_generators_that_nobody_seeds_differ_between_forks(tmp_path: Path) -> None:
    said = said_by(function_in(tmp_path, writes("[random.random(), float(np.random.rand())]")), tmp_path)
    assert len({first for first, _ in said}) == len({second for _, second in said}) == 4


def test_modules_to_preload_are_imported_once_and_the_functions_own_in_each_fork(tmp_path: Path) -> None:
    (tmp_path / "slow_library.py").write_text('open("library", "a").write("x")\n')
    script = writes("1", before='import slow_library\nopen("own", "a").write("x")\n')
    text = FUNCTION.replace('run"}', 'run", preload: [slow_library]}')
    assert said_by(function_in(tmp_path, script, text), tmp_path) == [1] * 4
    assert (tmp_path / "library").read_text() == "x"
    assert (tmp_path / "own").read_text() == "xxxx"


@pytest.mark.slow
def test_where_a_module_has_started_a_thread_each_trial_is_a_program_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        'import threading, time\nopen("library", "a").write("x")\n'
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    script = writes("[threading.active_count(), sys.orig_argv[-1]]", before="import threaded\n")
    text = FUNCTION.replace('run"}', 'run", preload: [threaded]}')
    assert said_by(function_in(tmp_path, script, text), tmp_path) == [[2, "mine_function:run"]] * 4
    assert (tmp_path / "library").read_text() == "x" * 5


@pytest.mark.slow
def test_a_script_with_arguments_can_be_preloaded_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nimport torch\nx = torch.tensor(1.0)\nfor step in range(int(sys.argv[2])):\n"
        '    print("step", step, "loss", x.item())\n    x -= float(sys.argv[1]) * x\n'
        'open("left", "a").write(f"{__name__} {sys.argv[0]} {sys.path[0]}\\n")\nsys.exit(0)\n'
    )
    text = FUNCTION.replace('python: "mine_function:run"', 'command: "python train.py {lr} {steps}", preload: [torch]')
    rows = trained(function_in(tmp_path, "", text), tmp_path)
    assert [row.status for row in rows] == ["finished"] * 4
    assert rows[0].curve["loss"].tolist() == pytest.approx([0.9**step for step in range(12)], rel=1e-5)
    assert (tmp_path / "left").read_text() == f"__main__ train.py {tmp_path}\n" * 4


def test_a_file_that_a_script_leaves_open_is_complete(tmp_path: Path) -> None:
    script = writes("1").replace(
        "    for step", '    global kept\n    kept = open("kept", "a")\n    kept.write("whole")\n    for step'
    )
    said_by(function_in(tmp_path, script), tmp_path)
    assert (tmp_path / "kept").read_text() == "whole" * 4


def test_a_daemon_that_a_fork_has_forked_ends_with_its_trial(tmp_path: Path) -> None:
    script = writes("os.getpid()").replace(
        "    for step",
        "    import time\n    if os.fork() == 0:\n        os.setsid()\n"
        '        open("daemon", "a").write(f"{os.getpid()} ")\n'
        "        time.sleep(1000)\n    for step",
    )
    said_by(function_in(tmp_path, script), tmp_path)
    daemons = [int(word) for word in (tmp_path / "daemon").read_text().split()]
    assert len(daemons) == 4
    assert not any(map(is_alive, daemons))


def test_when_the_process_that_forks_is_killed_its_trial_is_lost_and_the_next_one_gets_another(tmp_path: Path) -> None:
    script = writes("1").replace(
        "report(step", 'open("steps", "a").write("x"); threading.Event().wait(0.2); report(step'
    )
    sweep = function_in(tmp_path, script)
    pack = only_pack(sweep, tmp_path)
    pack = replace(pack, launch=replace(pack.launch, report_s=0.05))
    reports = []
    for report in run_pack(pack):
        reports.append(report)
        if report.traces and report.ending is None and trial_process._running:
            (server,) = trial_process._running.values()
            os.kill(server._process.pid, signal.SIGKILL)
    assert isinstance(reports[-1].ending, Lost)
    assert "SIGKILL" in reports[-1].error
    assert next(iter(run_pack(pack))).ending is None
    *_, last = run_pack(pack)
    assert [result.trial_id for result in last.finished] == pack.trial_ids


def test_closing_the_server_leaves_no_process(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    trained(function_in(tmp_path, writes("1")), tmp_path)
    deadline = time.monotonic() + 600
    while (left := set(psutil.Process().children(recursive=True)) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    with LedgerReader(tmp_path / "results/mine/ledger.db") as ledger:
        assert {row.status for row in ledger.trials()} == {"finished"}


def test_losses_that_nobody_read_before_a_kill_are_said_to_be_missing_from_the_resumed_curve(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\nsaved = os.path.join(sys.argv[1], 'saved')\nfirst = 25 * os.path.exists(saved)\n"
        'for step in range(first, 60):\n    print(f"step {step} | loss {3 - step / 100}", flush=True)\n'
        "    while step == 19 and not os.path.exists('on'):\n        time.sleep(0.01)\n"
        "    if step == 24:\n        open(saved, 'w').close()\n        time.sleep(1000)\n"
    )
    text = SWEEP.replace(
        '"{lr}", "{steps}", "{seed}"]', '"{folder}", "{lr}", "{seed}"]\n  resume: {checkpoint: "{folder}/saved"}'
    )
    pack = only_pack(sweep_in(tmp_path, script, text), tmp_path)
    reports = run_pack(replace(pack, launch=replace(pack.launch, report_s=0.1)))
    while next(reports).member_steps < 20:
        pass
    (tmp_path / "on").touch()  # five more losses and a checkpoint, which no report asks for
    while not any(tmp_path.glob("trials/*/saved")):
        time.sleep(0.01)
    reports.close()
    (result,) = list(run_pack(pack))[-1].finished
    assert (result.outcome, result.steps_done) == ("stable", 60)
    assert "55 losses for 60 steps, without the losses between steps 19 and 25" in result.reason
