"""Which trial is diagnosed, and its cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from diagnosis_cases import (
    PLANTED,
    SWEEP,
    bad_batch,
    calm,
    record_cases,
    row_of,
    sweep_of_text,
)
from sweep_cases import ledger_at, record, sweep_of

from objectives.base import GptConfig
from objectives.models.data import batch_text
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import diagnose, most_typical, rank, trial_by_id
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table


def rows(*outcomes: tuple[str, int | None]) -> list[TrialResult]:
    return [row_of(outcome, onset, trial_id=f"{i:016x}") for i, (outcome, onset) in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("outcomes", "chosen"),
    [
        ([("stable", None), ("spiked", 9), ("spiked", 5), ("diverged", 1)], 2),
        ([("spiked", 9), ("diverged", 7), ("diverged", 3)], 2),
        ([("spiked", 9), ("diverged", 7)], 1),  # as common: the worse
        ([("stalled", None), ("stable", None)], 0),
        ([("stable", None)], None),
    ],
)
def test_the_most_typical_trial_is_the_earliest_of_the_commonest_outcome(outcomes, chosen: int | None) -> None:
    found = most_typical(rows(*outcomes))
    assert (None if found is None else int(found.trial_id, 16)) == chosen


def test_a_trial_is_found_by_its_id_or_as_much_of_it_as_is_unique() -> None:
    two = [row_of("stable", trial_id="abc1"), row_of("stable", trial_id="abd2"), row_of("stable", trial_id="ab")]
    assert trial_by_id(two, "abc").trial_id == "abc1"
    assert trial_by_id(two, "ab").trial_id == "ab", "a whole id is one, though others begin so"
    for beginning, says in (("a", "3 trial ids start with it"), ("x", "no such trial"), ("", "no such trial")):
        with pytest.raises(InputError, match=says):
            trial_by_id(two, beginning)
    with pytest.raises(InputError, match="it is running"):
        trial_by_id([row_of(None, trial_id="q", status="running")], "q")


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_leads_and_nothing_else_is_named(name: str) -> None:
    found = rank(PLANTED[name]().evidence(), "sweep", "it was asked for")
    assert (found.cause.mechanism, found.along) == (name, ())


def test_clipping_that_is_never_active_does_not_lead() -> None:
    case = calm("diverged", 300, {"clip": 100.0}, steps_done=360)
    found = rank(case.evidence(), "sweep", "it was asked for")
    assert (found.cause, [finding.mechanism for finding in found.along]) == (None, ["clipping_inactive"])


def test_a_batch_is_named_by_the_data_that_rollbacks_have_moved_on_to(tmp_path: Path) -> None:
    """Back from step 100 over 7 batches: step 200 trains on the batch of step 207."""
    text = SWEEP.replace("fixed: {", "fixed: {rollback: 7, ")
    case = bad_batch()
    rolled_back_N = (case.trace["step"] == 100).astype(float)
    cases = [case.with_trace(rolled_back=rolled_back_N), *[None] * (len(sweep_of_text(text).trials) - 1)]
    folder = record_cases(tmp_path, sweep_of_text(text), cases)
    with LedgerReader(folder / LEDGER) as ledger:
        trial = ledger.trials()[0]
        found = diagnose(read_table(ledger), trial.trial_id)
    config = GptConfig.model_validate_json(json.dumps(trial.config))
    assert found is not None
    assert found.evidence.batch_text(100) == batch_text(config, trial.seed, 100)
    assert found.evidence.batch_text(200) == batch_text(config, trial.seed, 207)


def test_a_cell_next_to_one_is_not_another_one(tmp_path: Path) -> None:
    body = "axes: {beta2: {values: [0.9999, 0.99999, 0.66274]}}\n"
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(body), ["stable", "diverged", "spiked"])
        of = {
            written: diagnose(read_table(ledger), cell={"beta2": written}).trial.cell["beta2"]
            for written in ("0.9999", "0.66")
        }
    assert of == {"0.9999": 0.9999, "0.66": 0.66274}
