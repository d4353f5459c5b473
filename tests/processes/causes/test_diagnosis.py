"""A script's sweep is diagnosed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from custom_cases import SWEEP as OWN_SWEEP
from custom_cases import sweep_in

from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor


def test_trials_of_a_trainer_of_ones_own_are_diagnosed_by_their_losses_and_cells(
    tmp_path: Path, command_line: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = sweep_in(tmp_path)
    run_sweep(sweep, tmp_path / "results" / "mine", InlineExecutor)
    code, page = command_line("diagnose", "mine")
    assert code == 0
    assert "cause: step over the threshold from the start" in page
    assert "lr 3 -> 1 at these settings: 2 of 2 seeds stable" in page
    rate = OWN_SWEEP.replace("{lr}", "{rate}").replace("lr: {values: [0.1, 1.0, 3.0]}", "rate: {values: [2.5, 3.0]}")
    run_sweep(sweep_in(tmp_path, text=rate), tmp_path / "results" / "rate", InlineExecutor)
    code, page = command_line("diagnose", "rate")
    assert (code, "not enough evidence" in page, "a custom trainer reports" in " ".join(page.split())) == (
        0,
        True,
        True,
    )
