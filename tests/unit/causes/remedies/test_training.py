"""Forks of a real trial beyond its edge: what saves it, what does not, and that nothing is trained twice."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from diagnosis_cases import row_of
from sweep_cases import sweep_of

import orchestrator
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.causes.remedies.answer import Remedies
from orchestrator.causes.remedies.answer_text import remedies_json
from orchestrator.causes.remedies.derived import fork_sweep
from orchestrator.causes.remedies.reading import forks_folder, same_curve
from orchestrator.causes.remedies.training import Asked, answer_of, find_remedies, to_remedy
from orchestrator.ledger.reader import LedgerReader
from orchestrator.pages.asked import diagnosis as asked_for_diagnosis
from orchestrator.pages.data import report_data
from orchestrator.pages.diagnoses import diagnosis_text, remedy_picture
from orchestrator.render.remedies import remedies_figure

# Gradient descent on a quadratic of curvature up to 1 is stable below lr = 2: 3 is beyond, which the warmup reaches
# after two thirds of its steps, and half of it is not.
BEYOND = """
axes: {lr: {values: [0.5, 3.0]}}
fixed: {optimizer: sgd, beta1: 0.0, warmup: 40}
tracking: {enabled: false}
"""
HEAD = "name: beyond\nobjective: quadratic\nsteps: 80\n"
ASKED = Asked(("lr=x0.5", "lr=x0.99"), ("0", "-5"), 2)


@pytest.fixture
def beyond(train: Callable, tmp_path: Path) -> Path:
    """The folder of a sweep with a stable trial and one that is not."""
    train(sweep_of(BEYOND, HEAD))
    return tmp_path / "beyond"


def tallied(found: Remedies) -> dict[tuple[str, int], tuple[int, int]]:
    return {(one.remedy.name, one.fork_step): (one.saved, one.tried) for one in found.tallies}


def test_half_the_learning_rate_saves_a_run_beyond_the_edge_and_hardly_less_does_not(beyond: Path) -> None:
    found = find_remedies(beyond, None, {}, ASKED)
    counts = tallied(found)
    assert found.control_repeats is True
    assert counts["lr x0.5", 0] == (2, 2)
    assert counts["lr x0.99", 0] == (0, 2)
    assert found.cheapest is not None
    assert found.cheapest.remedy.name == "lr x0.5"
    assert [(one.setting, one.value) for one in found.beside] == [("lr", 0.5)]
    assert {harm.name for harm in found.harms} == {"lr x0.5"}
    assert found.agrees in (True, None)


def test_the_same_question_trains_nothing_twice_and_another_one_only_what_is_new(beyond: Path) -> None:
    first = find_remedies(beyond, None, {}, ASKED)

    def started() -> dict[str, float | None]:
        with LedgerReader(forks_folder(beyond, first.trial.trial_id) / LEDGER) as ledger:
            return {row.trial_id: row.started_at for row in ledger.trials(removed=True)}

    before = started()
    assert find_remedies(beyond, None, {}, ASKED) == first
    assert started() == before
    more = find_remedies(beyond, None, {}, Asked(("lr=x0.5,x0.25", "lr=x0.99"), ("0", "-5"), 2))
    after = started()
    assert {key: after[key] for key in before} == before
    assert tallied(more).keys() - tallied(first).keys() >= {("lr x0.25", 0)}


def test_pairs_are_tried_where_no_single_remedy_saves_all(beyond: Path) -> None:
    asked = Asked(("lr=x0.9", "beta1=0.01", "clip=0.5"), ("0",), 1)
    assert any(" + " in name for name in find_remedies(beyond, None, {}, asked).names)
    alone = find_remedies(beyond, None, {}, Asked(asked.tried, asked.at, 1, pairs=False))
    assert alone.names == ["lr x0.9", "beta1 0.01", "clip 0.5"]


def test_what_is_usual_is_tried_where_nothing_is_asked_for(beyond: Path) -> None:
    found = find_remedies(beyond, None, {}, Asked(replicates=1, pairs=False))
    names = set(found.names)
    assert {"lr x0.5", "lr x0.25", "reset moments"} <= names
    assert "lr 0.5" in names, "the learning rate of the stable cell beside it"
    assert not [name for name in names if name.startswith(("beta2", "eps", "second moment"))], "sgd has none of them"
    assert not [name for name in names if name.startswith("skip")], "every step sees the same data"
    assert found.fork_steps[0] == 0
    assert found.at("reset moments", 0) is None, "there is no moment before the first step"
    assert found.onset in found.fork_steps


def test_a_control_with_another_curve_is_said_not_to_repeat(beyond: Path) -> None:
    find_remedies(beyond, None, {}, ASKED)
    found = to_remedy(beyond, None, {})
    with LedgerReader(beyond / LEDGER) as ledger:
        stable = next(row.trial_id for row in ledger.trials() if row.outcome == "stable")
        unstable = found.trial.trial_id
        assert same_curve(ledger, unstable, ledger, unstable)
        assert not same_curve(ledger, unstable, ledger, stable)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(("rate=x0.5",)), "there is no such field"),
        (Asked(("warmup=5",)), "acts only at the start"),
        (Asked(("optimizer=1",)), "structural"),
        (Asked(("clip=x0.5",)), "null"),
        (Asked(("clip=none",)), "would change nothing: clip is none already"),
        (Asked(("lr=3,x1",)), "would change nothing: lr is 3 already"),
        (Asked(("lr=x0.5", "skip=5")), "every step sees the same data"),
        (Asked(("reset=moments",), ("0",)), "no state before its first step"),
        (Asked(("lr=x0.5",), ("80",)), "outside of the run"),
        (Asked(("lr=x0.5",), replicates=100_000), "more than 5000"),
    ],
)
def test_what_the_trial_does_not_take_is_refused(beyond: Path, asked: Asked, words: str) -> None:
    with pytest.raises(InputError) as refused:
        find_remedies(beyond, None, {}, asked)
    assert words in str(refused.value)
    assert "remedy:" in str(refused.value)


def test_a_stable_trial_has_nothing_to_remedy(beyond: Path) -> None:
    with pytest.raises(InputError, match="is stable: there is nothing to remedy"):
        find_remedies(beyond, None, {"lr": "0.5"}, ASKED)


def test_python_answers_as_the_command_line_does_and_diagnose_shows_it(
    beyond: Path, command_line: Callable, tmp_path: Path
) -> None:
    arguments = ["beyond", "--results", str(tmp_path), "--json", "-", "--at", "0,-5", "--replicates", "2"]
    code, _ = command_line("diagnose", "beyond", "--results", str(tmp_path))
    assert code == 0
    code, printed = command_line("remedy", *arguments, "--try", "lr=x0.5", "--try", "lr=x0.99")
    assert code == 0
    answer = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    found = orchestrator.load(beyond).remedy(tried=ASKED.tried, at=ASKED.at, replicates=2)
    assert answer["cheapest"] == "lr x0.5"
    assert answer["trial_id"] == found.trial.trial_id
    assert [(one["name"], one["saved"]) for one in answer["remedies"]] == [
        (one.remedy.name, one.saved) for one in found.tallies
    ]
    assert (forks_folder(beyond, found.trial.trial_id) / "remedies.png").is_file()
    assert remedies_json(answer_of(beyond, to_remedy(beyond, None, {}))) == remedies_json(found)
    code, printed = command_line("diagnose", "beyond", "--results", str(tmp_path))
    assert code == 0
    assert "remedies, tried on forks of this trial:" in printed
    assert "cheapest: lr x0.5" in printed
    with LedgerReader(beyond / LEDGER) as ledger:
        rows = ledger.trials()
        page, data = diagnosis_text(ledger, found.trial, rows), report_data(ledger)
        (stable,) = [row for row in rows if row.outcome == "stable"]
        assert remedy_picture(ledger, stable, rows) == ""
    assert "cheapest: lr x0.5" in page
    kind, _, content = data["remedy_pictures"][found.trial.trial_id].partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(content) == remedies_figure(found, "png")
    assert asked_for_diagnosis(beyond, found.trial.trial_id) == {
        "text": page,
        "remedy_picture": f"{kind},{content}",
    }


def test_gc_removes_pictures_of_remedies_and_no_fork(beyond: Path, command_line: Callable, tmp_path: Path) -> None:
    code, _ = command_line("remedy", "beyond", "--results", str(tmp_path), "--at", "0", "--try", "lr=x0.5")
    assert code == 0
    (folder,) = (beyond / "remedies").iterdir()
    assert (folder / "remedies.png").is_file()
    code, _ = command_line("gc", "beyond", "--exports", "--results", str(tmp_path))
    assert code == 0
    assert not (folder / "remedies.png").exists()
    assert (folder / LEDGER).is_file()


def test_a_trial_whose_trainer_does_not_resume_is_refused(tmp_path: Path) -> None:
    row = row_of("diverged", 5, objective=CUSTOM_KINDS[0])
    with pytest.raises(InputError, match="does not say how it resumes"):
        fork_sweep(tmp_path, row, [])
