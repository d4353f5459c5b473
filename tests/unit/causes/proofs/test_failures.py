"""Which forks about a cause count as failed."""

from pathlib import Path

import pytest
from diagnosis_cases import Case, calm, row_of
from sweep_cases import ledger_at

from orchestrator.causes.mechanisms.removal import Removal
from orchestrator.causes.proofs.training import Failures

REMOVAL = Removal(90, ())
COLLAPSED = {"collapsed_step": 40}


@pytest.mark.parametrize(
    ("original", "outcome", "changes", "has_failed"),
    [
        (calm("stable", **COLLAPSED), "stable", COLLAPSED, True),
        (calm("stable", **COLLAPSED), "spiked", {}, True),
        (calm("stable", **COLLAPSED), "stable", {}, False),
        (calm("diverged", 100), "stalled", {}, True),
        (calm("diverged", 100), "stable", {}, False),
    ],
)
def test_a_fork_fails_as_its_trial_did_or_worse(
    original: Case, outcome: str, changes: dict, has_failed: bool, tmp_path: Path
) -> None:
    with ledger_at(tmp_path) as trained:
        failures = Failures(trained, original.evidence())
        assert failures.failed(row_of(outcome, 0 if outcome != "stable" else None, **changes), REMOVAL) is has_failed
