"""What is imported is a loss or a score: by the store, the user or the name, and every answer ranks accordingly."""

import json
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from typer.testing import CliRunner

from orchestrator.api.results import SweepResults, load
from orchestrator.base.errors import InputError
from orchestrator.base.measure import names_a_loss, names_a_score
from orchestrator.cli import app
from orchestrator.importing.collecting import collect, record
from orchestrator.importing.options import ImportOptions, import_options
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.front import front
from orchestrator.maps.gains import best_cell
from orchestrator.maps.importance import importance
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.sensitivity import lr_sensitivity
from orchestrator.maps.table import SweepTable
from orchestrator.render.optuna_study import export_study

HERE = Path("results")
ACCURACY = {1e-4: 0.3, 1e-3: 0.7, 1e-2: 0.93, 1e-1: 0.8, 1.0: 0.1}


def study_at(folder: Path, direction: str | None = "maximize", directions: Any = None, names: Any = None) -> str:
    """A study of ``ACCURACY`` by the learning rate, or of it and of its error."""
    url = f"sqlite:///{folder}/theirs.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.GridSampler({"lr": list(ACCURACY)})
    how = {"directions": directions} if directions else {"direction": direction}
    study = optuna.create_study(storage=url, study_name="theirs", sampler=sampler, **how)
    if names is not None:
        with pytest.warns(optuna.exceptions.ExperimentalWarning):
            study.set_metric_names(names)

    def run(trial: optuna.Trial) -> Any:
        value = ACCURACY[trial.suggest_float("lr", 1e-4, 1.0, log=True)]
        return (1 - value, value) if directions else value

    study.optimize(run, n_trials=5)
    return f"optuna:{url}#theirs"


def brought_in(folder: Path, source: str, **options: Any) -> SweepResults:
    return stored(folder, source, import_options(axis=["lr"], **options))


def stored(folder: Path, source: str, options: ImportOptions) -> SweepResults:
    """The results of an import, whose pictures nobody needs."""
    record(folder / "theirs", "theirs", collect([source], options, folder), replaces=True)
    return load(folder / "theirs")


def table_of(results: SweepResults, function: Any) -> Any:
    return results._of_table(function)


def table_at(folder: Path, text: str) -> str:
    path = folder / "table.csv"
    path.write_text(text)
    return str(path)


F1 = "lr,f1\n" + "".join(f"{lr},{value}\n" for lr, value in ACCURACY.items())


@pytest.mark.parametrize("is_study", [True, False])
def test_the_best_cell_is_the_one_with_the_highest_score_in_every_answer(tmp_path: Path, is_study: bool) -> None:
    if is_study:
        results, name = brought_in(tmp_path, study_at(tmp_path), outcome="value"), "value"
    else:
        results, name = brought_in(tmp_path, table_at(tmp_path, F1), outcome="f1", maximize=True), "f1"

    def answers(table: SweepTable) -> None:
        found = recommend(table)
        assert (found.chosen.setting, found.chosen.loss) == ({"lr": 1e-2}, 0.93)
        assert (found.metric, found.maximize) == (name, True)
        assert [candidate.loss for candidate in found.candidates] == sorted(ACCURACY.values(), reverse=True)
        members = front(table).members
        assert [member.setting for member in members] == [{"lr": 1e-2}]
        assert {trial.cell["lr"]: trial.lr_health for trial in table.trials} == {
            1e-4: "too slow", 1e-3: "too slow", 1e-2: "right", 1e-1: "oscillating", 1.0: "oscillating",
        }  # fmt: skip
        regrets = {trial.cell["lr"]: trial.lr_regret for trial in table.trials}
        assert regrets == pytest.approx({lr: 0.93 - value for lr, value in ACCURACY.items()})
        assert best_cell({(t.cell, t.seed): t for t in table.trials}, table.measure).cell == {"lr": 1e-2}
        (setting,) = lr_sensitivity(table).settings
        assert (setting.best, setting.value) == (1e-2, pytest.approx(0.93 - sum(ACCURACY.values()) / 5))
        assert importance(table).loss == name
        assert cell_map(table).measure == table.measure
        assert [trial.final_loss for trial in table.trials] == [None] * 5, "a score is not called a loss"

    table_of(results, answers)
    lines = results.recommend().lines()
    assert lines[0] == f"lr=0.01: median {name} 0.93 (higher is better), 1 of 1 seeds stable"
    assert results.front().lines()[0] == f"theirs: high {name} against a wide margin to the edge"
    assert f"{name}: rank of the {name} (higher is better), diverged ones last" in str(results.importance())


def test_a_study_that_minimizes_stays_a_study_of_losses(tmp_path: Path) -> None:
    results = brought_in(tmp_path, study_at(tmp_path, "minimize"), outcome="value")
    assert results.recommend().result.chosen.setting == {"lr": 1.0}
    assert results.trials["final_loss"].notna().all()


def test_of_several_objectives_the_chosen_one_has_its_direction_and_its_name(tmp_path: Path) -> None:
    source = study_at(tmp_path, directions=["minimize", "maximize"], names=["error", "top1"])
    by_score = brought_in(tmp_path, source, outcome="values.1").recommend().result
    assert (by_score.metric, by_score.chosen.setting) == ("top1", {"lr": 1e-2})
    by_loss = brought_in(tmp_path / "loss", source, outcome="values.0").recommend().result
    assert (by_loss.metric, by_loss.chosen.setting) == ("final_loss", {"lr": 1e-2})


def test_an_option_that_contradicts_the_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contradicts the study, which maximizes value"):
        brought_in(tmp_path, study_at(tmp_path), outcome="value", maximize=False)


def test_studies_with_other_directions_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    sources = [study_at(tmp_path), study_at(tmp_path / "b", "minimize")]
    with pytest.raises(InputError, match="optimises something else"):
        collect(sources, import_options(axis=["lr"], outcome="value"), HERE)


SCORES = ("f1", "F1", "val_acc", "accuracy", "eval/accuracy", "top1_acc", "auc", "roc_auc", "mAP", "map50", "bleu",
          "BLEU-4", "rougeL", "rouge1", "mean_reward", "episodic_return", "score", "meanReward", "mIoU")  # fmt: skip
LOSSES = ("loss", "val/loss", "final_loss", "bpb", "bits_per_byte", "perplexity", "mse", "reward_loss", "score_loss",
          "map_loss", "valLoss", "word error rate", "nll", "cross_entropy")  # fmt: skip
UNCLEAR = ("value", "metric", "result", "landmark", "remapped", "scorecard_id")


def test_names_of_scores_and_of_losses_are_known() -> None:
    assert [name for name in (*SCORES, *LOSSES, *UNCLEAR) if names_a_score(name)] == [*SCORES]
    assert [name for name in (*SCORES, *LOSSES, *UNCLEAR) if names_a_loss(name)] == [*LOSSES]


@given(st.text())
def test_any_name_is_at_most_one_of_both(name: str) -> None:
    assert not (names_a_score(name) and names_a_loss(name))


@pytest.mark.parametrize("name", [*SCORES, *UNCLEAR])
def test_a_column_that_may_be_a_score_is_asked_about(tmp_path: Path, name: str) -> None:
    source = table_at(tmp_path, F1.replace("f1", name))
    with pytest.raises(InputError, match="say --maximize if more is better, or --minimize if less is") as asked:
        brought_in(tmp_path, source, outcome=name)
    assert name in str(asked.value)
    found = brought_in(tmp_path, source, outcome=name, maximize=False)
    assert found.recommend().result.chosen.setting == {"lr": 1.0}
    assert brought_in(tmp_path, source, outcome=name, maximize=True).recommend().result.chosen.loss == 0.93


def test_what_is_said_to_be_a_loss_needs_no_direction_unless_its_name_says_otherwise(tmp_path: Path) -> None:
    source = table_at(tmp_path, F1.replace("f1", "value"))
    assert brought_in(tmp_path, source, outcome="value", diverged_above=0.9).recommend().result.metric == "final_loss"
    assert brought_in(tmp_path / "b", source, loss="value").recommend().result.metric == "final_loss"
    with pytest.raises(InputError, match="--loss: f1 is the name of a score, not of a loss"):
        brought_in(tmp_path / "c", table_at(tmp_path, F1), loss="f1")


def test_scores_beside_labels_and_with_a_start(tmp_path: Path) -> None:
    text = "lr,end,acc,chance\n0.1,ok,0.9,0.1\n0.2,ok,0.4,0.1\n0.3,nan,0.1,0.1\n"
    mapping = tmp_path / "map.yaml"
    mapping.write_text("axes: {lr: lr}\noutcome: end\nloss: acc\nmaximize: true\ninitial_loss: chance\n"
                       "map: {stable: [ok], diverged: [nan]}\n")  # fmt: skip
    trials = stored(tmp_path, table_at(tmp_path, text), import_options(mapping)).trials
    assert trials["score"].tolist() == [0.9, 0.4, 0.1]
    assert trials["learned_share"].tolist() == pytest.approx([1.0, 0.3 / 0.8, 0.0])
    assert load(tmp_path / "theirs").map()["state"].tolist() == ["stable", "degraded", "diverged"]


def test_zeros_and_ones_are_scores_if_the_direction_is_said(tmp_path: Path) -> None:
    source = table_at(tmp_path, "lr,success\n0.1,0\n0.2,1\n")
    with pytest.raises(InputError, match="labels that are not outcomes"):
        brought_in(tmp_path, source, outcome="success")
    assert brought_in(tmp_path, source, outcome="success", maximize=True).recommend().result.chosen.loss == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"outcome": "f1", "maximize": True, "diverged_above": 0.5}, "--diverged-above: applies to losses, and f1 is"),
        ({"outcome": "state", "maximize": True}, "--maximize: says what is better, but only labels are imported"),
        ({"step": "lr", "loss": "f1"}, "--loss: f1 is the name of a score, and the detector judges losses"),
        ({"step": "lr", "loss": "value_loss"}, "--loss: value_loss rises while an agent learns, since its targets do"),
        ({"step": "lr", "loss": "f1", "maximize": True}, "--maximize: applies to a table with a run in each row"),
        ({"outcome": "loss", "validation_loss": "f1"}, "--validation-loss: f1 is the name of a score, not of a loss"),
    ],
)
def test_a_score_where_only_losses_have_a_meaning_is_refused(tmp_path: Path, options: dict, says: str) -> None:
    source = table_at(tmp_path, "lr,f1,state,loss\n1,0.5,stable,2\n2,0.6,stable,3\n")
    with pytest.raises(InputError, match=says):
        collect([source], import_options(axis=["lr"], **options), HERE)


def test_a_chart_of_a_score_is_no_curve_of_a_loss(tmp_path: Path) -> None:
    source = table_at(tmp_path, "Step,lr: 0.1 - val/acc,lr: 0.2 - val/acc\n" + "".join(f"{i},1,1\n" for i in range(9)))
    with pytest.raises(InputError, match="val/acc is the name of a score"):
        collect([source], import_options(axis=["lr"], step="Step", loss="val/acc"), HERE)
    found = collect([source], import_options(axis=["lr"], step="Step", loss="val/acc", maximize=False), HERE)
    assert len(found.runs) == 2


def test_the_folder_of_runs_and_the_experiment_ask_too(tmp_path: Path) -> None:
    for source in (str(tmp_path), "mlflow:theirs"):
        with pytest.raises(InputError, match="accuracy is the name of a score"):
            collect([source], import_options(axis=["lr"], loss="accuracy"), tmp_path)


def test_the_command_asks_with_the_column_and_the_options(tmp_path: Path) -> None:
    source = table_at(tmp_path, F1)
    arguments = ["import", source, "--name", "t", "--axis", "lr", "--outcome", "f1", "--results", str(tmp_path)]
    asked = CliRunner().invoke(app, arguments)
    assert isinstance(asked.exception, InputError)
    assert "say --maximize if more is better" in str(asked.exception)
    done = CliRunner().invoke(app, [*arguments, "--maximize", "--json", str(tmp_path / "found.json")])
    assert done.exit_code == 0, done.output
    assert "settings are compared by f1: higher is better" in done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["maximize"], found["judged_by"], found["columns"]["score"]) == (True, "final scores", "f1")
    again = CliRunner().invoke(app, [*arguments, "--maximize"])
    assert "nothing to do" in again.output
    as_loss = CliRunner().invoke(app, [*arguments, "--minimize"])
    assert "holds 5 other runs" in str(as_loss.exception), "another direction is another import"


def test_a_study_that_is_exported_keeps_the_direction(tmp_path: Path) -> None:
    brought_in(tmp_path, table_at(tmp_path, F1), outcome="f1", maximize=True)
    path = export_study(tmp_path / "theirs")
    study = optuna.load_study(study_name="theirs", storage=f"sqlite:///{path}")
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.metric_names == ["f1", "not_stable"]
    assert [trial.values[0] for trial in study.trials] == [*ACCURACY.values()]


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6, unique=True))
def test_a_score_ranks_as_the_negative_loss(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    folder = tmp_path_factory.mktemp("ranks")
    frame = pd.DataFrame({"lr": [2.0**i for i in range(len(values))], "up": values, "down": [-v for v in values]})
    frame.to_csv(folder / "table.csv", index=False)
    chosen = []
    for column, maximize in (("up", True), ("down", False)):
        results = brought_in(folder / column, str(folder / "table.csv"), outcome=column, maximize=maximize)
        found = results.recommend().result
        health = [(row.lr_health, row.lr_regret) for row in table_of(results, lambda table: table.trials)]
        chosen.append(([candidate.setting for candidate in found.candidates], health))
    assert chosen[0] == chosen[1]
