"""SIGKILL while rules act: the sweep goes on, and ends with the results and firings of one that nobody disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_kit import (
    SWEEP,
    assert_goes_on,
    kill_at_random_moments,
    undisturbed_results,
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
    kill_at_random_moments(tmp_path, 0, KILLS, 1.5)
    assert_goes_on(tmp_path, calm, "--executor", "inline")
    fired = fired_of(tmp_path)
    assert fired == fired_of(tmp_path / "calm")
    assert sum(map(len, fired.values())) > 20
