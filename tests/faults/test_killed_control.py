"""SIGKILL while rules act: the sweep goes on, and ends with the results and firings of one that nobody disturbed."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from fault_kit import (
    SWEEP,
    assert_sound,
    is_training,
    results_of,
    run,
    start,
    undisturbed_results,
    wait_until,
    write_sweep,
)

from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader

KILLS = 6
# Rules with ramps, cool-downs and several readings in a row, so that a kill falls into any of them.
CONTROL = """
  control:
    values:
      - []
      - [{on: curvature, above: 0.2, readings: 2, do: {lr: x0.5}, every: 7, at_most: 4, cool_down: 150, over: 90}]
      - [{on: loss, above: 1, do: [{skip: 3}, {clip_to_quantile: 0.5}, {lr: x0.5}], every: 40, after: 20, at_most: 9}]
"""


def fired_of(folder: Path) -> dict[str, Any]:
    with LedgerReader(folder / "results" / "edge" / LEDGER) as ledger:
        return {row.trial_id: row.fired for row in ledger.trials()}


@pytest.mark.slow
def test_a_sweep_with_rules_that_is_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    text = SWEEP.replace("axes:\n", f"axes:{CONTROL}")
    assert text != SWEEP
    (tmp_path / "calm").mkdir()
    calm = undisturbed_results(tmp_path / "calm", text)
    write_sweep(tmp_path, text)
    moments, killed = random.Random(0), 0
    for _ in range(KILLS):
        driver = start(tmp_path, "--executor", "inline")
        wait_until(lambda: is_training(tmp_path) or driver.poll() is not None, "training")  # noqa: B023
        time.sleep(moments.uniform(0.0, 1.5))
        driver.kill()
        driver.communicate()
        if driver.returncode != -signal.SIGKILL:
            break
        killed += 1
        assert_sound(tmp_path)
    assert killed >= 2
    code, output = run(tmp_path, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    assert_sound(tmp_path)
    assert results_of(tmp_path) == calm
    fired = fired_of(tmp_path)
    assert fired == fired_of(tmp_path / "calm")
    assert sum(map(len, fired.values())) > 20
