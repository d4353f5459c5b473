"""A custom trainer whose `Watch` reads the optimizer: its readings are in the ledger, as those of a built-in run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from custom_cases import sweep_in, trained

from orchestrator import load
from orchestrator.ledger.reader import LedgerReader

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
TEXT = """
name: mine
objective:
  command: [python, train.py, "{lr}", "{seed}"]
steps: 60
seeds: [0]
axes: {lr: {values: [0.01]}}
tracking: {enabled: false}
"""
FUNCTION = TEXT.replace('command: [python, train.py, "{lr}", "{seed}"]', 'python: "train:run"')


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
        "script": (SCRIPT, TEXT),
        "function": (
            LOOP + 'def run(config, report):\n    train(report.watch, config["lr"], config["steps"])\n',
            FUNCTION,
        ),
        "resumed": (DYING, TEXT.replace("steps: 60", "  resume: {checkpoint: '{folder}/saved.pt'}\nsteps: 60")),
    }[way]
    (row,) = trained(sweep_in(tmp_path, script, text, allow_import=True), tmp_path)
    assert row.steps_done == 60
    with LedgerReader(tmp_path / "results" / "mine" / "ledger.db") as ledger:
        kept = ledger.telemetry(row.trial_id)
    expected = alone()
    assert kept["step"].tolist() == list(range(0, 60, 5))
    assert set(expected) <= set(kept)
    for name, value_N in expected.items():
        # A resumed run measures its curvature from a cold start.
        if way != "resumed" or not name.startswith(("lambda", "curvature")):
            np.testing.assert_allclose(kept[name], value_N, rtol=1e-6, err_msg=name)
    assert load(tmp_path / "results" / "mine").warn().num_runs == 1
