"""What the values of an axis gain, as tables of 80 columns."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

import orchestrator
from orchestrator.answers._gains import gains_lines
from orchestrator.base.space import Axis, Cell
from orchestrator.maps.gains import Gains, LowestLoss

AXES = (Axis("lr", "log", (0.1, 1.0)), Axis("beta1", "linear", (0.9,)))
HALF = Gains(
    num_pairs=36, unstable=20, saved=10, saved_interval=(0.3, 0.7), saved_loss=0.5,
    stable=16, harmed=0, harmed_interval=(0.0, 0.19), num_losses=16, loss_change=-0.0123,
    loss_change_interval=(-0.25, 1.5e-4), best=LowestLoss(Cell(lr=0.1, beta1=0.9), 0.0321),
    best_of_base=LowestLoss(Cell(lr=1.0, beta1=0.9), 0.04),
)  # fmt: skip
CHANGES = """
name: changes
objective: function_fit
steps: 40
seeds: [0, 1, 2]
axes:
  lr: {values: [0.1, 1.0]}
  interventions: {values: [[], [{at: 10, set: {lr: x0.5}}], [{at: 10, reset: moments}]]}
"""


def lines_of(*found: tuple[str, Gains]) -> list[str]:
    return list(gains_lines("interventions", "none", found, AXES))


def rows_of(lines: list[str]) -> list[list[str]]:
    """The rows of both tables, without their heads."""
    starts = [i for i, line in enumerate(lines) if line.startswith("interventions ")]
    return [list(itertools.takewhile(bool, lines[start + 1 :])) for start in starts]


def test_a_row_says_what_was_saved_and_harmed_and_what_it_costs() -> None:
    turned, losses = rows_of(lines_of(("lr x0.5 at 10", HALF)))
    assert turned == ["lr x0.5 at 10  10/20  30-70%  0/16   0-19%  -0.012 (-0.25 to +1.5e-4)"]
    assert losses == ["none               -    0.04  lr=1", "lr x0.5 at 10    0.5  0.0321  lr=0.1"]


def test_what_cannot_be_told_is_a_dash() -> None:
    blank = replace(
        HALF, unstable=0, saved=0, saved_interval=None, saved_loss=None, loss_change_interval=None, best=None,
        best_of_base=None,
    )  # fmt: skip
    turned, losses = rows_of(lines_of(("x", blank)))
    assert turned[0].split() == ["x", "-", "0/16", "0-19%", "-0.012", "(-)"]
    assert losses[1].split(maxsplit=3) == ["x", "-", "-", "no cell is stable on every seed"]
    none = replace(blank, stable=0, harmed=0, harmed_interval=None, num_losses=0, loss_change=None)
    assert rows_of(lines_of(("x", none)))[0][0].split() == ["x", "-", "-", "-"]
    assert lines_of() == []


def test_values_are_sorted_by_runs_saved_then_harmed_then_loss() -> None:
    found = {
        "costs": replace(HALF, loss_change=0.5),
        "harms": replace(HALF, harmed=3),
        "saves": replace(HALF, saved=11, harmed=9, loss_change=4.0),
        "half": HALF,
        "untold": replace(HALF, loss_change=None, loss_change_interval=None),
    }
    turned, _ = rows_of(lines_of(*found.items()))
    assert [row.split()[0] for row in turned] == ["saves", "half", "costs", "untold", "harms"]


def test_many_values_with_long_names_fit_80_columns_and_keep_their_names() -> None:
    names = [f"a policy with a name of sixty characters and its number at {i}" for i in range(10)]
    lines = lines_of(*((name, HALF) for name in names))
    assert max(map(len, lines)) <= 80
    assert all(lines.count(name) == 2 for name in names)
    assert len(rows_of(lines)[0]) == 20


def test_a_cell_of_many_axes_goes_on_below_itself() -> None:
    axes = [Axis(f"a_setting_{i}", "linear", (1.5, 2.5)) for i in range(8)]
    best = LowestLoss(Cell((axis.name, 1.5) for axis in axes), 1.0)
    lines = list(gains_lines("clip", "1", [("2", replace(HALF, best=best, best_of_base=best))], axes))
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count(" ".join(f"{axis.name}=1.5" for axis in axes)) == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of three values of interventions: the second saves two of three runs, the third harms three of three."""
    sweep = sweep_of(CHANGES, "")
    outcomes = {
        "none": ("stable", "diverged"),
        "lr x0.5 at 10": ("stable", "stable"),
        "reset moments at 10": ("spiked", "diverged"),
    }
    labels, losses = [], []
    for trial in sweep.trials:
        of_value = list(outcomes.values())[sweep.axes[1].values.index(trial.cell["interventions"])]
        is_high = trial.cell["lr"] == 1.0
        label = of_value[is_high]
        labels.append("diverged" if label == "stable" and is_high and trial.seed == 2 else label)
        losses.append(0.5 * trial.cell["lr"] if len(trial.cell["interventions"]) else trial.cell["lr"])
    path = tmp_path / "results" / "changes"
    with ledger_at(path) as ledger:
        map_ledger(ledger, sweep, labels, losses)
    return path


def test_the_command_prints_the_tables_for_the_values_of_an_axis(
    folder: Path, tmp_path: Path, command_line: Callable
) -> None:
    options = ["--results", str(folder.parent), "--json", str(tmp_path / "told.json")]
    code, said = command_line("compare", "changes", "--by", "interventions", *options)
    assert code == 0, said
    turned, losses = rows_of(said.splitlines())
    assert turned == [
        "lr x0.5 at 10        2/3       -  0/3       -       -0.05 (-)",
        "reset moments at 10  0/3       -  3/3       -               -",
    ]
    assert losses[:3] == [
        "none                     -   0.1  lr=0.1",
        "lr x0.5 at 10          0.5  0.05  lr=0.1",
        "reset moments at 10      -     -  no cell is stable on every seed",
    ]
    assert "differs: interventions = none, lr x0.5 at 10, reset moments at 10" in said.splitlines()
    gains = [new["gains"] for new in json.loads((tmp_path / "told.json").read_text())["differences"]]
    assert [(each["saved"], each["harmed"], each["loss_change"]) for each in gains] == [(2, 0, -0.05), (0, 3, None)]
    assert gains[0]["best_setting"] == {"lr": 0.1}


def test_sweeps_of_their_own_have_gains_in_json_alone(folder: Path, tmp_path: Path) -> None:
    text = (
        CHANGES.replace("name: changes", "name: other").replace("[[], ", "[").replace("seeds: [0, 1, 2]", "seeds: [2]")
    )
    with ledger_at(tmp_path / "other") as ledger:
        map_ledger(ledger, sweep_of(text, ""), ["stable"] * 4)
    found = orchestrator.load(folder).compare(orchestrator.load(tmp_path / "other"))
    assert not any("runs saved" in line for line in found.lines())
    (difference,) = found.to_plain()["differences"]
    gains = difference["gains"]
    assert (gains["num_pairs"], gains["unstable"], gains["saved"], gains["stable"]) == (4, 3, 3, 1)
    assert gains["best_setting"]["lr"] == 0.1
