"""What trainers give besides their losses: other metrics, telemetry of a `Watch`, and what a machine has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from custom_cases import SWEEP, sweep_in, trained

from orchestrator.answers.map import MapQuery
from orchestrator.api.results import load
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.table import read_table
from orchestrator.pages.report import export_all
from orchestrator.worker.machine import free_memory

# The training loss falls the fastest at lr 1, the validation loss at lr 0.1: an overfit.
TRAIN = """
import os, sys
lr, steps, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
x = 2.0 + 0.1 * seed
first = 0
if len(sys.argv) > 4:
    first, x = (float(word) for word in open(sys.argv[4]).read().split())
for step in range(int(first), steps):
    print(f"step {step} | loss {x * x / 2 + 1:.9g} | norm {abs(x):.9g}", flush=True)
    if step % 10 == 9:
        print(f"Validation: loss {x * x / 2 + 1.1 + lr:.6f} accuracy {1 / (1 + x * x):.6f}", flush=True)
    x -= lr * x
    if os.path.exists("die") and step == 33:
        open(f"state-{seed}", "w").write(f"{step + 1} {x!r}")
        os.remove("die")
        os.kill(os.getpid(), 9)
"""
TEXT = SWEEP.replace('"{seed}"]', '"{seed}"]\n  metrics: {also: [accuracy]}')


def test_they_are_kept_with_their_steps_and_their_last_values_are_columns_and_map_metrics(tmp_path: Path) -> None:
    sweep, folder = sweep_in(tmp_path, TRAIN, TEXT), tmp_path / "results" / "mine"
    rows = trained(sweep, tmp_path)
    results = load(folder)
    readings = results.telemetry(rows[0].trial_id)
    x = 2.0 * 0.9 ** np.arange(9, 60, 10)
    np.testing.assert_array_equal(readings["step"], np.arange(9, 60, 10))
    np.testing.assert_allclose(readings["validation_loss"], x**2 / 2 + 1.2, atol=1e-6)
    np.testing.assert_allclose(readings["accuracy"], 1 / (1 + x**2), atol=1e-6)
    assert results.trials["accuracy"][0] == pytest.approx(1 / (1 + x[-1] ** 2), abs=1e-6)
    export_all(folder)
    table = pd.read_csv(folder / "map.csv")
    assert table["median_accuracy"][1] == pytest.approx(1.0, abs=1e-6)
    assert results.map()["median_accuracy"].tolist() == pytest.approx(table["median_accuracy"].tolist())
    assert "last value of accuracy that the trainer printed" in (folder / "report.html").read_text()
    picture = results.ask(MapQuery(metric="accuracy")).rendered("svg")
    assert b"median accuracy, last value" in picture


def test_recommend_compares_settings_by_the_validation_loss(tmp_path: Path) -> None:
    trained(sweep_in(tmp_path, TRAIN, TEXT), tmp_path)
    with LedgerReader(tmp_path / "results/mine/ledger.db") as ledger:
        by_default, by_training = recommend(read_table(ledger), 1.0), recommend(read_table(ledger), 1.0, "final_loss")
    assert by_default.metric == "validation_loss"
    assert by_default.chosen.setting == {"lr": 0.1}
    assert by_training.chosen.setting == {"lr": 1.0}


def test_a_trial_that_resumes_keeps_the_readings_of_its_earlier_attempt(tmp_path: Path) -> None:
    text = TEXT.replace("  metrics:", '  resume: {checkpoint: "state-{seed}", arguments: ["state-{seed}"]}\n  metrics:')
    (tmp_path / "die").write_text("")
    text = text.replace("[0.1, 1.0, 3.0]", "[0.1]").replace("[0, 1]", "[0]")
    rows = trained(sweep_in(tmp_path, TRAIN, text), tmp_path)
    assert [(row.status, row.num_attempts) for row in rows] == [("finished", 2)]
    readings = load(tmp_path / "results/mine").telemetry(rows[0].trial_id)
    np.testing.assert_array_equal(readings["step"], np.arange(9, 60, 10))
    assert np.isfinite(readings["accuracy"]).all()


def test_a_function_has_them_too(tmp_path: Path) -> None:
    (tmp_path / "also_function.py").write_text(
        "def run(config, report):\n    for step in range(config['steps']):\n"
        "        report(step, loss=3 - step / 100, accuracy=step / 100)\n"
    )
    text = 'name: mine\nobjective: {python: "also_function:run", metrics: {also: [accuracy]}}\nsteps: 30\n'
    trained(sweep_in(tmp_path, "", f"{text}axes: {{lr: {{values: [0.1, 0.2]}}}}\n"), tmp_path)
    assert load(tmp_path / "results/mine").trials["accuracy"].tolist() == [0.29, 0.29]


LOOP = """
import os, pathlib, signal, sys
import torch
from orchestrator.detection.watch import Watch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
x = torch.linspace(-3, 3, 32)[:, None]

def loss_of_batch():
    return (model(x) - torch.sin(x)).square().mean()

def train(watch, lr, steps, saved=None, dies_at=None):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    first = 0
    if saved is not None and saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optimizer"])
        first, dies_at = state["step"], None
    watch.telemetry(model, optimizer, loss_of_batch, every=5, curvature=10)
    told = []
    for step in range(first, steps):
        if saved is not None and step == 20:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, saved)
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = loss_of_batch()
        loss.backward()
        optimizer.step()
        watch.report(step, loss)
        if step % 5 == 0:
            told.append({"step": float(step), **watch.readings})
    return told
"""
SCRIPT = LOOP + 'watch = Watch()\ntrain(watch, watch.config["lr"], watch.steps)\n'
DYING = SCRIPT.replace("watch.steps)", 'watch.steps, watch.folder / "saved.pt", 33)')
WATCHED = """
name: mine
objective:
  command: [python, train.py, "{lr}", "{seed}"]
steps: 60
seeds: [0]
axes: {lr: {values: [0.01]}}
tracking: {enabled: false}
"""
FUNCTION = WATCHED.replace('command: [python, train.py, "{lr}", "{seed}"]', 'python: "train:run"')


def alone() -> dict[str, np.ndarray]:
    """What a watch reads of the same loop without a sweep, by column.

    In a process of its own: what other tests have loaded into this one changes last bits.
    """
    program = LOOP + "import json\nprint(json.dumps(train(Watch(), 0.01, 60)))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    columns = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in columns}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["script", "function", "resumed"])
def test_the_ledger_has_the_readings_that_the_loop_has_alone(tmp_path: Path, way: str) -> None:
    script, text = {
        "script": (SCRIPT, WATCHED),
        "function": (
            LOOP + 'def run(config, report):\n    train(report.watch, config["lr"], config["steps"])\n',
            FUNCTION,
        ),
        "resumed": (DYING, WATCHED.replace("steps: 60", "  resume: {checkpoint: '{folder}/saved.pt'}\nsteps: 60")),
    }[way]
    (row,) = trained(sweep_in(tmp_path, script, text, allow_import=True), tmp_path)
    assert row.steps_done == 60
    with LedgerReader(tmp_path / "results" / "mine" / "ledger.db") as ledger:
        kept = ledger.telemetry(row.trial_id)
    expected = alone()
    assert kept["step"].tolist() == list(range(0, 60, 5))
    assert set(expected) <= set(kept)
    assert (kept["peak_memory"] > 0).all()
    for name, value_N in expected.items():
        if name == "peak_memory":  # the memory of a process, which is another one here
            continue
        # A resumed run measures its curvature from a cold start.
        if way != "resumed" or not name.startswith(("lambda", "curvature")):
            np.testing.assert_allclose(kept[name], value_N, rtol=1e-6, err_msg=name)
    assert load(tmp_path / "results" / "mine").warn().num_runs == 1


def test_free_memory_is_no_more_than_a_container_leaves() -> None:
    """In a control group of its own with a limit; where there are none, the machine's memory is the limit."""
    group = Path("/sys/fs/cgroup/memory/sweep-memory-test")
    if not (group.parent / "memory.limit_in_bytes").is_file() or not os.access(group.parent, os.W_OK):
        assert 0 < free_memory("cpu") <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return
    group.mkdir(exist_ok=True)
    try:
        (group / "memory.limit_in_bytes").write_text(str(600 * 2**20))
        code = "from orchestrator.worker.machine import free_memory; print(free_memory('cpu'))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )  # fmt: skip
        assert 0 < int(done.stdout) * os.cpu_count() <= 600 * 2**20
    finally:
        group.rmdir()


ODD = """
import torch
from objectives.base import OBJECTIVES
from objectives.base import ExecutionPlan
from orchestrator.worker.machine import prepare_process

prepare_process()
torch.set_num_threads(1)
config = OBJECTIVES["gpt"].config_class(steps=9, width=10, heads=2, context=5, batch_size=3, lr=1e-2)
def losses(seeds):
    trainer = OBJECTIVES["gpt"].start([config] * len(seeds), seeds, "cpu", ExecutionPlan(len(seeds)))
    return [float(trainer.step()["loss"][-1]) for _ in range(9)]
print(losses([4]) == losses([0, 1, 2, 3, 4]) == losses([2, 3, 4]))
"""


@pytest.mark.slow
def test_a_member_of_any_size_trains_alike_whoever_shares_its_pack() -> None:
    """In a process of its own: the setting counts from the first product on."""
    done = subprocess.run([sys.executable, "-c", ODD], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
