"""Budgets that end a run before its last trial."""

from pathlib import Path
from types import SimpleNamespace

from sweep_cases import ledger_at, map_ledger, numbers, search_with, sweep_with

from orchestrator.answers.plan import PlanQuery
from orchestrator.base.files import LEDGER
from orchestrator.driver.progress import Budget, Progress
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.sections import BudgetConfig
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document


def test_a_budget_of_trials_is_kept_and_a_larger_one_goes_on(train, rows) -> None:
    summary = train(sweep_with("budget.trials=5", "resources.pack=2"))
    assert (summary.trained, summary.used_up, summary.exit_code) == (5, "budget.trials = 5", 0)
    assert [row.status for row in rows("edge")].count("finished") == 5
    assert train(sweep_with("budget.trials=5", "resources.pack=2")).trained == 0
    assert train(sweep_with("budget.trials=50", "resources.pack=2")).trained == 7
    train(sweep_with("name=calm"))
    assert numbers(rows("edge")) == numbers(rows("calm"))


def test_a_budget_of_steps_ends_the_run_and_the_rest_follows_under_a_larger_one(train, rows) -> None:
    summary = train(sweep_with("budget.member_steps=100", "resources.pack=2"))
    assert summary.used_up == "budget.member_steps = 100"
    done = [row.status for row in rows("edge")].count("finished")
    assert 0 < done < 12
    assert train(sweep_with("budget.member_steps=100", "resources.pack=2")).trained == 0
    assert train(sweep_with("resources.pack=2")).used_up is None
    train(sweep_with("name=calm"))
    assert numbers(rows("edge")) == numbers(rows("calm"))


def test_minutes_count_over_all_runs(train) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 5.0
        return now[0]

    budget = ("budget.minutes=3", "resources.pack=1")
    summary = train(sweep_with(*budget), clock=clock, wall_clock=clock)
    assert summary.used_up == "budget.minutes = 3"
    again = train(sweep_with(*budget), clock=clock, wall_clock=clock)
    assert again.used_up == "budget.minutes = 3"
    assert again.trained <= summary.trained


def test_after_a_time_nothing_is_started(train, rows) -> None:
    assert train(sweep_with("budget.until=2001-01-01T00:00")).used_up == "budget.until = 2001-01-01T00:00"
    assert {row.status for row in rows("edge")} == {"planned"}
    assert train(sweep_with("budget.until=2901-01-01T00:00")).used_up is None


def test_hours_of_gpus_are_hours_of_packs_times_their_gpus() -> None:
    now = [0.0]
    before = [SimpleNamespace(member_steps=0, seconds=7200.0)]
    ledger = SimpleNamespace(packs=lambda: before, training_seconds=lambda: 0.0, statuses=dict)
    budget = Budget(BudgetConfig(gpu_hours=2.5), 0.5, ledger, lambda: 0.0)
    progress = Progress(search_with(), {}, {}, {}, 0, lambda: now[0], 0.0)
    now[0] = 1800.0
    assert not budget.is_used_up(progress, 4), "one hour before, and one of 4 half GPUs for half an hour"
    now[0] = 2700.0
    assert budget.is_used_up(progress, 4)
    assert budget.used_up == "budget.gpu_hours = 2.5"


def test_a_search_stops_at_its_budget_too(train, rows) -> None:
    summary = train(search_with("budget.trials=10"))
    assert (summary.used_up, [row.status for row in rows("sought")].count("finished")) == ("budget.trials = 10", 10)
    assert train(search_with()).exit_code == 0
    assert len(rows("sought")) == 24


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
