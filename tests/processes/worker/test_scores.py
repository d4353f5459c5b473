"""A trainer whose settings are compared by a score: a return, an accuracy, bits per byte."""

from pathlib import Path

import pytest
from custom_cases import SWEEP, sweep_in, trained
from sweep_cases import refusal

from orchestrator.api.results import load
from orchestrator.base.errors import InputError
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.mirrors.records import trial_record
from orchestrator.search.by_optuna import _distribution
from orchestrator.search.protocol import CellResult, SeedResult
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

# The loss is the lowest at lr 1, the return the highest at lr 0.1. The last steps of a return are noisy.
TRAIN = """
import sys
lr, steps, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
x = 2.0 + 0.1 * seed
for step in range(steps):
    print(f"step {step} | loss {x * x / 2 + 1:.9g}", flush=True)
    if step % 2 == 0:
        print(f"episode done, return [{100 - 9 * x * x - 100 * (lr > 0.5):.6f}], bpb {1 + lr}", flush=True)
    x -= lr * x
"""
SCORE = r"score: {name: return, pattern: 'return \[(\S+)\]', maximize: true}"
TEXT = SWEEP.replace('"{seed}"]', f'"{{seed}}"]\n  metrics: {{{SCORE}}}')


def test_every_answer_compares_by_the_score(tmp_path: Path) -> None:
    rows = trained(sweep_in(tmp_path, TRAIN, TEXT), tmp_path)
    results = load(tmp_path / "results/mine")
    found = results.recommend(margin=1.0)
    assert found.result.chosen.setting == {"lr": 0.1}
    assert found.lines()[0].startswith("lr=0.1: median return ")
    assert "(higher is better)" in found.lines()[0]
    losses = {row.cell["lr"]: row.final_loss for row in rows}
    assert losses[1.0] == pytest.approx(losses[0.1], abs=1e-3)
    assert results.recommend(margin=1.0, metric="final_loss").result.metric == "final_loss"
    assert results.recommend(margin=1.0, metric="return").result.metric == "return"
    x = 2.0 * 0.9**58
    assert rows[0].score == pytest.approx(100 - 9 * (x / 0.9**1) ** 2, abs=1.0), "the median of the last tenth"
    assert rows[0].initial_score == pytest.approx(100 - 36)
    trials = {(trial.cell["lr"], trial.seed): trial for trial in results._of_table(lambda table: table.trials)}
    assert trials[0.1, 0].lr_health == "right" or trials[0.1, 0].lr_health == "unknown"
    assert trials[1.0, 0].lr_health == "oscillating", "a higher return is at a lower learning rate"
    assert trials[1.0, 0].learned_share == pytest.approx(0, abs=3)
    assert results.map()["median_score"].notna().any()


@pytest.mark.parametrize(("score", "name"), [(SCORE, "return"), (SCORE.replace("name: return, ", ""), "score")])
def test_a_tracker_gets_the_curve_of_the_score(tmp_path: Path, score: str, name: str) -> None:
    row = trained(sweep_in(tmp_path, TRAIN, TEXT.replace(SCORE, score)), tmp_path)[0]
    with LedgerReader(tmp_path / "results/mine/ledger.db") as ledger:
        record = trial_record(ledger, ledger.trial(row.trial_id), "auto", {}, "mine")
    points = {point.step: point.value for point in record.points if point.name == name and point.step > 0}
    assert points[58] == pytest.approx(100 - 9 * (2.0 * 0.9**58) ** 2, abs=1e-4)
    assert max(points) == 58
    assert [point.value for point in record.points if point.name == "score"][-1] == pytest.approx(row.score)


def test_the_direction_is_the_sweeps_and_changing_it_trains_nothing(tmp_path: Path) -> None:
    trained(sweep_in(tmp_path, TRAIN, TEXT), tmp_path)
    down = sweep_in(tmp_path, TRAIN, TEXT.replace("maximize: true", "maximize: false"))
    rows = trained(down, tmp_path)
    assert [row.num_attempts for row in rows] == [1] * len(rows)
    with LedgerReader(tmp_path / "results/mine/ledger.db") as ledger:
        assert not read_table(ledger).measure.maximize


def test_without_a_pattern_it_is_read_by_its_name_and_less_may_be_better(tmp_path: Path) -> None:
    text = TEXT.replace(SCORE, "score: {name: bpb, maximize: false}")
    trained(sweep_in(tmp_path, TRAIN, text), tmp_path)
    lines = load(tmp_path / "results/mine").recommend(margin=1.0).lines()
    assert lines[0].startswith("lr=0.1: median bpb 1.1 (lower is better), 2 of 2 seeds stable")


def test_a_score_that_was_never_printed_is_said(tmp_path: Path) -> None:
    rows = trained(sweep_in(tmp_path, TRAIN, TEXT.replace(SCORE, "score: {name: f1, maximize: true}")), tmp_path)
    assert "never printed: f1" in rows[0].reason
    with pytest.raises(InputError, match="no trial has a value of 'f1'"):
        load(tmp_path / "results/mine").recommend()


def test_a_function_reports_it_by_name(tmp_path: Path) -> None:
    (tmp_path / "score_function.py").write_text(
        "def run(config, report):\n    for step in range(config['steps']):\n"
        "        report(step, loss=3 - step / 100, accuracy=step * config['lr'])\n"
    )
    text = (
        'name: mine\nobjective: {python: "score_function:run", metrics: {score: {name: accuracy, maximize: true}}}\n'
        "steps: 30\naxes: {lr: {values: [0.1, 0.2]}}\n"
    )
    trained(sweep_in(tmp_path, "", text), tmp_path)
    results = load(tmp_path / "results/mine")
    assert results.trials["score"].tolist() == [pytest.approx(2.8), pytest.approx(5.6)]
    assert results.recommend().result.chosen.setting == {"lr": 0.2}


def test_a_run_ends_once_its_score_has_stopped_improving(tmp_path: Path) -> None:
    train = TRAIN.replace("100 - 9 * x * x", "min(step, 20)").replace("x -= lr * x", "import time; time.sleep(0.03)")
    text = TEXT.replace("steps: 60", "steps: 4000") + "stopping: {validation_patience: 5}\n"
    rows = trained(
        sweep_in(tmp_path, train, text.replace("[0.1, 1.0, 3.0]", "[0.1]").replace("[0, 1]", "[0]")), tmp_path
    )
    (row,) = rows
    assert row.plateau_step == 30
    assert row.steps_done < 4000
    assert "at step 30 5 scores in a row had not been the best" in row.reason


def test_what_a_trainer_prints_besides_has_a_direction_only_where_it_is_said(tmp_path: Path) -> None:
    trained(sweep_in(tmp_path, TRAIN, TEXT.replace(SCORE, "also: [bpb, f1]")), tmp_path)
    results = load(tmp_path / "results/mine")
    for question, options in ((results.recommend, {"metric": "bpb"}), (results.front, {"against": "bpb"})):
        with pytest.raises(InputError, match="nothing says whether more of 'bpb' is better"):
            question(**options)
    best = {maximize: results.recommend(1.0, "bpb", maximize=maximize).result.chosen for maximize in (False, True)}
    assert {maximize: chosen.setting["lr"] for maximize, chosen in best.items()} == {False: 0.1, True: 1.0}
    up, down = (results.front(against="bpb", maximize=maximize).result for maximize in (True, False))
    assert (up.is_high, down.is_high) == (True, False)
    with pytest.raises(InputError, match="no trial has a value of 'f1'"):
        results.recommend(metric="f1", maximize=True)
    with pytest.raises(InputError, match="--maximize: is for a metric that a trainer printed"):
        results.recommend(metric="final_loss", maximize=True)


SEARCH = "search: {method: tpe, trials: 8, batch: 4}\n"


def test_a_search_looks_for_the_highest_score(tmp_path: Path) -> None:
    text = TEXT.replace("{values: [0.1, 1.0, 3.0]}", "{log: [0.01, 1.9]}").replace("[0, 1]", "[0]") + SEARCH
    sweep = sweep_in(tmp_path, TRAIN, text)
    assert sweep.search.search.metrics == ("score",)
    assert sweep.search.search.maximized == {"score"}
    named = sweep_in(tmp_path, TRAIN, text.replace("batch: 4", "batch: 4, metric: [return, final_loss]"))
    assert named.search.search.metrics == ("score", "final_loss")
    by_score = {score: SeedResult(0, "stable", True, {"score": score}) for score in (1.0, 5.0)}
    seeds = [*by_score.values(), SeedResult(0, "diverged", True, {"score": 9.0})]
    known = [CellResult({"lr": lr}, (seed,)) for lr, seed in zip((0.1, 0.2, 0.3), seeds, strict=True)]
    search = sweep.search.search
    (penalty,) = search._penalties(known)
    found = [search._optuna_trial(result, {"lr": _distribution(search.axes[0])}, [penalty], 0.0) for result in known]
    assert [trial.values for trial in found] == [[-1.0], [-5.0], [-1.0]], "a diverged trial is as bad as the worst"
    rows = trained(sweep, tmp_path)
    assert len(rows) == 8
    assert max(row.score for row in rows[4:]) >= max(row.score for row in rows[:4]) - 5


OBJECTIVE = "objective: {command: [python, train.py, '{lr}'], metrics: "
REST = "}\naxes: {lr: {values: [0.1, 1.0]}}\n"
BASE = "name: case\nsteps: 20\n"


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ("{score: {name: f1}}", "objective.metrics.score.maximize: does not say whether more of f1 is better"),
        ("{loss: reward}", "objective.metrics.loss: 'reward' is the name of a score"),
        ("{loss: losses/value_loss}", "objective.metrics.loss: 'losses/value_loss' rises while an agent learns"),
        ("{validation_loss: val_acc}", "objective.metrics.validation_loss: 'val_acc' is the name of a score"),
        ("{score: {pattern: 'return', maximize: true}}", "has no group for the value"),
        ("{score: {pattern: '(', maximize: true}}", "is not a valid regular expression"),
        ("{score: {pattern: '(a)', maximize: true}, format: tensorboard}", "an event file has no lines of text"),
        ("{score: {maximise: true}}", "objective.metrics.score.maximise: unknown key"),
        ("{accuracy: {maximize: true}}", "a metric is score: {name: accuracy, maximize: true}"),
    ],
)
def test_what_does_not_say_enough_is_refused(metrics: str, says: str) -> None:
    assert says in refusal(OBJECTIVE + metrics + REST, BASE)


def test_a_trainer_without_a_score_keeps_its_ids(tmp_path: Path) -> None:
    made = build_sweep(parse_document(BASE + OBJECTIVE + "{}" + REST, str(tmp_path / "case.yaml")))
    assert "score" not in made.trials[0].config["metrics"]
