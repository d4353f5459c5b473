"""The one sentence about a sweep: it has a form for every kind of evidence, and no cell refutes it."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_cases import ids, ledger_at, map_ledger, sweep_of
from tiers import examples

from orchestrator.base.vocabulary import DEGRADED, is_known, is_over_edge
from orchestrator.driver.facts import driver_facts
from orchestrator.ledger.facts import PACKED_FACT
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.sentence import Sentence, sentence_of
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROW = "axes: {lr: {log: [1e-3, 10], num: 5}}\n"
GRID = "axes: {lr: {log: [1e-3, 10], num: 5}, beta1: {values: [0.0, 0.5]}}\n"
SCATTERED = "axes: {lr: {log: [1e-3, 1]}, beta1: {linear: [0, 0.9]}}\nsample: {method: sobol, num: 24}\n"
WORDS = {"s": "stable", "d": "diverged", "p": "planned", "e": "errored", "g": "degraded", "x": "pruned"}


def said(folder: Path, letters: str, body: str = ROW, losses: list[float] | None = None) -> Sentence:
    sweep = sweep_of(body)
    with ledger_at(folder / "case") as ledger:
        map_ledger(ledger, sweep, [WORDS[letter] for letter in letters], losses)
        return sentence_of(read_table(ledger))


def test_it_says_edge_setting_margin_and_the_next_command(tmp_path: Path) -> None:
    sentence = said(tmp_path, "sssdd", losses=[3.0, 2.0, 1.0, 9.0, 9.0])
    assert (sentence.along, sentence.stable) == ("lr", (pytest.approx(1e-3), pytest.approx(0.1)))
    assert sentence.setting == {"lr": pytest.approx(1e-2)}
    assert sentence.command == "sweep run case --refine --along lr"
    assert sentence.text == (
        "Stable up to lr 0.1, not at 1; take lr=0.01 (median final loss 2, one seed, at least 10 times from the "
        "edge); next: `sweep run case --refine --along lr` narrows the edge down."
    )


@pytest.mark.parametrize(
    ("letters", "edge", "command"),
    [
        ("sssss", "all 5 cells are stable, so the edge is not in what was tried", "run case --axis lr="),
        ("ddddd", "none of 5 cells is stable, so all that was tried is over the edge", "explain case"),
        ("ppppp", "0 of 5 trials over: no cell has a result on every seed, so no edge is known", "run case"),
        ("ssppp", "2 of 5 trials over: all 2 cells are stable (2 of 5 cells known)", "run case"),
        ("dpppp", "1 of 5 trials over: 1 known cell is not stable (1 of 5 cells known)", "run case"),
        ("spppp", "1 of 5 trials over: 1 known cell is stable (1 of 5 cells known)", "run case"),
        ("sspdd", "4 of 5 trials over: stable up to lr 0.01", "run case"),
        ("ssedd", "stable up to lr 0.01", "run case --retry-errored"),
        ("eeepp", "3 of 5 trials over", "run case --retry-errored"),
        ("dssdd", "stable from lr 0.01 to 0.1, not at 0.001 and at 1", "run case --refine"),
        ("sgggg", "all 5 cells are inside the edge (4 degraded)", "run case --axis lr="),
    ],
)
def test_each_kind_of_evidence_has_its_true_sentence(tmp_path: Path, letters: str, edge: str, command: str) -> None:
    sentence = said(tmp_path, letters)
    assert sentence.edge.startswith(edge)
    assert not ("p" in letters and "what was tried" in sentence.edge), "what is not known yet may hold the edge"
    assert sentence.command.startswith(f"sweep {command}")


def test_a_setting_without_a_known_margin_is_not_offered(tmp_path: Path) -> None:
    sentence = said(tmp_path, "dsddd")
    assert sentence.setting is None
    assert (
        sentence.take == "no stable setting is known to be a factor 2 from the edge (the farthest, lr=0.01, a factor 1)"
    )


def test_where_no_value_is_stable_in_every_row_the_edge_is_a_range_over_rows(tmp_path: Path) -> None:
    by_cell = {0.0: "ssddd", 0.5: "dddss"}
    sweep = sweep_of(GRID)
    values = list(dict.fromkeys(trial.cell["lr"] for trial in sweep.trials))
    letters = "".join(by_cell[trial.cell["beta1"]][values.index(trial.cell["lr"])] for trial in sweep.trials)
    sentence = said(tmp_path, letters, GRID)
    assert (sentence.along, sentence.stable) == ("lr", None)
    assert (
        sentence.edge == "no lr is stable at every beta1; its edge lies between 0.0316 and 0.316 in every row of beta1"
    )


def test_a_wider_axis_keeps_the_trials_at_hand(tmp_path: Path) -> None:
    option = said(tmp_path, "sssss").command.split("--axis ")[1]
    wider = build_sweep(
        parse_document("name: case\nobjective: quadratic\nsteps: 20\n" + ROW, "a"), Overrides((option,))
    )
    assert {*ids(sweep_of(ROW))} < {*ids(wider)}
    assert len(ids(wider)) == 7


def test_scattered_cells_have_a_fitted_edge_and_too_few_have_none(tmp_path: Path) -> None:
    sweep = sweep_of(SCATTERED)
    letters = "".join("s" if trial.cell["lr"] < 0.03 else "d" for trial in sweep.trials)
    fitted = said(tmp_path / "all", letters, SCATTERED)
    assert fitted.edge.startswith("stable below lr ")
    assert "fitted to 24 trials" in fitted.edge
    few = said(tmp_path / "few", letters[:6] + "p" * 18, SCATTERED)
    assert few.stable is None
    assert few.command == "sweep run case"


def test_a_sweep_over_seeds_alone_has_no_edge(tmp_path: Path) -> None:
    assert said(tmp_path, "sd", "seeds: [0, 1]\n").edge == "1 of 2 seeds are stable, and an edge needs an axis"


@pytest.mark.parametrize(
    ("letters", "body", "command"),
    [
        ("sss", "axes: {lr: {log: [1e-3, 1]}}\nsample: {method: random, num: 3}\n", "run case --refine"),
        ("ss", "seeds: [0, 1]\n", "status case"),
        ("sd", "seeds: [0, 1]\n", "diagnose case"),
    ],
)
def test_where_nothing_can_be_recommended_another_command_comes_next(
    letters: str, body: str, command: str, tmp_path: Path
) -> None:
    assert said(tmp_path, letters, body).command == f"sweep {command}"


def test_a_run_that_goes_on_is_followed(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep_of(ROW), ["stable", *["planned"] * 4])
        assert sentence_of(read_table(ledger), is_running=True).command == "sweep status case --watch"


def test_code_of_a_users_own_objective_is_allowed_where_it_trains(tmp_path: Path) -> None:
    """Its trials have the objective's own name; a fact of the sweep says that its code is imported."""
    with ledger_at(tmp_path / "case") as ledger:
        sweep = sweep_of(ROW)
        ledger.plan("mine", sweep.trials, {**driver_facts(sweep), "objective": "mine", PACKED_FACT: "{}"})
        assert sentence_of(read_table(ledger)).command == "sweep run case --allow-import"


CONDITIONAL = (
    "axes:\n  optimizer: {values: [sgd, adamw]}\n"
    "  eps: {log: [1e-8, 1e-2], num: 4, when: {optimizer: adamw}}\nfixed: {lr: 0.01}\n"
)


@pytest.mark.parametrize(
    ("without", "end"), [("s", "at 0.01"), ("d", "at 0.01; without eps, 1 of 1 cell is over the edge")]
)
def test_an_axis_that_exists_for_one_optimizer_says_nothing_of_others(without: str, end: str, tmp_path: Path) -> None:
    sweep = sweep_of(CONDITIONAL)
    last = max(trial.cell["eps"] or 0 for trial in sweep.trials)
    lost = {None: without, last: "d"}
    sentence = said(tmp_path, "".join(lost.get(trial.cell["eps"], "s") for trial in sweep.trials), CONDITIONAL)
    assert sentence.along == "eps"
    assert sentence.edge == f"stable up to eps 0.0001, not {end}"


def check_no_cell_refutes(sentence: Sentence, table: SweepTable) -> None:
    """What the fields claim, by the states of all cells."""
    states = table.states()
    if sentence.stable is not None:
        low, high = sentence.stable
        within = [state for cell, state in states.items() if low <= cell[sentence.along] <= high]
        assert not any(map(is_over_edge, within))
        assert any(map(is_known, within))
        assert "every known" in sentence.edge or all(map(is_known, within))
        assert (DEGRADED in within) == ("degraded" in sentence.edge)
    if sentence.setting is not None:
        assert states[sentence.setting] == "stable"
        found = recommend(table).chosen
        assert found is not None
        assert found.margin >= 2
    if "so the edge is not in what was tried" in sentence.edge:
        assert not any(map(is_over_edge, states.values()))


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(letters=st.text("sssdpegx", min_size=10, max_size=10))
def test_no_cell_refutes_it(letters: str) -> None:
    with tempfile.TemporaryDirectory() as folder, ledger_at(Path(folder) / "case") as ledger:
        map_ledger(ledger, sweep_of(GRID), [WORDS[letter] for letter in letters])
        table = read_table(ledger)
        sentence = sentence_of(table)
        check_no_cell_refutes(sentence, table)
    assert re.fullmatch(r"[A-Z0-9].*; next: `sweep .+` .+\.", sentence.text)
