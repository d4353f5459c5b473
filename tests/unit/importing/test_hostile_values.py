"""Values of others that are huge, booleans, control characters, formulas or aliases of YAML."""

from pathlib import Path

import pandas as pd
import pytest

from orchestrator.api.importing import import_results
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.importing.collecting import Collected, collect, record
from orchestrator.importing.options import import_options
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import as_csv, trial_table

HUGE = "9" * 400


def imported(folder: Path, text: str, name: str = "table.csv", **options: object) -> Collected:
    (folder / name).write_text(text)
    collected = collect([str(folder / name)], import_options(**{"outcome": "loss", **options}), folder)
    record(folder / "made", "made", collected, replaces=True)
    return collected


def cells(collected: Collected) -> list[dict]:
    return [dict(run.settings.cell) for run in collected.runs]


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("table.csv", f"lr,loss\n{HUGE},1\n0.1,2\n", 1),
        ("table.jsonl", f'{{"lr": {HUGE}, "loss": 1}}\n{{"lr": 0.1, "loss": 2, "w": [-{HUGE}]}}\n', 1),
        ("table.csv", f"lr,loss,w\n0.1,{HUGE},{HUGE}\n0.2,2,{HUGE}\n", 2),
    ],
)
def test_a_number_beyond_every_float_is_infinite(tmp_path: Path, name: str, text: str, left: int) -> None:
    assert len(imported(tmp_path, text, name, axis=["lr"]).runs) == left


@pytest.mark.parametrize("column", ["seed", "steps"])
def test_a_count_that_no_ledger_holds_is_left_out(tmp_path: Path, column: str) -> None:
    text = f"lr,{column},loss\n0.1,{2**63 - 1},1\n0.1,{2**63},2\n0.1,{HUGE},2\n"
    collected = imported(tmp_path, text, axis=["lr"], **{column: column})
    assert len(collected.runs) == 1
    assert len(collected.left_out) == 2


@pytest.mark.parametrize("steps", [HUGE, "²"])
def test_a_length_that_is_not_a_number_of_steps_is_a_column(tmp_path: Path, steps: str) -> None:
    with pytest.raises(InputError, match="is not a column"):
        imported(tmp_path, "lr,loss\n0.1,1\n", axis=["lr"], steps=steps)


def test_true_is_not_one_where_a_column_has_both(tmp_path: Path) -> None:
    text = "lr,x,loss\n0.1,true,1.5\n0.1,1,2\n0.1,1.0,3\n0.1,False,4\n0.1,0,5\n"
    assert [cell["x"] for cell in cells(imported(tmp_path, text, axis=["lr", "x"]))] == [0, 1, 1, "false", "true"]
    assert len(imported(tmp_path, text, axis=["lr"], where=["x=1"]).runs) == 2
    assert len(imported(tmp_path, text, axis=["lr"], where=["x=true"]).runs) == 1
    assert "x" not in imported(tmp_path, "lr,x,loss\n0.1,true,1.5\n0.2,1,2\n", axis=["lr"]).runs[0].settings.fixed
    assert cells(imported(tmp_path, "x,loss\ntrue,1\nfalse,2\n", axis=["x"])) == [{"x": False}, {"x": True}]


def test_no_control_character_of_a_table_reaches_the_terminal(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text('o\x1b[2Jpt,loss\n"a\x1b[31m\nerror: false",1\nb,"2\nx"\nb,2\n')
    options = import_options(axis=[r"o\x1b[2Jpt"], outcome="loss", map=[r"skip=2\nx"])
    lines = list(map(str, import_results([str(table)], "made", options, tmp_path)))
    assert any(r"a\x1b[31m\nerror: false" in line for line in lines)
    assert not any(line.startswith("error") or "\x1b" in line for text in lines for line in text.split("\n"))


def test_a_table_has_no_formulas(tmp_path: Path) -> None:
    text = 'opt,lr,loss\n"=HYPERLINK(""http://a"")",-1,1\n@sum,2,2\n-,3,3\n'
    imported(tmp_path, text, axis=["opt", "lr"])
    with LedgerReader(tmp_path / "made" / LEDGER) as ledger:
        written = as_csv(trial_table(read_table(ledger)))
    (tmp_path / "trials.csv").write_text(written)
    shown = pd.read_csv(tmp_path / "trials.csv")
    assert sorted(shown.opt) == ['\'=HYPERLINK("http://a")', "'@sum", "-"]
    assert sorted(shown.lr) == [-1, 2, 3]


@pytest.mark.parametrize(
    "bomb",
    [
        "\n".join(["a0: &a0 [1, 1]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30))]),
        "\n".join(["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 30))]),
        "a: &a [*a]",
        "a: &a {b: *a}",
        "a: " + "[" * 100_000,
    ],
)
def test_aliases_that_stand_for_too_much_are_refused(tmp_path: Path, bomb: str) -> None:
    folder = tmp_path / "runs"
    for name, config in (("good", "lr: &lr 0.1\nwarm: [*lr, *lr]"), ("bad", bomb)):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.yaml").write_text(config)
        (folder / name / "log.csv").write_text("step,loss\n" + "".join(f"{i},{1 + i % 2}\n" for i in range(60)))
    collected = collect([str(folder)], import_options(axis=["lr"]), tmp_path)
    assert [run.settings.cell["lr"] for run in collected.runs] == [0.1]
    assert len(collected.left_out) == 1
