"""Validation losses and metrics that a trainer prints beside its training losses."""

from __future__ import annotations

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
