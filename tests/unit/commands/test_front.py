from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from sweep_cases import map_ledger, sweep_of

from orchestrator.api.results import load
from orchestrator.base.errors import InputError, StorageError
from orchestrator.base.files import FRONT_PICTURE, FRONT_TABLE, LEDGER
from orchestrator.commands.export_front import export_front
from orchestrator.commands.front import front
from orchestrator.commands.gc import gc
from orchestrator.ledger.writer import LedgerWriter

AXES = {
    "grid": "axes: {lr: {log: [0.001, 1.0], num: 4}, beta1: {values: [0.0, 0.5]}}\n",
    "scattered": "axes: {lr: {log: [0.001, 1.0]}, beta1: {values: [0.0, 0.5]}}\nsample: {method: sobol, num: 40}\n",
}


@pytest.fixture(params=AXES)
def folder(request, tmp_path: Path) -> Path:
    """A finished sweep whose edge is at a learning rate of 0.05, and whose loss falls up to it."""
    sweep, folder = sweep_of(AXES[request.param]), tmp_path / "case"
    folder.mkdir()
    with LedgerWriter(folder / LEDGER) as ledger:
        is_stable = [trial.cell["lr"] < 0.05 for trial in sweep.trials]
        losses = [1 / trial.cell["lr"] if one else None for trial, one in zip(sweep.trials, is_stable, strict=True)]
        map_ledger(ledger, sweep, ["stable" if one else "diverged" for one in is_stable], losses)
    return folder


def export(folder: Path, output: Path | None = None, **options) -> list[str]:
    chosen = {"metric": "final_loss", "against": "margin", "along": None, "target": None, "degraded": False} | options
    return list(export_front(folder, **chosen, output=output))


def test_a_picture_and_a_table_lie_beside_the_ledger_until_they_are_cleaned_up(folder: Path) -> None:
    assert export(folder) == [f"wrote {folder / FRONT_PICTURE}", f"wrote {folder / FRONT_TABLE}"]
    assert (folder / FRONT_PICTURE).read_bytes().startswith(b"\x89PNG")
    assert "removed 2 files of the front" in "\n".join(gc(folder, exports=True, dry_run=False))
    assert not {folder / FRONT_PICTURE, folder / FRONT_TABLE} & set(folder.iterdir())


@pytest.mark.slow
def test_only_the_file_that_is_named_is_written(folder: Path, tmp_path: Path) -> None:
    for name, begins in (("f.csv", b"lr,beta1,state,"), ("f.svg", b"<?xml"), ("f.PDF", b"%PDF")):
        assert export(folder, tmp_path / name) == [f"wrote {tmp_path / name}"]
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert not list(folder.glob("front.*"))
    with pytest.raises(InputError, match=r"end it in \.png, \.svg, \.pdf or \.csv"):
        export(folder, tmp_path / "f.jpg")


def test_answer_json_table_and_notebook_have_the_same_front(folder: Path, tmp_path: Path) -> None:
    lines = list(front(folder, "final_loss", "margin", "lr", None, False, tmp_path / "front.json"))
    export(folder, tmp_path / "front.csv", along="lr")
    told = json.loads((tmp_path / "front.json").read_text())
    rows = list(csv.DictReader((tmp_path / "front.csv").read_text().splitlines()))
    members = load(folder).front("final_loss", along="lr").members
    settings = [dict(cell.setting) for cell in members]
    assert [one["setting"] for one in told["front"]] == settings
    of_table = sorted((float(row["final_loss"]), float(row["lr"])) for row in rows if row["kind"] == "front")
    assert of_table == [(cell.loss, cell.setting["lr"]) for cell in members]
    assert [line.split(": ")[0].strip() for line in lines[2 : 2 + len(members)]] == [cell.name for cell in members]
    assert (told["along"], told["is_fitted"]) == ("lr", len(rows) == 40)


def test_nothing_is_written_where_a_link_points_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(StorageError, match="is a link"):
        export(tmp_path / "link")
    assert not (folder / FRONT_PICTURE).exists()
