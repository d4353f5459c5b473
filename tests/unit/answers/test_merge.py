"""Merging the trials of a sweep that kept its states."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pack_cases import SMALL
from sweep_cases import sweep_with_keys

from orchestrator import load
from orchestrator.answers.merge import MergeAnswer, MergeQuery
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table

LATER = [{"at": 6, "set": {"lr": "x0.5"}}]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trials of three learning rates and two seeds, forks of one trial, of one with experts, and two widths."""
    folder = tmp_path_factory.mktemp("results")
    axes: dict[str, dict[str, Any]] = {
        "rates": {"lr": {"values": [0.003, 0.01, 0.03]}},
        "forks": {"interventions": {"values": [[], LATER]}},
        "experts": {"interventions": {"values": [[], [{"at": 6, "data": 1}]]}},
        "widths": {"width": {"values": [8, 16]}},
        "unkept": {"lr": {"values": [0.003, 0.01]}},
    }
    for name, own in axes.items():
        fixed = {key: value for key, value in SMALL["gpt"].items() if key not in own}
        keep = {} if name == "unkept" else {"keep": {"every": 3, "last": 5}}
        fixed |= {} if "lr" in own else {"lr": 0.01}
        fixed |= {"experts": 4, "top_k": 2, "balance": "aux"} if name == "experts" else {}
        sweep = sweep_with_keys(
            name=name, objective="gpt", steps=9, seeds=[0, 1], axes=own, fixed=fixed,
            tracking={"enabled": False}, **keep,
        )  # fmt: skip
        assert run_sweep(sweep, folder / name, InlineExecutor).exit_code == 0
    return folder


def asked(results: Path, name: str, **options: Any) -> MergeAnswer:
    answer = load(name, results).merge(**options)
    assert isinstance(answer, MergeAnswer)
    return answer


@pytest.mark.parametrize("method", ["linear", "task_arithmetic", "greedy"])
def test_trials_of_one_seed_are_merged_and_compared_with_the_best(results: Path, method: str) -> None:
    answer = asked(results, "rates", method=method)
    assert answer.common_start == "their initial weights"
    assert len(answer.trials) == 3
    assert {name.split()[1] for name in answer.used} == {answer.trials[0].name.split()[1]}, "one seed"
    assert answer.best_single.choosing_loss == min(one.choosing_loss for one in answer.trials)
    assert answer.chosen.choosing_loss == min(one.choosing_loss for one in answer.candidates)
    if method == "greedy":
        assert answer.chosen.choosing_loss <= answer.best_single.choosing_loss


def test_forks_are_merged_from_the_last_state_that_they_share(results: Path) -> None:
    answer = asked(results, "forks", along="interventions", method="slerp")
    assert answer.common_start == "their common state of step 6"
    assert [one.name for one in answer.candidates] == ["slerp flat", "slerp per tensor"]


def test_experts_of_trials_with_a_common_past_are_merged_by_their_numbers(results: Path) -> None:
    answer = asked(results, "experts", along="interventions")
    assert answer.common_start == "their common state of step 6"
    with LedgerReader(results / "experts" / LEDGER) as ledger:
        known = {trial.name: trial.validation_loss for trial in ledger.trials()}
    for one in answer.trials:
        assert one.choosing_loss is not None
        assert one.held_out_loss is not None
        assert (one.choosing_loss + one.held_out_loss) / 2 == pytest.approx(known[one.name], rel=1e-6)
    with pytest.raises(InputError, match="have no common past"):
        asked(results, "experts", cells=("interventions=none",))


def test_a_path_runs_from_one_trial_to_the_next_and_has_a_barrier(results: Path) -> None:
    answer = asked(results, "rates")
    assert [(path.first, path.second) for path in answer.paths] == [
        (answer.trials[0].name, answer.trials[1].name), (answer.trials[1].name, answer.trials[2].name),
    ]  # fmt: skip
    for number, path in enumerate(answer.paths):
        ends = [(answer.trials[i].choosing_loss + answer.trials[i].held_out_loss) / 2 for i in (number, number + 1)]
        assert (path.losses[0], path.losses[-1]) == pytest.approx(ends, rel=1e-6)
        line = [(1 - share) * path.losses[0] + share * path.losses[-1] for share in path.shares]
        assert path.barrier == pytest.approx(max(loss - on for loss, on in zip(path.losses, line, strict=True)))
    assert answer.figure().draw("svg").startswith(b"<?xml")


def test_trials_without_a_common_past_are_refused_but_for_their_barrier(results: Path) -> None:
    with pytest.raises(InputError, match="no common past: their seeds are 0, 1"):
        asked(results, "rates", cells=("lr=0.01",))
    answer = asked(results, "rates", cells=("lr=0.01",), anyway=True)
    assert answer.common_start is None
    assert len(answer.paths) == 1
    assert math.isfinite(answer.paths[0].barrier)
    with pytest.raises(InputError, match="these trials have none"):
        asked(results, "rates", cells=("lr=0.01",), anyway=True, method="task_arithmetic")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("widths", {"along": "width"}, "weights of other shapes"),
        ("rates", {"method": "slerp"}, "these are 3"),
        ("rates", {"method": "middle"}, "choose from linear"),
        ("rates", {"cells": ("lr=0.01",), "seed": 1}, "at least two trials"),
        ("rates", {"along": "beta"}, "is not an axis"),
        ("rates", {"cells": ("lr",)}, "--cells: lr: is not AXIS=VALUE"),
        ("unkept", {}, "it kept none"),
    ],
)
def test_what_cannot_be_merged_is_refused(results: Path, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        asked(results, name, **options)


def test_a_seed_that_no_trial_has_is_named_with_the_seeds_there_are(results: Path) -> None:
    with pytest.raises(InputError) as refused:
        asked(results, "rates", seed=9)
    (problem,) = refused.value.problems
    assert (problem.where, problem.remedy) == ("--seed", "the seeds are 0, 1")


def test_a_text_that_is_gone_is_named(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(text: tuple[str, ...], recipe: Any) -> None:
        raise ValueError("text: 'corpus.txt' matches no file")

    monkeypatch.setattr("objectives.models.data.load_corpus", gone)
    monkeypatch.setattr("objectives.models.feed.load_corpus", gone)
    with pytest.raises(InputError, match=r"corpus\.txt"):
        asked(results, "rates")


def test_cells_are_named_one_by_one(results: Path) -> None:
    answer = asked(results, "rates", cells=("lr=0.003", "lr=0.03"), method="slerp", seed=1)
    assert [one.name for one in answer.trials] == ["lr=0.003 seed=1", "lr=0.03 seed=1"]


def test_cells_of_several_seeds_are_merged_of_the_first_that_all_have(results: Path) -> None:
    answer = asked(results, "rates", cells=("lr=0.003", "lr=0.03"))
    assert [one.name for one in answer.trials] == ["lr=0.003 seed=0", "lr=0.03 seed=0"]


def test_the_table_has_a_row_for_each_point_of_each_path(results: Path) -> None:
    answer = asked(results, "rates")
    frame = answer.frame()
    assert frame["loss"].tolist() == [loss for path in answer.paths for loss in path.losses]
    assert frame.groupby("first", sort=False)["share"].count().tolist() == [11, 11]


def with_the_last_changed(results: Path, query: MergeQuery, **changes: Any) -> MergeAnswer:
    """The answer for the rates where the last trial of seed 0 is another, and the others are stable."""
    with LedgerReader(results / "rates" / LEDGER) as ledger:
        table = read_table(ledger)
        last = [trial for trial in table.trials if trial.seed == 0][-1]
        own = {} if "objective" in changes else last.config
        changed = replace(last, **{**changes, "config": {**own, **changes.get("config", {})}})
        trials = [changed if one is last else replace(one, outcome="stable") for one in table.trials]
        return query.ask(replace(table, trials=tuple(trials)))


def test_only_stable_trials_are_merged_if_asked_for(results: Path) -> None:
    for stable, number in ((True, 2), (False, 3)):
        answer = with_the_last_changed(results, MergeQuery(stable=stable, seed=0), outcome="spiked")
        assert len(answer.trials) == number


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "command"}, "it has no held-out text"),
        ({"objective": "function_fit", "config": {"steps": 9}}, "it has no held-out text"),
        ({"config": {"experts": 2, "balance": "loss_free"}}, "not among the weights that are kept"),
        ({"config": {"text": ["tables"]}}, "validated on other text"),
    ],
)
def test_trials_that_no_text_can_compare_are_refused(results: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_the_last_changed(results, MergeQuery(seed=0), **changes)
