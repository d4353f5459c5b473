"""A trainer that adds up losses and also prints at its first step: its trials together show that none blew up."""

from pathlib import Path

import pytest
from custom_cases import sweep_in

from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.replay import replay_sweep
from orchestrator.maps.table import read_table

SUMS = """
import math, random, sys
lr, divisor = float(sys.argv[1]), float(sys.argv[2])
noise, total = random.Random(0), 0.0
for step in range(1500):
    loss = (2 + 8 * math.exp(-step * min(lr, 1) / 300)) * (1 + 0.05 * noise.gauss(0, 1))
    total += loss if lr < 10 or step < 600 else 300.0
    if step % 10 == 0:
        print(f"step {step} | loss {total / (divisor if step else min(10, divisor)):.4f}")
        total = 0.0
"""
# It prints its loss before its first update, and all rates blow up at it.
BLOWS_UP = """
import random, sys
noise = random.Random(float(sys.argv[1]))
for step in range(0, 1500, 10):
    print(f"step {step} | loss {5.0 if step == 0 else 45 + noise.gauss(0, 2):.4f}")
"""
FILE = """
name: mine
objective: {command: [python, train.py, "{lr}", "10"]}
steps: 1500
seeds: [0]
axes: {lr: {values: [0.1, 0.3, 1, 10]}}
tracking: {enabled: false}
"""


def mapped(
    folder: Path, script: str, values: str = "[0.1, 0.3, 1, 10]"
) -> list[tuple[str, str, float | None, int | None]]:
    sweep = sweep_in(folder, script, FILE.replace("[0.1, 0.3, 1, 10]", values))
    run_sweep(sweep, folder / "results", InlineExecutor)
    with LedgerReader(folder / "results" / "ledger.db") as ledger:
        return [
            (trial.outcome, trial.reason, trial.initial_loss, trial.steps_done) for trial in read_table(ledger).trials
        ]


def test_a_partial_sum_that_begins_all_trials_is_left_out_and_what_follows_is_judged(tmp_path: Path) -> None:
    found = mapped(tmp_path, SUMS)
    assert [outcome for outcome, *_ in found] == ["stable"] * 3 + ["diverged"], found
    for _, reason, initial, _ in found:
        assert "is a sum over fewer steps, as at all learning rates" in reason
        assert initial == pytest.approx(10, rel=0.1)
    *healthy, lost = (steps_done for *_, steps_done in found)
    assert healthy == [1491] * 3, "they were not stopped"
    assert lost < 1491


def test_a_replay_stops_where_the_sweep_did(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, SUMS, FILE)
    run_sweep(sweep, tmp_path / "results", InlineExecutor)
    with LedgerReader(tmp_path / "results" / "ledger.db") as ledger:
        again = replay_sweep(ledger, sweep.stopping)
    assert [trial.new_steps_done for trial in again] == [trial.steps_done for trial in again]
    assert [trial.new_outcome for trial in again] == [trial.outcome for trial in again]


def test_two_learning_rates_show_too_little(tmp_path: Path) -> None:
    assert [outcome for outcome, *_ in mapped(tmp_path, SUMS, "[0.1, 0.3]")] == ["diverged"] * 2


def test_a_blow_up_at_all_learning_rates_after_which_nothing_learns_is_one(tmp_path: Path) -> None:
    found = mapped(tmp_path, BLOWS_UP)
    assert [outcome for outcome, *_ in found] == ["diverged"] * 4, found
    assert not any("fewer steps" in reason for _, reason, *_ in found)
