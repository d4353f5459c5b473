from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from sweep_cases import map_ledger, sweep_of

from orchestrator.base.errors import InputError, StorageError
from orchestrator.base.files import EDGE_PICTURE, EDGE_TABLE, LEDGER
from orchestrator.commands.boundary import boundary
from orchestrator.commands.export_edge import export_edge
from orchestrator.commands.gc import gc
from orchestrator.ledger.writer import LedgerWriter

AXES = {
    "grid": "axes: {lr: {log: [0.001, 1.0], num: 4}, beta1: {values: [0.0, 0.5]}}\n",
    "scattered": "axes: {lr: {log: [0.001, 1.0]}, beta1: {values: [0.0, 0.5]}}\nsample: {method: sobol, num: 40}\n",
}


@pytest.fixture(params=AXES)
def folder(request, tmp_path: Path) -> Path:
    """A finished sweep whose edge is at a learning rate of 0.05: a grid, or scattered cells."""
    sweep, folder = sweep_of(AXES[request.param]), tmp_path / "case"
    folder.mkdir()
    with LedgerWriter(folder / LEDGER) as ledger:
        map_ledger(ledger, sweep, ["stable" if trial.cell["lr"] < 0.05 else "diverged" for trial in sweep.trials])
    return folder


def export(folder: Path, output: Path | None = None, **options) -> list[str]:
    chosen = {"x": None, "y": None, "facet": None, "where": {}, "degraded": False} | options
    return list(export_edge(folder, **chosen, output=output))


def test_a_picture_and_a_table_lie_beside_the_ledger_until_they_are_cleaned_up(folder: Path) -> None:
    assert export(folder) == [f"wrote {folder / EDGE_PICTURE}", f"wrote {folder / EDGE_TABLE}"]
    assert (folder / EDGE_PICTURE).read_bytes().startswith(b"\x89PNG")
    assert "removed 2 files of the edge" in "\n".join(gc(folder, exports=True, dry_run=False))
    assert not {folder / EDGE_PICTURE, folder / EDGE_TABLE} & set(folder.iterdir())


@pytest.mark.slow
def test_only_the_file_that_is_named_is_written(folder: Path, tmp_path: Path) -> None:
    for name, begins in (("e.csv", b"beta1,edge,"), ("e.svg", b"<?xml"), ("e.PDF", b"%PDF")):
        assert export(folder, tmp_path / name) == [f"wrote {tmp_path / name}"]
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert not list(folder.glob("edge.*"))
    with pytest.raises(InputError, match=r"end it in \.png, \.svg, \.pdf or \.csv"):
        export(folder, tmp_path / "e.jpg")


def test_the_table_has_the_numbers_of_the_boundary(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "edge.csv")
    list(boundary(folder, None, None, {}, "worst", False, tmp_path / "edge.json"))
    table = list(csv.DictReader((tmp_path / "edge.csv").read_text().splitlines()))
    told = json.loads((tmp_path / "edge.json").read_text())["rows"]
    for row, cells in zip(table, told, strict=True):
        (edge,) = cells["edges"]
        low, high = (edge["low"], edge["high"]) if "low" in edge else (edge["stable"], edge["not_stable"])
        numbers = {name: float(row[name]) for name in ("beta1", "edge", "low", "high")}
        assert numbers == {"beta1": cells["setting"]["beta1"], "edge": edge["at"], "low": low, "high": high}
        assert row["kind"] == "stable below"


def test_nothing_is_written_where_a_link_points_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(StorageError, match="is a link"):
        export(tmp_path / "link")
    assert not (folder / EDGE_PICTURE).exists()
