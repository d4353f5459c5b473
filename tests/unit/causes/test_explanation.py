from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from diagnosis_cases import SWEEP, calm, epsilon_floor, over_the_threshold, planted_sweep, record_cases, sweep_of_text
from typer.testing import CliRunner

from orchestrator.answers.explain import ExplainAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import UNEXPLAINED, Explanation, explain
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.cli import app
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.render.kind_maps import draw_explanation, explanation_figure, looks

GRID = SWEEP.replace("[0.001, 0.01, 3.0]", "[0.001, 0.01, 0.1, 1.0, 3.0]").replace("[0, 1]", "[0]")


def grid(folder: Path, letters: Mapping[tuple[float, int], str], text: str = GRID) -> Path:
    """A sweep whose cell has an epsilon floor (e), a step over the edge (o), nothing that is known (n) or is stable."""
    cases = []
    for trial in sweep_of_text(text).trials:
        letter = letters.get((trial.cell["lr"], trial.cell["warmup"]), "s")
        config = {"lr": trial.cell["lr"], "warmup": trial.cell["warmup"]}
        unknown = calm("diverged", 300, config, steps_done=360).without_telemetry()
        cases.append(
            {"e": epsilon_floor(), "o": over_the_threshold(), "n": unknown, "s": calm(config=config), "-": None}[letter]
        )
    return record_cases(folder, sweep_of_text(text), cases)


def lines_of(explanation: Explanation) -> list[str]:
    return ExplainAnswer.of(explanation, Path("planted")).lines()


LETTERS = {
    (1.0, 40): "o", (3.0, 40): "o", (1.0, 150): "o", (3.0, 150): "o",
    (0.001, 40): "e", (0.1, 150): "n", (0.01, 150): "-",
}  # fmt: skip


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory):
    folder = grid(tmp_path_factory.mktemp("grid") / "grid", LETTERS)
    with LedgerReader(folder / LEDGER) as ledger:
        return explain(read_table(ledger))


def test_every_cell_that_is_not_stable_has_the_mechanism_that_rules_it(explained) -> None:
    ruling = {key: explained.mechanism(key) for key in explained.stability.cells}
    names = {"o": "over_the_threshold", "e": "epsilon_floor", "n": UNEXPLAINED}
    assert ruling == {key: names.get(LETTERS.get(key, "s")) for key in ruling}


def test_the_lines_say_which_part_of_the_map_each_mechanism_rules(explained) -> None:
    assert lines_of(explained) == [
        "planted: 6 of 9 known cells are not stable",
        "step over the threshold from the start: 4 cells",
        "  lr 1 .. 3 at warmup 40 .. 150",
        "epsilon floor: 1 cell",
        "  lr 0.001 at warmup 40",
        "not enough evidence: 1 cell",
        "  lr 0.1 at warmup 150",
        "the curvature was not measured; measure it with telemetry: {curvature: 20}",
        "`sweep diagnose planted --cell AXIS=VALUE,...` shows the evidence on a cell",
    ]


def test_a_part_in_pieces_is_told_in_pieces(tmp_path: Path) -> None:
    letters = {(0.001, 40): "e", (0.01, 40): "e", (1.0, 40): "e", (3.0, 150): "e"}
    with LedgerReader(grid(tmp_path / "grid", letters) / LEDGER) as ledger:
        lines = lines_of(explain(read_table(ledger)))
    assert lines[2:4] == ["  lr 0.001 .. 0.01 and 1 at warmup 40", "  lr 3 at warmup 150"]


def test_axes_that_are_not_shown_are_told_by_their_most_typical_trial(tmp_path: Path) -> None:
    with LedgerReader(planted_sweep(tmp_path / "planted") / LEDGER) as ledger:
        found = explain(read_table(ledger), x="lr", y=None)
        one = explain(read_table(ledger), x="warmup", y="lr")
        with pytest.raises(InputError, match="axes: lr, warmup"):
            explain(read_table(ledger), x="depth")
    assert {key: found.mechanism(key) for key in found.causes} == {
        (3.0, 40): "over_the_threshold",
        (3.0, 150): "over_the_threshold",
    }
    assert set(one.causes) == {(40, 3.0), (150, 3.0)}


def test_the_picture_has_the_name_of_the_mechanism_in_its_cell_and_in_the_legend(explained) -> None:
    figure = draw_explanation(explained)
    written = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(written) == ["2/lr", "2/lr", "2/lr", "2/lr", "?", "eps"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:3] == [
        "2/lr: step over the threshold from the start",
        "eps: epsilon floor",
        "?: not enough evidence",
    ]
    assert {"no mark: all seeds stable", "not run", "edge of stability"} <= set(legend)


def test_every_mechanism_has_a_colour_and_a_name_of_its_own() -> None:
    assert looks().keys() == {*MECHANISMS, UNEXPLAINED}
    colours, labels, titles = (set(column) for column in zip(*looks().values(), strict=True))
    assert len(colours) == len(labels) == len(titles) == len(looks())


def test_the_same_ledger_gives_the_same_bytes(explained) -> None:
    assert explanation_figure(explained, "png") == explanation_figure(explained, "png")
    with pytest.raises(ValueError, match="png, svg, pdf"):
        explanation_figure(explained, "gif")


def test_a_sampled_sweep_is_explained_point_by_point(tmp_path: Path) -> None:
    text = """
name: sampled
objective: gpt
steps: 400
axes: {lr: {log: [1e-3, 1]}, beta2: {log1m: [0.9, 0.99]}}
sample: {method: random, num: 3}
tracking: {enabled: false}
"""
    cases = [calm(), epsilon_floor(), calm()]
    with LedgerReader(record_cases(tmp_path / "s", sweep_of_text(text), cases) / LEDGER) as ledger:
        found = explain(read_table(ledger))
    lines = lines_of(found)
    assert lines[1] == "epsilon floor: 1 cell"
    assert lines[2].startswith("  lr ")
    assert explanation_figure(found, "svg").startswith(b"<?xml")


def test_one_axis_is_explained_in_one_row(tmp_path: Path) -> None:
    text = GRID.replace("  warmup: {values: [40, 150]}\n", "").replace("fixed: {", "fixed: {warmup: 40, ")
    cases = [epsilon_floor() if trial.cell["lr"] < 0.05 else calm() for trial in sweep_of_text(text).trials]
    with LedgerReader(record_cases(tmp_path / "s", sweep_of_text(text), cases) / LEDGER) as ledger:
        found = explain(read_table(ledger))
    assert lines_of(found)[1:3] == ["epsilon floor: 2 cells", "  lr 0.001 .. 0.01"]
    assert explanation_figure(found, "png").startswith(b"\x89PNG")


def test_the_command_prints_the_parts_and_writes_the_picture(tmp_path: Path) -> None:
    planted_sweep(tmp_path / "results" / "planted")
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(app, ["explain", "planted"])
        turned = CliRunner().invoke(app, ["explain", "planted", "--x", "warmup", "--y", "lr", "--output", "turned.pdf"])
        wrong = CliRunner().invoke(app, ["explain", "planted", "--output", "picture"])
    assert "step over the threshold from the start: 2 cells\n  lr 3 at warmup 40 .. 150\n" in done.output
    assert "picture: results/planted/explanation.png" in done.output
    assert (tmp_path / "results" / "planted" / "explanation.png").is_file()
    assert "  warmup 40 .. 150 at lr 3\n" in turned.output
    assert (tmp_path / "turned.pdf").read_bytes().startswith(b"%PDF")
    assert isinstance(wrong.exception, InputError)


def test_a_sweep_that_is_stable_throughout_has_nothing_to_explain(tmp_path: Path) -> None:
    with LedgerReader(grid(tmp_path / "calm", {}) / LEDGER) as ledger:
        found = explain(read_table(ledger))
    assert lines_of(found) == ["planted: 0 of 10 known cells are not stable"]
    assert explanation_figure(found, "png").startswith(b"\x89PNG")


@pytest.mark.parametrize(("seeds_with_evidence", "ruling"), [({2}, "epsilon_floor"), ({3}, UNEXPLAINED)])
def test_up_to_two_more_trials_of_a_cell_are_diagnosed_where_the_first_lacks_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds_with_evidence: set[int], ruling: str
) -> None:
    sweep = sweep_of_text(GRID.replace("[0]", "[0, 1, 2, 3]"))
    lost = {"lr": 0.001, "warmup": 40}
    cases = [
        calm("diverged", 100 + trial.seed, trial.cell, steps_done=360)
        if trial.cell == lost
        else calm(config=trial.cell)
        for trial in sweep.trials
    ]
    asked = []

    def examined(ledger, trial, *others):
        asked.append(trial.seed)
        cause = SimpleNamespace(mechanism="epsilon_floor") if trial.seed in seeds_with_evidence else None
        return SimpleNamespace(cause=cause, evidence=SimpleNamespace(threshold_ratio=[], is_custom_trainer=False))

    monkeypatch.setattr("orchestrator.causes.diagnosis.examine", examined)
    with LedgerReader(record_cases(tmp_path / "many", sweep, cases) / LEDGER) as ledger:
        assert explain(read_table(ledger)).mechanism((0.001, 40)) == ruling
    assert asked == [0, 1, 2], "by their onsets"
