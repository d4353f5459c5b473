from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator import load
from orchestrator.base.errors import InputError

AXES = {
    "grid": "axes: {lr: {log: [0.001, 1.0], num: 4}, beta1: {values: [0.0, 0.5]}}\n",
    "scattered": "axes: {lr: {log: [0.001, 1.0]}, beta1: {values: [0.0, 0.5]}}\nsample: {method: sobol, num: 40}\n",
}


@pytest.fixture(params=AXES)
def folder(request, tmp_path: Path) -> Path:
    """A finished sweep whose edge is at a learning rate of 0.05: a grid, or scattered cells."""
    sweep = sweep_of(AXES[request.param])
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep, ["stable" if trial.cell["lr"] < 0.05 else "diverged" for trial in sweep.trials])
    return tmp_path / "case"


def test_the_edge_has_the_numbers_of_the_boundary_in_its_table_and_its_json(folder: Path) -> None:
    results = load(folder)
    answer = results.edge()
    rows = results.boundary().rows
    table = answer.frame()
    assert [row["edge"] for row in answer.edges] == table.edge.tolist()
    for row, cells in zip(table.to_dict("records"), rows, strict=True):
        (edge,) = cells["edges"]
        low, high = (edge["low"], edge["high"]) if answer.is_fitted else (edge["stable"], edge["not_stable"])
        setting = {"beta1": cells["setting"]["beta1"]}
        assert row == {**setting, "edge": edge["at"], "low": low, "high": high, "kind": "stable below"}


def test_the_command_writes_only_the_file_that_is_named(folder: Path, command_line) -> None:
    code, text = command_line("edge", str(folder), "--output", str(folder.parent / "edge.csv"))
    assert (code, (folder.parent / "edge.csv").read_text().split(",")[:2]) == (0, ["beta1", "edge"])
    assert command_line("edge", str(folder))[1] in text
    assert not list(folder.glob("edge.*"))


@pytest.mark.slow
def test_the_edge_is_drawn_in_each_format(folder: Path) -> None:
    answer = load(folder).edge()
    for ending, begins in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert answer.rendered(ending).startswith(begins)


def test_an_axis_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="depth"):
        load(folder).edge(across="depth")
