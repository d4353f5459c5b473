"""A sweep whose trials train the same tokens in different numbers of steps."""

from __future__ import annotations

from pathlib import Path

from sweep_cases import ledger_at, map_ledger

from orchestrator.answers.plan import PlanQuery
from orchestrator.base.files import LEDGER
from orchestrator.driver.progress import Progress
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

BATCHES = """
name: batches
objective: gpt
tokens: 256
axes:
  batch_size: {values: [1, 2, 4]}
  lr: {values: [0.01, 0.02]}
fixed: {context: 8, width: 4, heads: 1, depth: 1, warmup: 25%, validation_batches: 1}
telemetry: {every: null}
resources: {pack: 2}
tracking: {enabled: false}
"""


def batches() -> Sweep:
    return build_sweep(parse_document(BATCHES, "batches.yaml"))


def test_every_trial_trains_its_own_number_of_steps(train, rows) -> None:
    assert train(batches()).exit_code == 0
    found = rows("batches")
    assert {(row.cell["batch_size"], row.steps, row.steps_done) for row in found} == {
        (1, 32, 32),
        (2, 16, 16),
        (4, 8, 8),
    }


def test_the_plan_says_how_many_steps_the_tokens_are(tmp_path: Path) -> None:
    lines = PlanQuery().ask((batches(), tmp_path)).lines()
    assert lines[0] == "sweep:    batches (gpt, 256 tokens)"
    assert lines[1] == "steps:    8 .. 32, the tokens over batch times context, to the nearest step"


def test_the_steps_that_are_left_are_those_of_each_trial() -> None:
    sweep = batches()
    trials = {trial.trial_id: trial for trial in sweep.trials}
    progress = Progress(sweep, trials, dict.fromkeys(trials, "planned"), {}, 6, lambda: 0.0, 0.0)
    assert progress.steps_left == 2 * (32 + 16 + 8)
    progress.statuses[sweep.trials[0].trial_id] = "finished"
    assert progress.steps_left == 32 + 2 * (16 + 8)


def test_slow_trials_are_compared_with_those_of_their_own_length(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, batches(), ["stable", "diverged", "stable", "stable", "stable", "pruned"])
    with LedgerReader(tmp_path / LEDGER) as reader:
        assert [len(reader.reference_trials(steps)) for steps in (32, 16, 8, 10)] == [1, 2, 2, 0]
