"""The map of remedies: a colour for each kind, the remedy and its step in each cell, and a legend of what is drawn."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from remedy_cases import CLIP, LOWER, NINE, all_cells, answer, forked, fresh, in_cell, others
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.base.files import LEDGER
from orchestrator.base.space import Cell
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.cells import CellRemedies
from orchestrator.causes.remedies.remedy import KINDS
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import CellMap, cell_map
from orchestrator.maps.table import read_table
from orchestrator.render.kind_maps import _COLOURS, hardest_of_each, remedy_map_figure

GRID = "axes: {lr: {values: [0.1, 1.0, 2.0, 3.0]}, beta1: {values: [0.0, 0.5]}}\nfixed: {optimizer: sgd}\n"
ALL, NONE = ["stable"] * 3, ["diverged"] * 3


@pytest.fixture
def stability(tmp_path: Path) -> CellMap:
    """A map of two rows with stable cells at 0.1, and others above."""
    sweep = sweep_of(GRID)
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, ["stable" if trial.cell["lr"] < 1 else "diverged" for trial in sweep.trials])
    with LedgerReader(tmp_path / LEDGER) as ledger:
        return cell_map(read_table(ledger))


@pytest.fixture
def found() -> CellRemedies:
    """Clipping saves one cell, a lower rate another, and nothing saves the third."""
    unsure = [*forked(LOWER, 50, NINE), *fresh(LOWER, 50, ["stable", *NONE[1:]]), *others(50)]
    return on_map([forked(CLIP, 100, ALL), forked(LOWER, 50, ALL), unsure])


def on_map(answers: list[list[TrialResult]]) -> CellRemedies:
    """What these forks say of the first unstable cells in the upper row."""
    cells = [in_cell(answer(rows), lr) for lr, rows in zip((1.0, 2.0, 3.0), answers, strict=False)]
    return all_cells([replace(one, trial=replace(one.trial, cell=one.trial.cell.moved("beta1", 0.5))) for one in cells])


def test_each_cell_has_the_colour_of_its_kind_and_says_remedy_and_step(found: CellRemedies, stability: CellMap) -> None:
    figure = remedy_map_figure.figure(found, stability)
    axes = figure.axes[0]
    assert {text.get_text() for text in axes.texts} == {"clip 0.3\n+0", "lr x0.5\n-50", "none\n1/3"}
    drawn = [to_hex(colour).upper() for part in axes.collections for colour in part.get_facecolor()]
    assert [drawn.count(_COLOURS[kind].upper()) for kind in ("clip", "lr", "none", "beta2")] == [1, 1, 1, 0]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:3] == [
        "learning rate: 1 cell",
        "clipping: 1 cell",
        "no remedy is named, or none that saves all (saved/tried): 1 cell",
    ]
    assert "stable: nothing to remedy" in labels
    assert "edge of stability" in labels


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((100, 50), "-50: forked 50 steps before the onset"),
        ((99, 120), "-1: forked 1 step before the onset"),
        ((120, 100), "+0: forked at the onset"),
        ((120, 110), "+10: forked 10 steps after the onset"),
    ],
)
def test_the_legend_explains_the_earliest_step_that_a_cell_has(
    stability: CellMap, steps: tuple[int, int], words: str
) -> None:
    found = on_map([forked(CLIP, step, ALL) for step in steps])
    figure = remedy_map_figure.figure(found, stability)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [label for label in labels if ": forked " in label] == [words]
    assert any(text.get_text().endswith(f"\n{words.split(':')[0]}") for text in figure.axes[0].texts)


def test_without_words_in_the_cells_the_legend_explains_none(found: CellRemedies, stability: CellMap) -> None:
    def steps_explained(one: CellMap) -> bool:
        labels = [text.get_text() for text in remedy_map_figure.figure(found, one).legends[0].get_texts()]
        return any(": forked " in label for label in labels)

    assert steps_explained(stability)
    assert not steps_explained(replace(stability, is_grid=False))


def test_cells_that_fall_together_show_the_hardest_to_save(found: CellRemedies, stability: CellMap) -> None:
    late, early, unsaved = (replace(one, trial=replace(one.trial, cell=Cell(lr=1.0, beta1=0.5))) for one in found.cells)
    assert hardest_of_each(all_cells([late, early]), stability) == {(1.0, 0.5): early}
    assert hardest_of_each(all_cells([unsaved, early]), stability) == {(1.0, 0.5): unsaved}


def test_the_same_answer_gives_the_same_bytes(found: CellRemedies, stability: CellMap) -> None:
    assert remedy_map_figure("svg", found, stability) == remedy_map_figure("svg", found, stability)


def test_every_kind_has_a_colour_of_its_own() -> None:
    assert {*KINDS, "none"} == _COLOURS.keys()
    assert len(set(_COLOURS.values())) == len(_COLOURS)
