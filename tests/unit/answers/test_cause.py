"""What `sweep cause` says about forks, and what a diagnosis cites of it."""

import contextlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from diagnosis_cases import calm, diagnosed, preconditioner_decay, row_of
from sweep_cases import ledger_at, map_ledger, sweep_of

from objectives.base import OBJECTIVES
from orchestrator.answers.cause import CauseAnswer, CauseQuery, CellCauses
from orchestrator.base.errors import InputError
from orchestrator.base.files import CAUSE_ANSWER, LEDGER
from orchestrator.base.vocabulary import IMPORTED
from orchestrator.causes.diagnosis import examine, rank
from orchestrator.causes.proofs.plan import plan_of
from orchestrator.causes.proofs.results import Proof, Proofs, judged
from orchestrator.causes.proofs.training import (
    check_provable,
    proofs_folder,
    read_proofs,
    store_proofs,
    stored_proofs,
    train_proofs,
)
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.render.answer import Answer, to_json, to_plain
from orchestrator.render.blocks import Caution, Line, Table


def proof(name: str, spiked: int, control: int = 8) -> Proof:
    counts = {"tried": 8, "spiked": spiked, "control_tried": 8, "control_spiked": control}
    return Proof(name=name, fork="its fork", step=90, evidence="supported", **counts)


def proofs_of(*found: Proof, named: str | None = "preconditioner_decay") -> Proofs:
    return Proofs(sweep="case", trial=row_of("diverged", 100), onset=100, named=named, mechanisms=judged(found))


def answer_of(proofs: Proofs) -> CauseAnswer:
    return CauseAnswer(sweep="case", result=CellCauses.of(proofs))


def lines(answer: Answer) -> list[str]:
    return [block.text for block in answer.blocks() if isinstance(block, Line)]


def test_the_table_has_a_row_for_each_mechanism_and_json_its_numbers() -> None:
    answer = answer_of(proofs_of(proof("preconditioner_decay", 0), proof("logit_growth", 8)))
    (table,) = (block for block in answer.blocks() if isinstance(block, Table))
    assert [(row[0], row[3], row[4], row[6]) for row in table.rows] == [
        ("preconditioner decay", "0 of 8", "8 of 8", "confirmed"),
        ("growth of the logits", "8 of 8", "8 of 8", "refuted"),
    ]
    plain = to_plain(answer)
    keys = ("name", "fork", "tried", "spiked", "control_spiked", "p_value", "verdict")
    assert all(key in mechanism for mechanism in plain["mechanisms"] for key in keys)
    assert plain["confirmed"] == ["preconditioner_decay"]


def test_a_chance_failure_is_said_to_be_one() -> None:
    answer = answer_of(proofs_of(proof("preconditioner_decay", 0, control=3)))
    assert to_plain(answer)["is_chance"]
    assert "a chance failure" in lines(answer)[0]


def test_a_diagnosis_that_forks_refute_is_said_to_be_wrong() -> None:
    assert any("refute the diagnosis" in line for line in lines(answer_of(proofs_of(proof("preconditioner_decay", 8)))))


def test_each_cell_has_a_row_and_is_counted_once_by_its_verdict() -> None:
    cells = (
        proofs_of(proof("preconditioner_decay", 0)),
        proofs_of(proof("preconditioner_decay", 8)),
        proofs_of(proof("preconditioner_decay", 0, control=2)),
        proofs_of(proof("preconditioner_decay", 8), proof("logit_growth", 0)),
        proofs_of(proof("preconditioner_decay", 5)),
        proofs_of(proof("logit_growth", 0), named=None),
        proofs_of(),
    )
    answer = CauseAnswer(sweep="case", result=None, cells=tuple(map(CellCauses.of, cells)))
    (table,) = (block for block in answer.blocks() if isinstance(block, Table))
    verdicts = ["preconditioner decay", "refuted", "chance", "growth of the logits", "open"]
    assert [row[2] for row in table.rows] == [*verdicts, "growth of the logits", "open"]
    assert [cell["is_chance"] for cell in to_plain(answer)["cells"]] == [name == "chance" for name in verdicts] + [
        False,
        False,
    ]
    assert lines(answer)[-1].startswith("7 cells: ")
    counts = [int(part.split()[0]) for part in lines(answer)[-1].removeprefix("7 cells: ").split(", ")]
    assert counts == [1, 2, 1, 1, 2]


def test_too_few_replicates_to_confirm_anything_are_said_to_be() -> None:
    for num, is_few in ((2, True), (4, False)):
        few = replace(proof("preconditioner_decay", 0, control=num), tried=num, control_tried=num)
        labels = [block.label for block in answer_of(proofs_of(few)).blocks() if isinstance(block, Caution)]
        assert ("too few forks" in labels) == is_few


def test_a_stored_answer_is_not_replaced_by_one_of_fewer_forks(tmp_path: Path) -> None:
    strong = proofs_of(proof("preconditioner_decay", 0))
    few = proofs_of(replace(proof("preconditioner_decay", 0), tried=1, control_tried=1, control_spiked=1))
    other = proofs_of(replace(few.mechanisms[0], fork="another fork"))
    folder = proofs_folder(tmp_path, strong.trial.trial_id)
    folder.mkdir(parents=True)

    def tried() -> int:
        stored = stored_proofs(tmp_path, strong.trial.trial_id)
        assert stored is not None
        return stored["mechanisms"][0]["tried"]

    assert store_proofs(tmp_path, few, to_json(few))
    assert store_proofs(tmp_path, strong, to_json(strong))
    assert not store_proofs(tmp_path, few, to_json(few))
    assert tried() == 8
    assert store_proofs(tmp_path, other, to_json(other)), "what other forks proved is out of date"
    assert tried() == 1


def test_an_imported_trial_is_refused_as_one_that_was_trained_elsewhere(tmp_path: Path) -> None:
    imported = replace(row_of("diverged", 100), objective=IMPORTED)
    with pytest.raises(InputError, match="trained elsewhere"):
        check_provable(tmp_path, imported)


def test_without_a_mechanism_that_a_fork_takes_away_the_next_command_is_named() -> None:
    proofs = proofs_of()
    assert f"next: `sweep remedy case --trial {proofs.trial.trial_id}`" in " ".join(lines(answer_of(proofs)))


def test_a_trial_whose_router_collapsed_is_said_to_have_collapsed_and_when(tmp_path: Path) -> None:
    diagnosis = rank(calm("stable", None, collapsed_step=40).reading(router_dead=7.0).evidence(), "case", "made up")
    with ledger_at(tmp_path) as ledger:
        proofs = read_proofs(ledger, diagnosis, plan_of(diagnosis, OBJECTIVES["gpt"], 2))
    plain = to_plain(answer_of(proofs))
    assert (plain["outcome"], plain["onset_step"]) == ("collapsed", 40)


@pytest.mark.parametrize("content", [None, "no json", "[]"])
def test_a_diagnosis_without_a_stored_answer_cites_none(content: str | None, tmp_path: Path) -> None:
    evidence = preconditioner_decay().evidence()
    if content is not None:
        folder = proofs_folder(tmp_path, evidence.trial.trial_id)
        folder.mkdir(parents=True)
        (folder / CAUSE_ANSWER).write_text(content)
    assert not any("by forks" in line for line in lines(diagnosed(evidence, folder=tmp_path)))


def test_a_diagnosis_cites_the_stored_answer(tmp_path: Path) -> None:
    evidence = preconditioner_decay().evidence()
    folder = proofs_folder(tmp_path, evidence.trial.trial_id)
    folder.mkdir(parents=True)
    (folder / CAUSE_ANSWER).write_text(json.dumps(to_plain(proofs_of(proof("preconditioner_decay", 0)))))
    (line,) = (line for line in lines(diagnosed(evidence, folder=tmp_path)) if line.startswith("by forks"))
    assert "preconditioner decay confirmed" in line
    assert "0 of 8 fail, with it 8 of 8" in line


@pytest.mark.parametrize(
    ("kind", "says"), [("command", "a fork of a training script"), ("imported", "trained elsewhere")]
)
@pytest.mark.parametrize("query", [CauseQuery(), CauseQuery(each_cell=True)])
def test_a_script_is_refused_before_it_is_asked_how_it_resumes(
    query: CauseQuery, kind: str, says: str, tmp_path: Path
) -> None:
    sweep = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n")
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, ["stable", "diverged"])
        with contextlib.closing(sqlite3.connect(ledger.path)) as db, db:
            db.execute("UPDATE trials SET objective = ?", (kind,))
        with pytest.raises(InputError, match=says):
            query.ask(read_table(ledger))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((proof("preconditioner_decay", 0),), "confirmed by forks: preconditioner decay"),
        ((proof("preconditioner_decay", 8),), "which forks refute"),
        ((proof("preconditioner_decay", 8), proof("logit_growth", 0)), "confirmed by forks: growth of the logits"),
        ((proof("preconditioner_decay", 0, control=3),), "chance by forks"),
        ((proof("preconditioner_decay", 5),), "cause: preconditioner decay"),
    ],
)
def test_the_cause_that_a_diagnosis_names_first_takes_the_forks_into_account(
    found: tuple[Proof, ...], words: str, tmp_path: Path
) -> None:
    evidence = preconditioner_decay().evidence()
    folder = proofs_folder(tmp_path, evidence.trial.trial_id)
    folder.mkdir(parents=True)
    (folder / CAUSE_ANSWER).write_text(json.dumps(to_plain(proofs_of(*found))))
    texts = [block.text for block in diagnosed(evidence, folder=tmp_path).blocks() if isinstance(block, Line)]
    assert words in texts[1]


def test_replicates_that_are_one_run_count_once_and_confirm_nothing(tmp_path: Path) -> None:
    """An objective that does not say that every step sees the same data."""
    body = "steps: 30\naxes: {lr: {values: [0.1, 30]}}\nfixed: {optimizer: sgd}\ntracking: {enabled: false}\n"
    folder = tmp_path / "case"
    run_sweep(sweep_of(body, base="name: case\nobjective: quadratic\n"), folder, InlineExecutor)
    objective = replace(OBJECTIVES["quadratic"], is_full_batch=lambda settings: False)
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        diagnosis = examine(ledger, next(row for row in rows if row.outcome != "stable"), "the only one", rows)
        plan = plan_of(diagnosis, objective, 4)
        train_proofs(folder, diagnosis, plan, InlineExecutor, [])
        found = read_proofs(ledger, diagnosis, plan)
    assert (found.replicates_alike, found.confirmed, found.is_chance) == (True, (), False)
    assert {(each.tried, each.control_tried, each.verdict) for each in found.mechanisms} == {(1, 1, "not told apart")}
    assert [block.label for block in answer_of(found).blocks() if isinstance(block, Caution)] == ["forks alike"]


def test_the_same_command_trains_nothing_twice_and_more_replicates_only_the_forks_that_are_missing(
    tmp_path: Path,
) -> None:
    body = (
        "steps: 30\naxes: {lr: {values: [0.1, 30]}}\nfixed: {optimizer: sgd, noise: 1.0}\ntracking: {enabled: false}\n"
    )
    folder = tmp_path / "case"
    run_sweep(sweep_of(body, base="name: case\nobjective: quadratic\n"), folder, InlineExecutor)

    def asked(replicates: int) -> tuple[Proofs, list[str]]:
        said: list[str] = []
        with LedgerReader(folder / LEDGER) as ledger:
            result = CauseQuery(replicates=replicates).ask(read_table(ledger), said.append).result
        assert result is not None
        return result.proofs, [line for line in said if line.startswith("training ")]

    few, trained = asked(2)
    assert (few.num_forks, few.confirmed, trained) == (4, (), ["training 5 runs"]), "and the control"
    assert asked(2) == (few, [])
    enough, trained = asked(3)
    assert (enough.num_forks, enough.control_repeats, trained) == (6, True, ["training 2 runs"])
    assert enough.confirmed == ("over_the_threshold",)
