"""Tables that are read in parts give what they give when they are read at once, with the same errors."""

import json
import random
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.importing import outcomes, rows, spool
from orchestrator.importing.collecting import Collected, collect, record
from orchestrator.importing.options import import_options
from orchestrator.importing.spool import Row, StoredRows
from orchestrator.ledger.facts import imported_of
from orchestrator.ledger.reader import LedgerReader

HEADER = ("lr", "step", "loss", "grad_norm")
BY_CURVES = import_options(axis=["lr"], step="step", loss="loss", run=("lr",), grad_norm="grad_norm")


def points() -> list[tuple[str, ...]]:
    """Rows of four runs in any order, some without a loss, a step or a norm, and some that repeat a step."""
    chance = random.Random(0)
    found = []
    for step in range(80):
        for run in range(4):
            loss = chance.choice([f"{3 / (1 + step):.4f}"] * 9 + ["nan", "", "abc"])
            at = chance.choice([str(step)] * 19 + ["x", "1.5", "0"])
            found.append((f"0.{run + 1}", at, loss, chance.choice(["1.5", "", "nan"])))
    chance.shuffle(found)
    return found


def written(folder: Path, kind: str) -> str:
    path, records = folder / f"table.{kind}", [dict(zip(HEADER, point, strict=True)) for point in points()]
    if kind == "parquet":
        pd.DataFrame(records).to_parquet(path)
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    elif kind == "json":
        path.write_text(json.dumps(records, indent=1))
    else:
        path.write_text("\n".join(map(",".join, [HEADER, *points()])))
    return str(path)


def digest(folder: Path, found: Collected) -> str:
    record(folder / "made", "made", found, replaces=True)
    with LedgerReader(folder / "made" / LEDGER) as ledger:
        imported = imported_of(ledger.facts())
    assert imported is not None
    return imported.digest


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
def test_the_size_of_parts_does_not_change_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = written(tmp_path, kind)
    whole = collect([table], BY_CURVES, tmp_path)
    assert len(whole.runs) == 4
    assert len(whole.left_out) > 20
    expected = digest(tmp_path, whole)
    for module, name, size in (
        (spool, "_ROWS", 7), (spool, "_IN_MEMORY", 10), (rows, "_BATCH", 11),
        (outcomes, "_MAX_BUFFERED", 13), (outcomes, "_MAX_POINTS", 50),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, size)
    assert digest(tmp_path, collect([table], BY_CURVES, tmp_path)) == expected


def test_rows_can_be_read_again_while_others_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_ROWS", 3)
    monkeypatch.setattr(spool, "_IN_MEMORY", 10)
    stored, listed = StoredRows(), [Row(f"a:{i}", {"lr": i}) for i in range(10)]
    stored.extend(listed[:4])
    assert list(stored) == listed[:4]
    stored.extend(listed[4:])
    assert list(zip(stored, stored, strict=True)) == list(zip(listed, listed, strict=True))
    assert len(stored) == 10


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"lr,step,loss\n0.1,0,1\n0.1,1,\xe2\x82\n", "is not UTF-8 text (byte 27)"),
        (b"\xef\xbb\xbf\n# note\nlr,step,loss\n0.1,0,1,2\n", "table.csv:4: has 4 cells, and the header has 3"),
        (b'lr,step,loss\n"0.1\n",0\n0.1,2,x\n', "table.csv:2: has 2 cells"),
        (b'lr,step,loss\r\n"a\r\nb",0,1\r\n\r\n0.1,2\r\n', "table.csv:5: has 2 cells"),
        (b"lr,step,loss\n\n# 0\n0.1,2,x\n", "table.csv:4: loss is 'x', not a number"),
        (b'{"lr": 1, "step": 2, "loss": "x"}\n\n{"lr": 1,\n', "table.csv:3: is not JSON"),
        (b"lr,step,loss\n0.1,0,1\n0.1,1,1\n0.1,1.0,2\n", "table.csv:4: step: has a step of another row"),
    ],
)
def test_errors_name_byte_and_line_of_a_file(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    try:
        found = collect([str(tmp_path / "table.csv")], import_options(axis=["lr"], step="step", loss="loss"), tmp_path)
        said = "; ".join(map(str, found.left_out))
    except InputError as error:
        said = str(error)
    assert says in said


def test_rows_are_chosen_one_by_one_and_true_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("lr,loss,flag\n1,2,true\n2,2,1\n3,2,1.0\n")
    for where, num in (("flag=true", 1), ("flag=1", 2)):
        options = import_options(axis=["lr"], outcome="loss", where=[where])
        assert len(collect([str(tmp_path / "table.csv")], options, tmp_path).runs) == num
