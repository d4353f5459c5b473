"""Outcomes of a custom trainer while its sweep runs, and after its trials were compared."""

import io
from pathlib import Path

from custom_cases import sweep_in
from rich.console import Console

from orchestrator.api.live_view import LiveView
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor

# It prints every so many steps, and blows up before its first line at the highest rate.
BLOWS_UP = """
import sys
lr = float(sys.argv[1])
start = 60 if lr == 1000 else 15
for step in range(60):
    print(f"step {step} | loss {start - 0.04 * step:.9g}")
"""
FILE = """
name: mine
objective: {command: [python, train.py, "{lr}"]}
steps: 60
axes: {lr: {values: [1, 10, 100, 1000]}}
tracking: {enabled: false}
"""


def test_a_line_of_a_run_says_that_its_outcomes_are_not_compared_yet_and_the_last_one_is_the_map(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("orchestrator.api.live_view._SECONDS_PER_LINE", 0.0)
    output = io.StringIO()
    view = LiveView(Console(file=output, force_terminal=False))
    run_sweep(sweep_in(tmp_path, BLOWS_UP, FILE), tmp_path / "results", InlineExecutor, observers=[view])
    *lines, last = output.getvalue().splitlines()
    assert any("stable 3 | stalled 1 | not compared yet" in line for line in lines)
    assert "stable 3 | diverged 1" in last
    assert "not compared" not in last
