"""The cheapest remedy of each unstable cell of a real sweep: forks from the latest step back, until one saves."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_cases import sweep_of

import orchestrator
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.causes.remedies import training
from orchestrator.causes.remedies.latest_first import find_cell_remedies, region_to_remedy
from orchestrator.causes.remedies.reading import forks_folder
from orchestrator.causes.remedies.training import Asked, find_remedies
from orchestrator.ledger.reader import LedgerReader

# Gradient descent on a quadratic of curvature up to 1 is stable below lr = 2. Half of 3 is, and half of 30 is not.
REGION = """
axes: {lr: {values: [0.5, 3.0, 30.0]}, warmup: {values: [0, 40]}}
fixed: {optimizer: sgd, beta1: 0.0}
tracking: {enabled: false}
"""
HEAD = "name: region\nobjective: quadratic\nsteps: 80\n"
ASKED = Asked(("lr=x0.5",), ("0", "-5", "onset"), 2, pairs=False, of_each_cell=True)


@pytest.fixture
def region(train: Callable, tmp_path: Path) -> Path:
    """The folder of a sweep with two stable cells and four that are not."""
    train(sweep_of(REGION, HEAD))
    return tmp_path / "region"


def test_a_cell_is_forked_earlier_only_where_nothing_saves_it_later(region: Path) -> None:
    found = find_cell_remedies(region, {}, ASKED)
    cells = {(one.trial.cell["lr"], one.trial.cell["warmup"]): one for one in found.cells}
    assert list(cells) == [(3.0, 0), (3.0, 40), (30.0, 0), (30.0, 40)]
    assert [one.cheapest is not None for one in cells.values()] == [True, True, False, False]
    saved, unsaved = cells[3.0, 0], cells[30.0, 40]
    assert saved.cheapest is not None
    assert saved.fork_steps == (saved.onset,), "the onset was late enough, so no earlier step was tried"
    assert saved.cheapest.saved == 2
    assert unsaved.onset is not None
    assert unsaved.fork_steps == tuple(sorted({0, unsaved.onset - 5, unsaved.onset})), "every step was tried"
    assert (saved.num_forks, unsaved.num_forks) == (3, 4), "what fails with the trial's own data gets no other data"
    assert all(one.control_repeats for one in found.cells)
    assert found.by_kind == {"lr": (2, 2)}


def test_the_same_question_trains_nothing_twice_and_one_about_a_trial_finds_the_forks(
    region: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = find_cell_remedies(region, {"lr": 3.0}, ASKED)
    assert len(first.cells) == 2
    trained, run_sweep = [], training.run_sweep

    def counted(*arguments, **options):
        summary = run_sweep(*arguments, **options)
        trained.append(summary.trained)
        return summary

    monkeypatch.setattr(training, "run_sweep", counted)
    assert find_cell_remedies(region, {"lr": 3.0}, ASKED) == first
    assert sum(trained) == 0
    cell = first.cells[0]
    alone = find_remedies(region, cell.trial.trial_id, {}, Asked(ASKED.tried, ("onset",), 2, pairs=False))
    assert alone.cheapest == cell.cheapest
    assert alone.harms, "the cost on a stable neighbour is measured for a trial that is asked about"
    assert sum(trained) == 2, "the control of the neighbour, and the remedy there"


def test_the_command_line_and_python_give_the_same_answer(region: Path, command_line: Callable, tmp_path: Path) -> None:
    arguments = ["region", "--results", str(tmp_path), "--each-cell", "--replicates", "1", "--try", "lr=x0.5,x0.01"]
    code, printed = command_line("remedy", *arguments, "--json", str(tmp_path / "answer.json"))
    assert code == 0
    assert "cell 4 of 4, lr=30,warmup=40: training" in printed
    found = orchestrator.load(region).remedies(tried=["lr=x0.5", "lr=x0.01"], replicates=1)
    lines = [line for line in str(found).splitlines() if line]
    assert [line for line in printed.splitlines() if line in lines] == lines
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert [one["cheapest"] for one in answer["cells"]] == [one.cheapest.remedy.name for one in found.cells]
    assert {one["cheapest"] for one in answer["cells"] if one["cell"]["lr"] == 30.0} == {"lr x0.01"}
    assert (region / "remedies.png").read_bytes().startswith(b"\x89PNG")
    with open(region / "remedies.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial_id"] for row in rows] == list(found.table["trial_id"])
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
    def names(asked: Asked) -> set[str]:
        found = training.to_remedy(region, None, {"lr": "3", "warmup": "40"})
        return {fork.remedy.name for fork in training.single_forks(region, found, asked)}

    few, usual = names(Asked(of_each_cell=True)), names(Asked())
    assert few < usual
    assert few >= {"no change", "lr x0.5", "lr x0.1", "lr 0.5", "reset moments"}
    assert {"lr x0.25", "zclip 2.5"} <= usual - few


def test_what_one_cell_does_not_take_is_left_out_there(region: Path) -> None:
    asked = Asked(("lr=0.5",), ("20",), 1, pairs=False, of_each_cell=True)
    with pytest.raises(InputError, match="no such field"):
        region_to_remedy(region, {}, Asked(("lr=0.5", "rate=x0.5"), of_each_cell=True))
    assert all(one.fork_steps == (20,) for one in find_cell_remedies(region, {"lr": 3.0}, asked).cells)
    early = Asked(("lr=0.5",), ("-50",), 1, pairs=False, of_each_cell=True)
    assert [one.fork_steps for one in find_cell_remedies(region, {"lr": 3.0}, early).cells] == [(), (8,)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trial", "0"], "--each-cell: is about all unstable cells, and --trial about one"),
        (["--cell", "lr=0.5"], "none of its 2 known cells is unstable: there is nothing to remedy"),
        (["--cell", "lr=7"], "no cell has 7"),
        (["--at", "90"], "outside of the run"),
        (["--at", "soon"], "is neither a step"),
        (["--try", "rate=x0.5"], "no such field"),
        (["--try", "lr=y"], "is not a number"),
        (["--executor", "none"], "'none' is unknown"),
        (["--output", "map.txt"], "has an ending that is no format"),
    ],
)
def test_what_no_cell_can_answer_is_refused_before_anything_trains(
    region: Path, command_line: Callable, tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, printed = command_line("remedy", "region", "--results", str(tmp_path), "--each-cell", *arguments)
    assert code == 2
    assert words in printed
    assert "remedy:" in printed
    assert not (region / "remedies").exists()


def test_a_stopped_question_says_so_and_leaves_the_last_picture(
    region: Path, command_line: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["remedy", "region", "--results", str(tmp_path), "--each-cell", "--try", "lr=x0.5", "--at", "0"]
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
    assert "stopped; the same command goes on" in printed
    assert (region / "remedies.png").read_bytes() == before
    assert len(json.loads((tmp_path / "answer.json").read_text())["cells"]) == 1
