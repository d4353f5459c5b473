from __future__ import annotations

import json
from pathlib import Path

import pytest
from sweep_cases import record, sweep_of

from orchestrator.base.files import LEDGER
from orchestrator.commands.boundary import boundary
from orchestrator.commands.printing import show
from orchestrator.ledger.writer import LedgerWriter

AXES = {
    "grid": "axes: {lr: {log: [0.001, 1.0], num: 4}, beta1: {values: [0.0, 0.5]}}\n",
    "scattered": "axes: {lr: {log: [0.001, 1.0]}, beta1: {linear: [0.0, 0.9]}}\nsample: {method: sobol, num: 40}\n",
}


@pytest.fixture(params=AXES)
def kind(request) -> str:
    return request.param


def test_what_is_printed_can_be_written_as_json(tmp_path: Path, capsys, kind: str) -> None:
    sweep = sweep_of(AXES[kind])
    (tmp_path / "case").mkdir()
    with LedgerWriter(tmp_path / "case" / LEDGER) as ledger:
        record(ledger, sweep, ["stable" if trial.cell["lr"] < 0.05 else "diverged" for trial in sweep.trials])
    assert show(boundary(tmp_path / "case", None, None, {}, "worst", False, tmp_path / "edge.json")) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "edge.json").read_text())
    assert (found["sweep"], found["along"], found["is_fitted"]) == ("case", "lr", kind == "scattered")
    assert len(found["rows"]) == len(printed.splitlines()) - 2, "a line for each row, between the first and the last"
    for row in found["rows"]:
        assert list(row["setting"]) == ["beta1"]
        (edge,) = row["edges"]
        low, high = (edge["low"], edge["high"]) if found["is_fitted"] else (edge["stable"], edge["not_stable"])
        assert low < edge["at"] < high
        assert low < 0.05 < high
