"""Which trial is diagnosed, and its cause."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from diagnosis_cases import (
    PLANTED,
    SWEEP,
    bad_batch,
    calm,
    epsilon_floor,
    over_the_threshold,
    planted_sweep,
    record_cases,
    row_of,
    sweep_of_text,
)
from sweep_cases import ledger_at, record, sweep_of
from typer.testing import CliRunner

from objectives.base import OBJECTIVES
from objectives.models.origins import batch_text
from orchestrator.answers.explain import ExplainAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import UNEXPLAINED, Explanation, diagnose, explain, most_typical, rank, trial_by_id
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.cli import app
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.render.kind_maps import explanation_figure, looks


def rows(*outcomes: tuple[str, int | None]) -> list[TrialResult]:
    return [row_of(outcome, onset, trial_id=f"{i:016x}") for i, (outcome, onset) in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("outcomes", "chosen"),
    [
        ([("stable", None), ("spiked", 9), ("spiked", 5), ("diverged", 1)], 2),
        ([("spiked", 9), ("diverged", 7), ("diverged", 3)], 2),
        ([("spiked", 9), ("diverged", 7)], 1),  # as common: the worse
        ([("stalled", None), ("stable", None)], 0),
        ([("stable", None)], None),
    ],
)
def test_the_most_typical_trial_is_the_earliest_of_the_commonest_outcome(outcomes, chosen: int | None) -> None:
    found = most_typical(rows(*outcomes))
    assert (None if found is None else int(found.trial_id, 16)) == chosen


def test_a_trial_is_found_by_its_id_or_as_much_of_it_as_is_unique() -> None:
    two = [row_of("stable", trial_id="abc1"), row_of("stable", trial_id="abd2"), row_of("stable", trial_id="ab")]
    assert trial_by_id(two, "abc").trial_id == "abc1"
    assert trial_by_id(two, "ab").trial_id == "ab", "a whole id is one, though others begin so"
    for beginning, says in (("a", "3 trial ids start with it"), ("x", "no such trial"), ("", "no such trial")):
        with pytest.raises(InputError, match=says):
            trial_by_id(two, beginning)
    with pytest.raises(InputError, match="it is running"):
        trial_by_id([row_of(None, trial_id="q", status="running")], "q")


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_leads_and_nothing_else_is_named(name: str) -> None:
    found = rank(PLANTED[name]().evidence(), "sweep", "it was asked for")
    assert (found.cause.mechanism, found.along) == (name, ())


def test_clipping_that_is_never_active_does_not_lead() -> None:
    case = calm("diverged", 300, {"clip": 100.0}, steps_done=360)
    found = rank(case.evidence(), "sweep", "it was asked for")
    assert (found.cause, [finding.mechanism for finding in found.along]) == (None, ["clipping_inactive"])


def test_a_batch_is_named_by_the_data_that_rollbacks_have_moved_on_to(tmp_path: Path) -> None:
    """Back from step 100 over 7 batches: step 200 trains on the batch of step 207."""
    text = SWEEP.replace("fixed: {", "fixed: {rollback: 7, ")
    case = bad_batch()
    rolled_back_N = (case.trace["step"] == 100).astype(float)
    cases = [case.with_trace(rolled_back=rolled_back_N), *[None] * (len(sweep_of_text(text).trials) - 1)]
    folder = record_cases(tmp_path, sweep_of_text(text), cases)
    with LedgerReader(folder / LEDGER) as ledger:
        trial = ledger.trials()[0]
        found = diagnose(read_table(ledger), trial.trial_id)
    config = OBJECTIVES["gpt"].config_of(trial.config)
    assert found is not None
    assert found.evidence.batch_text(100) == batch_text(config, trial.seed, 100)
    assert found.evidence.batch_text(200) == batch_text(config, trial.seed, 207)


def test_a_cell_next_to_one_is_not_another_one(tmp_path: Path) -> None:
    body = "axes: {beta2: {values: [0.9999, 0.99999, 0.66274]}}\n"
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(body), ["stable", "diverged", "spiked"])
        of = {
            written: diagnose(read_table(ledger), cell={"beta2": written}).trial.cell["beta2"]
            for written in ("0.9999", "0.66")
        }
    assert of == {"0.9999": 0.9999, "0.66": 0.66274}


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
        "planted: 6 of 9 known cells are over the edge",
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
    figure = explanation_figure.figure(explained)
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
    assert explanation_figure("png", explained) == explanation_figure("png", explained)
    with pytest.raises(ValueError, match="png, svg, pdf"):
        explanation_figure("gif", explained)


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
    assert explanation_figure("svg", found).startswith(b"<?xml")


def test_one_axis_is_explained_in_one_row(tmp_path: Path) -> None:
    text = GRID.replace("  warmup: {values: [40, 150]}\n", "").replace("fixed: {", "fixed: {warmup: 40, ")
    cases = [epsilon_floor() if trial.cell["lr"] < 0.05 else calm() for trial in sweep_of_text(text).trials]
    with LedgerReader(record_cases(tmp_path / "s", sweep_of_text(text), cases) / LEDGER) as ledger:
        found = explain(read_table(ledger))
    assert lines_of(found)[1:3] == ["epsilon floor: 2 cells", "  lr 0.001 .. 0.01"]
    assert explanation_figure("png", found).startswith(b"\x89PNG")


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
    assert lines_of(found) == ["planted: 0 of 10 known cells are over the edge"]
    assert explanation_figure("png", found).startswith(b"\x89PNG")


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


def chosen_in(folder: Path, letters: Mapping[tuple[float, int], str], **options):
    with LedgerReader(grid(folder, letters) / LEDGER) as ledger:
        return diagnose(read_table(ledger), **options)


def test_by_default_the_unstable_neighbour_of_the_recommended_cell_is_diagnosed(tmp_path: Path) -> None:
    letters = {(lr, warmup): "o" for lr in (0.1, 1.0, 3.0) for warmup in (40, 150)} | {(0.1, 150): "s"}
    found = chosen_in(tmp_path / "grid", letters)
    assert found.trial.cell == {"lr": 0.1, "warmup": 40}, "and not the most extreme one, lr 3"
    assert "1 of 1 trials of the unstable neighbour of the recommended cell" in found.chosen


def test_a_stable_island_beyond_the_edge_is_no_edge_to_diagnose_at(tmp_path: Path) -> None:
    letters = {(lr, warmup): "o" for lr in (0.1, 1.0, 3.0) for warmup in (40, 150)}
    letters |= {(0.001, 40): "-", (0.001, 150): "-", (1.0, 40): "s"}
    found = chosen_in(tmp_path / "island", letters)
    assert found.trial.cell["lr"] == 0.1, "and not beside the island, at lr 1 or 3"
    assert "2 of 2 trials of the unstable cells nearest to the edge" in found.chosen


def test_without_a_recommended_cell_the_unstable_trial_nearest_to_the_edge_is_diagnosed(tmp_path: Path) -> None:
    letters = {(lr, warmup): "o" for lr in (0.001, 0.01, 0.1, 1.0, 3.0) for warmup in (40, 150)}
    found = chosen_in(tmp_path / "one", letters | {(3.0, 40): "s"})
    assert found.trial.cell == {"lr": 1.0, "warmup": 40}
    assert "of the unstable cells nearest to the edge" in found.chosen
    found = chosen_in(tmp_path / "none", letters)
    assert "of the sweep" in found.chosen
