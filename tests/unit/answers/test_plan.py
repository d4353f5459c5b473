from dataclasses import replace
from pathlib import Path

from custom_cases import SWEEP, sweep_in
from sweep_cases import search_with, sweep_of, sweep_with

from objectives.base import ExecutionPlan
from orchestrator.answers.plan import PlanQuery
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.machine import PlanChoice


def plan(sweep: Sweep, results: Path) -> list[str]:
    return PlanQuery().ask((sweep, results)).lines()


def test_a_search_says_how_many_trials_it_may_train_and_how_many_come_first(tmp_path: Path, train) -> None:
    lines = plan(search_with(), tmp_path)
    assert "trials:   at most 24, chosen while results come in; 4 cells come first" in lines
    assert any(line.startswith("to train: 4 trials") for line in lines)
    train(search_with())
    lines = plan(search_with(), tmp_path)
    assert "exists:   24 finished" in lines
    assert "time:     none, there is nothing to train" in lines


def test_limits_of_the_budget_are_shown(tmp_path: Path) -> None:
    lines = plan(sweep_with("budget.trials=5", "budget.minutes=1.5"), tmp_path)
    assert "budget:   trials 5, minutes 1.5, over all runs" in lines
    assert not [line for line in plan(sweep_with(), tmp_path) if line.startswith("budget")]


def test_pruning_by_the_loss_where_settings_are_compared_by_a_score_is_said(tmp_path: Path) -> None:
    slow = "stopping: {slow: {method: median}}\n"
    score = SWEEP.replace('"{seed}"]', '"{seed}"]\n  metrics: {score: {name: f1, maximize: true}}') + slow
    (said,) = [line for line in plan(sweep_in(tmp_path, text=score), tmp_path) if line.startswith("slow:")]
    assert said.endswith("by f1")
    assert not [line for line in plan(sweep_in(tmp_path, text=SWEEP + slow), tmp_path) if line.startswith("slow:")]


def test_a_merge_of_more_states_than_the_steps_have_is_said(tmp_path: Path) -> None:
    def said(*sets: str) -> list[str]:
        return [line for line in plan(sweep_with("steps=60", *sets), tmp_path) if line.startswith("merge:")]

    (line,) = said("fixed.merge_last=100")
    assert "merge_last = 100" in line
    assert "60 steps have 6 states" in line
    (line,) = said("fixed.merge_last=2", "fixed.merge_every=50")
    assert "60 steps have 1 state," in line
    assert not said("fixed.merge_last=6")
    assert not said()


def test_structures_that_train_in_one_way_share_a_line(tmp_path: Path) -> None:
    answer = PlanQuery().ask((sweep_with(), tmp_path))
    choice = answer.result.choices[0]
    repeated = replace(answer, result=replace(answer.result, choices=[choice] * 3))
    (line,) = [line for line in repeated.lines() if line.startswith("way:")]
    assert line.endswith("(3 structures)")


def test_structures_that_train_in_different_ways_are_named(tmp_path: Path) -> None:
    answer = PlanQuery().ask((sweep_with(), tmp_path))
    choices = [PlanChoice(ExecutionPlan(1), reason) for reason in ("4 at a time", "1 at a time")]
    structures = ("width 16", "width 32", "width 48", "width 64")
    named = replace(answer, result=replace(answer.result, choices=(*choices, None, None), structures=structures))
    first, second, unknown = [line for line in named.lines() if line.startswith("way:")]
    assert first == "way:      width 16: 4 at a time"
    assert second == "way:      width 32: 1 at a time"
    assert unknown.startswith("way:      measured when")
    assert unknown.endswith("(2 structures)")


def test_a_structure_is_named_by_the_axes_that_set_it_apart(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {lr: {values: [0.1, 1.0]}, dimension: {values: [8, 16]}}\n")
    assert PlanQuery().ask((sweep, tmp_path)).result.structures == ("dimension 8", "dimension 16")
