"""The values of one axis compared as sweeps: beside sweeps in which each value is fixed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.answers._comparison import comparison_lines
from orchestrator.answers.compare import CompareQuery
from orchestrator.answers.compare import Comparison as Answer
from orchestrator.base.errors import InputError
from orchestrator.base.space import Cell
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import comparison
from orchestrator.maps.table import SweepTable, read_table, slices

LR = "seeds: [0, 1, 2]\naxes:\n  lr: {values: [0.01, 0.1, 1.0]}\n"
EDGES = {"sgd": 0.05, "adamw": 0.5, "lion": 0.5}
WORDS = LR + "  optimizer: {values: [sgd, adamw, lion]}\n"


def swept(folder: Path, body: str, is_stable: Callable[[dict], bool]) -> Path:
    """The folder of a sweep in which some cells are stable."""
    sweep = sweep_of(body, f"name: {folder.name}\nobjective: quadratic\nsteps: 20\n")
    with ledger_at(folder) as ledger:
        map_ledger(ledger, sweep, ["stable" if is_stable(dict(t.cell)) else "diverged" for t in sweep.trials])
    return folder


def table_of(folder: Path) -> SweepTable:
    with LedgerReader(folder / "ledger.db") as ledger:
        return read_table(ledger)


def whole(tmp_path: Path) -> Path:
    return swept(tmp_path / "whole", WORDS, lambda cell: cell["lr"] < EDGES[cell["optimizer"]])


def lines_along(folder: Path, axis: str, base: str | None = None) -> list[str]:
    return comparison_lines(comparison.compare(slices(table_of(folder), axis, base)))


def asked(*folders: Path, **options) -> Answer:
    """The answer of `sweep compare`."""
    return CompareQuery(**options).ask(list(map(table_of, folders)))


def test_values_are_compared_as_sweeps_in_which_they_are_fixed(tmp_path: Path) -> None:
    parts = [
        swept(tmp_path / name, f"{LR}fixed: {{optimizer: {name}}}\n", lambda cell, name=name: cell["lr"] < EDGES[name])
        for name in EDGES
    ]
    along = comparison.compare(slices(table_of(whole(tmp_path)), "optimizer", None))
    apart = comparison.compare(list(map(table_of, parts)))
    assert [side.name for side in along.sides] == ["optimizer=sgd", "optimizer=adamw", "optimizer=lion"]
    assert [replace(each, name="") for each in along.differences] == [
        replace(each, name="") for each in apart.differences
    ]
    assert along.changed == apart.changed
    assert [(side.area, side.area_interval) for side in along.sides] == [
        (side.area, side.area_interval) for side in apart.sides
    ]


def test_the_base_comes_first(tmp_path: Path) -> None:
    lines = lines_along(whole(tmp_path), "optimizer", "lion")
    assert lines[2] == "shared: 3 cells (lr)", "after a verdict for each"
    assert "differs: optimizer = lion, sgd, adamw" in lines
    sgd, adamw = (line for line in lines if " against optimizer=lion: " in line)
    assert sgd.startswith("optimizer=sgd against optimizer=lion: the stable area changes by -33.3 points")
    assert adamw.startswith("optimizer=adamw against optimizer=lion: the stable area changes by +0.0 points")


def test_axes_that_advance_with_it_are_no_axes_either(tmp_path: Path) -> None:
    body = f"{LR}  beta1: {{values: [0.1, 0.5]}}\n  batch_size: {{values: [4, 8]}}\nzip: [[batch_size, beta1]]\n"
    folder = swept(tmp_path / "zipped", body, lambda cell: cell["lr"] < 0.5)
    for axis in ("batch_size", "beta1"):
        lines = lines_along(folder, axis)
        assert lines[1] == "shared: 3 cells (lr)"
        assert {"differs: beta1 = 0.1, 0.5", "differs: batch_size = 4, 8"} <= set(lines)


def test_ties_are_the_same_on_all_sides(tmp_path: Path) -> None:
    body = f"{LR}  batch_size: {{values: [4, 8]}}\ntie: {{lr: lr * batch_size}}\n"
    lines = lines_along(swept(tmp_path / "tied", body, lambda cell: cell["lr"] < 0.5), "batch_size")
    assert [line for line in lines if line.startswith(("shared", "differs"))] == [
        "shared: 3 cells (lr)",
        "differs: batch_size = 4, 8",
    ]


def test_what_trials_tell_of_each_other_stays_that_of_the_whole_sweep(tmp_path: Path) -> None:
    folder = whole(tmp_path)
    table = table_of(folder)
    found = {row.trial_id: row for part in slices(table, "optimizer", None) for row in part.trials}
    rows = table.trials
    assert len(rows) == len(found)
    for row in rows:
        assert found[row.trial_id] == replace(row, cell=Cell(lr=row.cell["lr"]))


def test_an_axis_that_exists_for_one_value_only_leaves_nothing_to_compare(tmp_path: Path) -> None:
    body = f"{LR}  beta1: {{values: [0.1, 0.5], when: {{optimizer: adamw}}}}\n  optimizer: {{values: [sgd, adamw]}}\n"
    folder = swept(tmp_path / "conditional", body, lambda cell: cell["lr"] < 0.5)
    with pytest.raises(InputError, match="their values of beta1 differ"):
        lines_along(folder, "optimizer")


def test_the_command_writes_words_and_a_picture(tmp_path: Path, command_line: Callable) -> None:
    code, said = command_line("compare", str(whole(tmp_path)), "--by", "optimizer")
    assert code == 0
    picture = tmp_path / "compare" / "whole_by_optimizer.png"
    assert said.splitlines()[-1] == f"picture: {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_values_are_compared_on_fitted_surfaces_where_cells_are_scattered(tmp_path: Path) -> None:
    body = "sample: {method: sobol, num: 60}\naxes: {lr: {log: [0.01, 1.0]}, optimizer: {values: [sgd, adamw]}}\n"
    folder = swept(tmp_path / "scattered", body, lambda cell: cell["lr"] < EDGES[cell["optimizer"]])
    lines = asked(folder, by="optimizer", base="sgd").lines()
    assert lines[1] == "compared: lr 0.01 to 1, which all cover"
    assert any("optimizer=adamw against optimizer=sgd" in line for line in lines)
    with pytest.raises(InputError, match="--by lr: its cells are scattered over a range"):
        asked(folder, by="lr")


def test_cells_that_a_search_spread_are_counted_for_each_value(tmp_path: Path) -> None:
    body = "axes: {lr: {log: [0.01, 1.0]}, optimizer: {values: [sgd, adamw]}}\nsearch: {method: edge, trials: 40}\n"
    folder = swept(tmp_path / "sought", body, lambda cell: cell["lr"] < EDGES[cell["optimizer"]])
    table = table_of(folder)
    first = list(dict.fromkeys(row.cell for row in table.trials))[: table.num_initial]
    for part, name in zip(slices(table, "optimizer", "sgd"), ("sgd", "adamw"), strict=True):
        assert part.num_initial == sum(cell["optimizer"] == name for cell in first)


@pytest.mark.parametrize(
    ("by", "base", "says"),
    [
        ("momentum", None, "--by: 'momentum' is not an axis"),
        ("optimizer", "adam", "no cell has adam"),
        (None, "sgd", "--base sgd: is a value of the axis of --by, which is not given"),
        (None, None, "one sweep cannot be compared"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, by: str | None, base: str | None, says: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(whole(tmp_path), by=by, base=base)
    assert says in str(caught.value)


def test_an_axis_is_compared_in_one_sweep_with_another_axis_and_few_values(tmp_path: Path) -> None:
    folder = whole(tmp_path)
    with pytest.raises(InputError, match="compares the values of an axis in one sweep, and 2 are given"):
        asked(folder, folder, by="optimizer")
    alone = swept(tmp_path / "alone", LR, lambda cell: True)
    with pytest.raises(InputError, match="there is no other axis"):
        lines_along(alone, "lr")
    body = "axes: {lr: {values: [0.1, 0.2]}, warmup: {linear: [0, 12], num: 13}}\n"
    with pytest.raises(InputError, match="it has 13 values"):
        lines_along(swept(tmp_path / "many", body, lambda cell: True), "warmup")
