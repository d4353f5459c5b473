from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator import load

AXES = {
    "grid": "axes: {lr: {log: [0.001, 1.0], num: 4}, beta1: {values: [0.0, 0.5]}}\n",
    "scattered": "axes: {lr: {log: [0.001, 1.0]}, beta1: {values: [0.0, 0.5]}}\nsample: {method: sobol, num: 40}\n",
}


@pytest.fixture(params=AXES)
def folder(request, tmp_path: Path) -> Path:
    """A finished sweep whose edge is at a learning rate of 0.05, and whose loss falls up to it."""
    sweep = sweep_of(AXES[request.param])
    with ledger_at(tmp_path / "case") as ledger:
        is_stable = [trial.cell["lr"] < 0.05 for trial in sweep.trials]
        losses = [1 / trial.cell["lr"] if one else None for trial, one in zip(sweep.trials, is_stable, strict=True)]
        map_ledger(ledger, sweep, ["stable" if one else "diverged" for one in is_stable], losses)
    return tmp_path / "case"


def test_text_json_and_table_have_the_same_front(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.answers.front._MOST_STEPS", 40)
    answer = load(folder).front("final_loss", along="lr")
    plain, table = answer.to_plain(), answer.frame()
    settings = [dict(cell.setting) for cell in answer.members]
    assert [row["setting"] for row in plain["front"]] == settings
    of_table = table[table.kind == "front"].sort_values("final_loss")
    assert list(zip(of_table.final_loss, of_table.lr, strict=True)) == [
        (cell.loss, cell.setting["lr"]) for cell in answer.members
    ]
    named = answer.lines()[2 : 2 + len(settings)]
    assert [line.split(": ")[0].strip() for line in named] == [cell.name for cell in answer.members]
    assert (plain["along"], plain["is_fitted"]) == ("lr", len(table) == 40)


@pytest.mark.slow
def test_the_front_is_drawn_in_each_format(folder: Path) -> None:
    answer = load(folder).front("final_loss")
    for ending, begins in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert answer.rendered(ending).startswith(begins)


def test_of_a_long_front_the_text_names_a_dozen_with_both_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = load(folder).front("final_loss", along="lr")
    names = [cell.name for cell in answer.members]
    monkeypatch.setattr("orchestrator.answers.front._MOST_STEPS", 2)
    named = [line.split(": ")[0].strip() for line in answer.lines()[2:4]]
    assert named == [names[0], names[-1]]
    assert len(answer.to_plain()["front"]) == len(names)
