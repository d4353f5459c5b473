"""Forks of a real trial beyond its edge: what saves it, what does not, and that nothing is trained twice."""

import base64
import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from diagnosis_cases import row_of
from remedy_cases import find_cell_remedies, find_remedies
from sweep_cases import sweep_of

import orchestrator
from objectives.models import quadratic
from orchestrator.answers.remedy import RemedyAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.causes.remedies import training
from orchestrator.causes.remedies.cells import KindCount
from orchestrator.causes.remedies.forking import fork_sweep
from orchestrator.causes.remedies.reading import current_remedies, forks_folder, same_curve
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.causes.remedies.results import Remedies
from orchestrator.causes.remedies.training import diagnose_unstable, region_to_remedy
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.pages.answers import diagnosis as asked_for_diagnosis
from orchestrator.pages.answers import diagnosis_html, remedy_picture
from orchestrator.pages.data import report_data
from orchestrator.render.remedies import remedies_figure

# Gradient descent on a quadratic of curvature up to 1 is stable below lr = 2: 3 is beyond, which the warmup reaches
# after two thirds of its steps, and half of it is not.
BEYOND = """
axes: {lr: {values: [0.5, 3.0]}}
fixed: {optimizer: sgd, beta1: 0.0, warmup: 40}
tracking: {enabled: false}
"""
HEAD = "name: beyond\nobjective: quadratic\nsteps: 80\n"
pytestmark = pytest.mark.usefixtures("small_pictures")
REQUEST = RemedyRequest(("lr=x0.5", "lr=x0.99"), ("0", "-5"), 2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweeps of this module, each trained once."""
    folder = tmp_path_factory.mktemp("trained")
    run_sweep(sweep_of(BEYOND, HEAD), folder / "beyond", InlineExecutor)
    run_sweep(sweep_of(REGION, REGION_HEAD), folder / "region", InlineExecutor)
    return folder


@pytest.fixture
def beyond(trained: Path, tmp_path: Path) -> Path:
    """The folder of a sweep with a stable trial and one that is not."""
    return Path(shutil.copytree(trained / "beyond", tmp_path / "beyond"))


def tallied(found: Remedies) -> dict[tuple[str, int], tuple[int, int]]:
    return {(one.remedy.name, one.fork_step): (one.saved, one.tried) for one in found.tallies}


def test_half_the_learning_rate_saves_a_run_beyond_the_edge_and_hardly_less_does_not(beyond: Path) -> None:
    found = find_remedies(beyond, None, {}, REQUEST)
    counts = tallied(found)
    assert found.control_repeats is True
    assert counts["lr x0.5", 0] == (2, 2)
    assert counts["lr x0.99", 0] == (0, 2)
    assert found.cheapest is not None
    assert found.cheapest.remedy.name == "lr x0.5"
    assert [(one.setting, one.value) for one in found.stable_cells] == [("lr", 0.5)]
    assert {harm.name for harm in found.costs} == {"lr x0.5"}
    assert found.agrees in (True, None)


def test_forks_do_not_inherit_the_url_that_receives_messages(train, tmp_path, monkeypatch) -> None:
    train(sweep_of(f"{BEYOND}notify: {{url_from: NOTIFY_URL}}\n", HEAD))
    seen, start = [], quadratic.start

    def watched(*arguments):
        seen.append(os.environ.get("NOTIFY_URL"))
        return start(*arguments)

    monkeypatch.setattr(quadratic, "start", watched)
    monkeypatch.setenv("NOTIFY_URL", "json://secret")
    find_remedies(tmp_path / "beyond", None, {}, REQUEST)
    assert set(seen) == {None}
    assert os.environ["NOTIFY_URL"] == "json://secret"


def test_the_same_question_trains_nothing_twice_and_another_one_only_what_is_new(beyond: Path) -> None:
    first = find_remedies(beyond, None, {}, REQUEST)

    def started() -> dict[str, float | None]:
        with LedgerReader(forks_folder(beyond, first.trial.trial_id) / LEDGER) as ledger:
            return {row.trial_id: row.started_at for row in ledger.trials(removed=True)}

    before = started()
    assert find_remedies(beyond, None, {}, REQUEST) == first
    assert started() == before
    more = find_remedies(beyond, None, {}, RemedyRequest(("lr=x0.5,x0.25", "lr=x0.99"), ("0", "-5"), 2))
    after = started()
    assert {key: after[key] for key in before} == before
    assert tallied(more).keys() - tallied(first).keys() >= {("lr x0.25", 0)}


def test_pairs_are_tried_where_no_single_remedy_saves_all(beyond: Path) -> None:
    asked = RemedyRequest(("lr=x0.9", "beta1=0.01", "clip=0.5"), ("0",), 1)
    assert any(" + " in name for name in find_remedies(beyond, None, {}, asked).names)
    alone = find_remedies(beyond, None, {}, RemedyRequest(asked.tried, asked.at, 1, pairs=False))
    assert alone.names == ["lr x0.9", "beta1 0.01", "clip 0.5"]


def test_what_is_usual_is_tried_where_nothing_is_asked_for(beyond: Path) -> None:
    found = find_remedies(beyond, None, {}, RemedyRequest(replicates=1, pairs=False))
    names = set(found.names)
    assert {"lr x0.5", "lr x0.25", "reset moments"} <= names
    assert "lr 0.5" in names, "the learning rate of the stable cell beside it"
    assert not [name for name in names if name.startswith(("beta2", "eps", "second moment"))], "sgd has none of them"
    assert not [name for name in names if name.startswith("skip")], "every step sees the same data"
    assert found.fork_steps[0] == 0
    assert found.at("reset moments", 0) is None, "there is no moment before the first step"
    assert found.onset in found.fork_steps


def test_a_value_under_two_names_is_trained_and_counted_once(beyond: Path) -> None:
    found = find_remedies(beyond, None, {}, RemedyRequest(("lr=x0.5,1.5",), ("0",), 1, pairs=False))
    assert (found.names, found.num_tried) == (["lr 1.5"], 1)
    later = find_remedies(beyond, None, {}, RemedyRequest(("lr=x0.5,x0.9",), ("0",), 1, pairs=False))
    assert (later.names, later.num_tried) == (["lr x0.5", "lr x0.9"], 2), "an earlier name of a value does not count"


def test_two_trials_have_the_same_curve_only_if_they_are_equal_bit_for_bit(beyond: Path) -> None:
    with LedgerReader(beyond / LEDGER) as ledger:
        first, second = (ledger.trace(row.trial_id) for row in ledger.trials())
    assert same_curve(first, first)
    assert not same_curve(first, second)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (RemedyRequest(("rate=x0.5",)), "there is no such field"),
        (RemedyRequest(("warmup=5",)), "acts only at the start"),
        (RemedyRequest(("optimizer=1",)), "structural"),
        (RemedyRequest(("clip=x0.5",)), "null"),
        (RemedyRequest(("clip=none",)), "would change nothing: clip is already none"),
        (RemedyRequest(("lr=3,x1",)), "would change nothing: lr is already 3"),
        (RemedyRequest(("lr=x0.5", "skip=5")), "every step sees the same data"),
        (RemedyRequest(("reset=moments",), ("0",)), "no state before its first step"),
        (RemedyRequest(("lr=x0.5",), ("80",)), "outside the run"),
        (RemedyRequest(("lr=x0.5",), replicates=100_000), "more than 5000"),
    ],
)
def test_what_the_trial_does_not_take_is_refused(beyond: Path, asked: RemedyRequest, words: str) -> None:
    with pytest.raises(InputError) as refused:
        find_remedies(beyond, None, {}, asked)
    assert words in str(refused.value)
    assert "remedy:" in str(refused.value)


def test_a_stable_trial_has_nothing_to_remedy(beyond: Path) -> None:
    with pytest.raises(InputError, match="is stable: nothing became unstable"):
        find_remedies(beyond, None, {"lr": "0.5"}, REQUEST)


def test_python_answers_as_the_command_line_does_and_diagnose_shows_it(
    beyond: Path, command_line: Callable, tmp_path: Path
) -> None:
    arguments = ["beyond", "--results", str(tmp_path), "--json", "-", "--fork", "0,-5", "--replicates", "2"]
    code, _ = command_line("diagnose", "beyond", "--results", str(tmp_path))
    assert code == 0
    code, printed = command_line("remedy", *arguments, "--try", "lr=x0.5", "--try", "lr=x0.99")
    assert code == 0
    answer = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    found = orchestrator.load(beyond).remedy(try_=REQUEST.tried, fork=REQUEST.at, replicates=2)
    assert answer["cheapest"] == "lr x0.5"
    assert answer["trial_id"] == found.trial.trial_id
    assert [(one["name"], one["saved"]) for one in answer["remedies"]] == [
        (one.remedy.name, one.saved) for one in found.tallies
    ]
    assert (forks_folder(beyond, found.trial.trial_id) / "remedies.png").is_file()
    assert RemedyAnswer.of(current_remedies(beyond, diagnose_unstable(beyond, None, {}))).to_plain() == answer
    code, printed = command_line("diagnose", "beyond", "--results", str(tmp_path))
    assert code == 0
    assert "remedies, tried on forks of this trial:" in printed
    assert "cheapest: lr x0.5" in printed
    with LedgerReader(beyond / LEDGER) as ledger:
        rows = ledger.trials()
        page, data = diagnosis_html(ledger, found.trial, rows), report_data(read_table(ledger))
        (stable,) = [row for row in rows if row.outcome == "stable"]
        assert remedy_picture(ledger, stable, rows) == ""
    assert '<span class="label">cheapest</span> lr x0.5' in page
    kind, _, content = data["remedy_pictures"][found.trial.trial_id].partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(content) == remedies_figure("png", found.result)
    assert asked_for_diagnosis(beyond, found.trial.trial_id) == {
        "html": page,
        "remedy_picture": f"{kind},{content}",
    }


def test_gc_removes_pictures_of_remedies_and_no_fork(beyond: Path, command_line: Callable, tmp_path: Path) -> None:
    code, _ = command_line("remedy", "beyond", "--results", str(tmp_path), "--fork", "0", "--try", "lr=x0.5")
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


# --- The cheapest remedy of each unstable cell of a real sweep ---


# Gradient descent on a quadratic of curvature up to 1 is stable below lr = 2. Half of 3 is, and half of 30 is not.
REGION = """
axes: {lr: {values: [0.5, 3.0, 30.0]}, warmup: {values: [0, 40]}}
fixed: {optimizer: sgd, beta1: 0.0}
tracking: {enabled: false}
"""
REGION_HEAD = "name: region\nobjective: quadratic\nsteps: 80\n"
EACH_CELL = RemedyRequest(("lr=x0.5",), ("0", "-5", "onset"), 2, pairs=False, each_cell=True)


@pytest.fixture
def region(trained: Path, tmp_path: Path) -> Path:
    """The folder of a sweep with two stable cells and four that are not."""
    return Path(shutil.copytree(trained / "region", tmp_path / "region"))


def test_each_cell_is_forked_from_every_step_and_what_fails_with_its_own_data_gets_no_other(region: Path) -> None:
    found = find_cell_remedies(region, {}, EACH_CELL)
    cells = {(one.trial.cell["lr"], one.trial.cell["warmup"]): one for one in found.cells}
    assert list(cells) == [(3.0, 0), (3.0, 40), (30.0, 0), (30.0, 40)]
    assert [one.cheapest is not None for one in cells.values()] == [True, True, False, False]
    saved, unsaved = cells[3.0, 0], cells[30.0, 40]
    assert saved.cheapest is not None
    assert saved.cheapest.fork_step == saved.onset, "the latest step"
    assert saved.cheapest.saved == 2
    assert unsaved.onset is not None
    assert unsaved.fork_steps == sorted({0, unsaved.onset - 5, unsaved.onset})
    assert (saved.num_forks, unsaved.num_forks) == (3 * len(saved.fork_steps), 2 * len(unsaved.fork_steps))
    assert all(one.control_repeats for one in found.cells)
    assert found.by_kind == {"lr": KindCount(2, 2)}


def test_the_same_question_trains_nothing_twice_and_one_about_a_trial_finds_the_forks(
    region: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = find_cell_remedies(region, {"lr": 3.0}, EACH_CELL)
    assert len(first.cells) == 2
    trained, run_sweep = [], training.run_sweep

    def counted(*arguments, **options):
        summary = run_sweep(*arguments, **options)
        trained.append(summary.trained)
        return summary

    monkeypatch.setattr(training, "run_sweep", counted)
    assert find_cell_remedies(region, {"lr": 3.0}, EACH_CELL) == first
    assert sum(trained) == 0
    cell = first.cells[0]
    alone = find_remedies(region, cell.trial.trial_id, {}, RemedyRequest(EACH_CELL.tried, ("onset",), 2, pairs=False))
    assert alone.cheapest == cell.cheapest
    assert alone.costs == cell.costs, "what is named is tried on stable neighbours, of each cell too"
    assert {harm.name for harm in alone.costs} == {cell.cheapest.name}
    assert sum(trained) == 0


@pytest.mark.slow
def test_the_command_line_and_python_give_the_same_answer(region: Path, command_line: Callable, tmp_path: Path) -> None:
    arguments = ["region", "--results", str(tmp_path), "--replicates", "2", "--try", "lr=x0.5,x0.01"]
    code, printed = command_line("remedies", *arguments, "--json", str(tmp_path / "answer.json"))
    assert code == 0
    assert "cell 4 of 4, lr=30 warmup=40: training" in printed
    found = orchestrator.load(region).remedies(try_=("lr=x0.5", "lr=x0.01"), replicates=2)
    assert set(str(found).splitlines()) <= set(printed.splitlines())
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert [cell["cheapest"] for cell in answer["cells"]] == [cell.cheapest for cell in found.cells]
    assert {one["cheapest"] for one in answer["cells"] if one["cell"]["lr"] == 30.0} == {"lr x0.01"}
    assert (region / "remedies.png").read_bytes().startswith(b"\x89PNG")
    with open(region / "remedies.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial_id"] for row in rows] == list(found.frame()["trial_id"])
    assert [(float(row["lr"]), row["cheapest"]) for row in rows] == [
        (one["cell"]["lr"], one["cheapest"]) for one in answer["cells"]
    ]
    for row in rows:
        assert (forks_folder(region, row["trial_id"]) / "remedies.png").is_file()
    code, printed = command_line("gc", "region", "--exports", "--results", str(tmp_path))
    assert code == 0
    assert not (region / "remedies.png").exists()
    assert not (region / "remedies.csv").exists()
    with LedgerReader(forks_folder(region, rows[0]["trial_id"]) / LEDGER) as ledger:
        assert ledger.trials()


def test_without_a_question_fewer_remedies_are_tried_than_of_one_trial(region: Path) -> None:
    def names(asked: RemedyRequest) -> set[str]:
        found = training.diagnose_unstable(region, None, {"lr": "3", "warmup": "40"})
        return {fork.remedy.name for fork in training.single_forks(region, found, asked)}

    few, usual = names(RemedyRequest(each_cell=True)), names(RemedyRequest())
    assert few < usual
    assert few >= {"no change", "lr x0.5", "lr x0.1", "lr 0.5", "reset moments"}
    assert {"lr x0.25", "zclip 2.5"} <= usual - few


def test_what_one_cell_does_not_take_is_left_out_there(region: Path) -> None:
    asked = RemedyRequest(("lr=0.5",), ("20",), 1, pairs=False, each_cell=True)
    with pytest.raises(InputError, match="no such field"):
        region_to_remedy(region, {}, RemedyRequest(("lr=0.5", "rate=x0.5"), each_cell=True))
    assert all(one.fork_steps == [20] for one in find_cell_remedies(region, {"lr": 3.0}, asked).cells)
    early = RemedyRequest(("lr=0.5",), ("-40",), 1, pairs=False, each_cell=True)
    assert [one.fork_steps for one in find_cell_remedies(region, {"lr": 3.0}, early).cells] == [[], [4]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cell", "lr=0.5"], "none of its 2 known cells is unstable: there is nothing to remedy"),
        (["--cell", "lr=7"], "no cell has 7"),
        (["--fork", "90"], "outside the run"),
        (["--fork", "soon"], "is neither a step"),
        (["--try", "rate=x0.5"], "no such field"),
        (["--try", "lr=y"], "is not a number"),
        (["--executor", "none"], "'none' is unknown"),
        (["--output", "map.doc"], "its ending names no format"),
    ],
)
def test_what_no_cell_can_answer_is_refused_before_anything_trains(
    region: Path, command_line: Callable, tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, printed = command_line("remedies", "region", "--results", str(tmp_path), *arguments)
    assert code == 2
    assert words in printed
    assert "remedy:" in printed
    assert not (region / "remedies").exists()


@pytest.mark.slow
def test_a_stopped_question_says_so_and_leaves_the_last_picture(
    region: Path, command_line: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["remedies", "region", "--results", str(tmp_path), "--try", "lr=x0.5", "--fork", "0"]
    code, _ = command_line(*arguments)
    assert code == 0
    before = (region / "remedies.png").read_bytes()
    real, asked = training.run_sweep, []

    def stopped(*given, **options):
        asked.append(given)
        return replace(real(*given, **options), stopped_by=signal.SIGINT if len(asked) > 3 else None)

    monkeypatch.setattr(training, "run_sweep", stopped)
    code, printed = command_line(*arguments, "--json", str(tmp_path / "answer.json"))
    assert code == 128 + signal.SIGINT
    assert "1 of 4 cells have been tried" in printed
    assert "stopped; the same command continues" in printed
    assert (region / "remedies.png").read_bytes() == before
    assert len(json.loads((tmp_path / "answer.json").read_text())["cells"]) == 1
