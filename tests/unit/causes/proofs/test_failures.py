"""Which forks about a cause count as failed."""

import math
from pathlib import Path

import numpy as np
import pytest
from diagnosis_cases import Case, calm, row_of
from sweep_cases import ledger_at

from orchestrator.base.intervals import fisher
from orchestrator.causes.mechanisms.limits import JUMP_REACH
from orchestrator.causes.mechanisms.removal import Removal
from orchestrator.causes.proofs.training import AFTERMATH, Failures, outlasting

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


@pytest.mark.parametrize(
    ("outcome", "shift", "has_failed"),
    [
        ("diverged", 100, False), ("diverged", 100 - JUMP_REACH, False), ("diverged", 99 - JUMP_REACH, True),
        ("diverged", None, True), ("spiked", 100, True),
    ],
)  # fmt: skip
def test_a_fork_that_comes_back_from_a_change_of_the_text_is_not_lost_as_its_trial_was(
    outcome: str, shift: int | None, has_failed: bool, tmp_path: Path
) -> None:
    original = calm(outcome, 100, {"shift_at": shift})
    with ledger_at(tmp_path) as trained:
        failures = Failures(trained, original.evidence())
        assert failures.failed(row_of("spiked", 100), REMOVAL) is has_failed
        assert failures.failed(row_of("diverged", 100), REMOVAL)


@pytest.mark.parametrize(
    ("fork", "controls", "until"),
    [
        (90, (95, 100), 100 + AFTERMATH),
        (90, (400, 700), 700 + 610),  # as long again as the last one took
        (90, (95, None), math.inf),  # it may still fail
        (90, (40, 120), math.inf),  # before the fork
        (90, (), math.inf),
    ],
)
def test_a_fork_must_outlast_those_with_the_mechanism_by_as_long_again_and_may_fail_later(
    fork: int, controls: tuple[int | None, ...], until: float, tmp_path: Path
) -> None:
    rows = [row_of("stable", None) if onset is None else row_of("spiked", onset) for onset in controls]
    with ledger_at(tmp_path) as trained:
        failures, removal = Failures(trained, calm("spiked", 100).evidence()), Removal(fork, ())
        assert failures.until(rows, removal) == until
        if until < math.inf:
            assert failures.failed(row_of("spiked", int(until)), removal, until)
            assert not failures.failed(row_of("spiked", int(until) + 1), removal, until)


@pytest.mark.parametrize("mean", [5, 50, 300, 1000])
def test_forks_that_are_all_alike_confirm_a_cause_in_at_most_one_of_twenty_runs(mean: float) -> None:
    """Onsets 1,000 steps long, exponential after the fork: whatever time the last of the controls sets."""
    onset_RN = np.random.default_rng(0).exponential(mean, (2000, 12)).astype(int)
    num_confirmed = 0
    for onset_N in onset_RN.tolist():
        controls = [onset if onset < 1000 else None for onset in onset_N[:6]]
        until = min(outlasting(controls, 0), 999)
        spiked, control_spiked = sum(onset <= until for onset in onset_N[6:]), 6 - controls.count(None)
        num_confirmed += fisher(6 - spiked, 6, 6 - control_spiked, 6) <= 0.05
    assert num_confirmed <= 0.05 * 2000
