"""What `sweep objectives` finds, and what `sweep gc` removes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.api.sweep_files import objectives
from orchestrator.api.upkeep import gc
from orchestrator.base.errors import InputError


def shown(*arguments: str | None) -> str:
    console = Console(file=io.StringIO(), width=200)
    for item in objectives(*arguments):
        console.print(item)
    return console.file.getvalue()


def test_fields_are_found_by_their_name_and_by_their_meaning() -> None:
    found = shown("gpt", "QK")
    assert "qk_norm" in found
    assert "beta1" not in found
    assert "quadratic:" not in shown("gpt", None)
    everywhere = shown(None, "learning rate")
    assert everywhere.count("peak learning rate") == 3, "one in each objective"


@pytest.mark.parametrize(("name", "match", "said"), [("gt", None, "gpt, function_fit"), (None, "zzz", "no field has")])
def test_what_is_not_there_is_told_with_what_is(name: str | None, match: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(objectives(name, match))


def test_pictures_of_the_edge_and_the_front_that_earlier_versions_wrote_are_exports(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    written = [tmp_path / "case" / name for name in ("edge.png", "edge.csv", "front.png", "front.csv")]
    for path in written:
        path.touch()
    list(gc(tmp_path / "case", exports=False, dry_run=False))
    assert all(path.exists() for path in written)
    said = list(gc(tmp_path / "case", exports=True, dry_run=False))
    assert any("removed 2 files of the edge" in line for line in said)
    assert not any(path.exists() for path in written)
