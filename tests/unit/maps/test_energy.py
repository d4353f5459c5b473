"""The energy of a sweep from the trials that have any."""

import pytest
from sweep_cases import trial_row

from orchestrator.answers.audit import AuditAnswer
from orchestrator.ledger.facts import INTENSITY_FACT
from orchestrator.maps.audit import audit
from orchestrator.maps.energy import energy_of

FACTS = {INTENSITY_FACT: "400.0"}
TRIALS = [
    trial_row(outcome="stable", steps=100, steps_done=100, joules=7200.0),
    trial_row(outcome="diverged", steps=100, steps_done=20, verdict_step=19, joules=1440.0),
    trial_row(outcome="diverged", steps=100, steps_done=30, verdict_step=29),  # measured on no counter
    trial_row(outcome=None, steps=100, steps_done=None),
]


def test_energy_is_of_the_trials_that_were_measured() -> None:
    energy = energy_of(TRIALS, FACTS)
    assert (energy.joules, energy.lost_joules) == (8640.0, 1440.0)
    assert (energy.num_measured, energy.num_finished) == (2, 3)
    assert energy.joules_per_step == pytest.approx(72.0)
    assert energy.grams == pytest.approx(8640 / 3.6e6 * 400)


def test_without_a_counter_or_an_intensity_nothing_is_guessed() -> None:
    assert energy_of(TRIALS[2:], FACTS) is None
    assert energy_of(TRIALS, {}).grams is None
    assert energy_of(TRIALS, {INTENSITY_FACT: "null"}).text(3600.0) == "1 Wh"


def test_an_audit_says_what_diverged_trials_took_and_what_stopping_saved() -> None:
    answer = AuditAnswer("case", audit(TRIALS, None), energy_of(TRIALS, FACTS))
    assert answer.joules_saved == pytest.approx(150 * 72.0)
    assert answer.lines()[-1] == (
        "energy:   diverged trials took 0.4 Wh (0.16 g of CO2) in 2 of 3 finished trials, and stopping saved about "
        "3 Wh (1.2 g of CO2)"
    )
