"""Fitted surfaces compared: beside the answer of grids, with planted edges, and what is refused."""

import contextlib
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.answers._comparison import comparison_lines
from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, Cell, Trial
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.comparison import Comparison, compare, compared_maps, compared_meshes, row_shift
from orchestrator.maps.edges import Edge, Row, StableRule
from orchestrator.maps.surface_map import mesh_cells
from orchestrator.maps.table import read_table
from orchestrator.render.comparison import comparison_picture

GRID = "seeds: [0, 1]\naxes:\n  lr: {log: [0.001, 1.0], num: 13}\n  beta1: {linear: [0.0, 0.9], num: 5}\n"
SAMPLED = "seeds: [0, 1]\nsample: {method: sobol, num: 64}\naxes:\n"
RANGES = SAMPLED + "  lr: {log: [0.001, 1.0]}\n  beta1: {linear: [0.0, 0.9]}\n"
STEP = 1000 ** (1 / 12)  # of the grid along lr
Outcome = Callable[[Trial], str]


def planted(factor: float = 1.0) -> Outcome:
    """An edge at a learning rate that rises with beta1, times ``factor``."""

    def outcome(trial: Trial) -> str:
        return "stable" if trial.cell["lr"] < factor * 10 ** (-2 + 0.8 * trial.cell.get("beta1", 0.0)) else "diverged"

    return outcome


def folders_of(folder: Path, *sweeps: tuple[str, Outcome]) -> list[Path]:
    """A folder with a ledger for each sweep, named s0, s1 and so on."""
    found = []
    for i, (body, outcome) in enumerate(sweeps):
        sweep = sweep_of(body, f"name: s{i}\nobjective: quadratic\nsteps: 20\n")
        (folder / f"s{i}").mkdir()
        with ledger_at(folder / f"s{i}") as ledger:
            map_ledger(ledger, sweep, [outcome(trial) for trial in sweep.trials])
        found.append(folder / f"s{i}")
    return found


@contextlib.contextmanager
def opened(folders: list[Path]):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(LedgerReader(folder / "ledger.db")) for folder in folders]


def compared(folder: Path, *sweeps: tuple[str, Outcome], **options) -> Comparison:
    with opened(folders_of(folder, *sweeps)) as ledgers:
        return compare(list(map(read_table, ledgers)), **options)


def mark_as_scattered(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as db, db:
        assert db.execute("UPDATE facts SET value = 'true' WHERE name = 'is_sampled'").rowcount == 1


@pytest.mark.slow
def test_on_grids_the_surfaces_and_the_shared_cells_give_the_same_answer(tmp_path: Path) -> None:
    folders = folders_of(tmp_path, (GRID, planted()), (GRID, planted(4.0)))
    with opened(folders) as ledgers:
        cells = compare(list(map(read_table, ledgers)))
    for folder in folders:
        mark_as_scattered(folder)
    with opened(folders) as ledgers:
        surfaces = compare(list(map(read_table, ledgers)))
    (of_cells,), (of_surfaces,) = cells.differences, surfaces.differences
    for side, fitted_side in zip(cells.sides, surfaces.sides, strict=True):
        assert fitted_side.area == pytest.approx(side.area, abs=0.04)
    assert of_surfaces.area_change == pytest.approx(of_cells.area_change, abs=0.04)
    assert of_surfaces.pairs == of_cells.pairs
    factors = [row.factor for row in of_surfaces.rows]
    assert len(factors) == 9
    assert None not in factors
    assert abs(math.log(np.median(factors) / np.median([row.factor for row in of_cells.rows]))) < math.log(STEP)


@pytest.mark.slow
def test_a_grid_can_be_compared_with_scattered_cells(tmp_path: Path) -> None:
    found = compared(tmp_path, (GRID, planted()), (RANGES, planted()))
    (difference,) = found.differences
    assert (difference.area_interval, difference.is_paired) == (None, True)
    assert difference.p_value > 0.05
    assert 1 / STEP < np.median([row.factor for row in difference.rows]) < STEP


@pytest.mark.slow
def test_a_sweep_beside_itself_has_no_change_and_intervals_that_say_so(tmp_path: Path) -> None:
    (folder,) = folders_of(tmp_path, (RANGES, planted()))
    with opened([folder, folder]) as ledgers:
        found = compare(list(map(read_table, ledgers)))
    (difference,) = found.differences
    assert difference.area_change == 0
    assert (difference.area_interval, difference.p_value) == (None, 1.0)
    assert [row.factor for row in difference.rows] == [1.0] * 9
    assert [side.name for side in found.sides] == ["s0 (1)", "s0 (2)"]
    text = "\n".join(comparison_lines(found))
    assert "differs: nothing but the trials" in text
    assert "Of 128 trials of the same cell and seed, 0 became stable and 0 stopped" in text
    assert "2 paired seeds cannot tell a difference from chance: 6 can (p = 1 by" in text
    assert "fitted, to 128 and 128 trials" in text


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_planted_factor_is_found(tmp_path: Path, factor: float) -> None:
    bodies = [
        RANGES.replace("[0, 1]", seeds).replace("num: 64", f"num: {num}")
        for seeds, num in (("[0, 1, 2, 3, 4, 5]", 64), ("[6, 7, 8, 9, 10, 11]", 100))
    ]
    found = compared(tmp_path, (bodies[0], planted()), (bodies[1], planted(factor)))
    (difference,) = found.differences
    assert np.median([row.factor for row in difference.rows if row.factor is not None]) == pytest.approx(
        factor, rel=0.3
    )
    assert difference.area_interval.low < math.log10(factor) / 3 < difference.area_interval.high
    assert abs(difference.area_change - math.log10(factor) / 3) < 0.05
    word = "more" if factor > 1 else "less"
    assert f"More than chance: s1 is {word} stable here (p = " in "\n".join(comparison_lines(found))


@pytest.mark.slow
def test_only_what_all_cover_is_compared_and_the_rest_is_named(tmp_path: Path) -> None:
    higher = RANGES.replace("[0.001, 1.0]", "[0.01, 10.0]")
    found = compared(tmp_path, (RANGES, planted()), (higher, planted()))
    # Over 0.01 to 1 the edge rises from the low end by 0.72 of two decades.
    for side in found.sides:
        assert side.area == pytest.approx(0.36 / 2, abs=0.06)
    lines = comparison_lines(found)
    assert lines[1:4] == [
        "compared: lr 0.01 to 1 x beta1 0 to 0.9, which all cover",
        "  left out: the rest of s0, which covers lr 0.001 to 1",
        "  left out: the rest of s1, which covers lr 0.01 to 10",
    ]


@pytest.mark.slow
def test_of_listed_values_the_shared_ones_are_compared_each_in_its_own_row(tmp_path: Path) -> None:
    edges = {"sgd": 0.2, "adamw": 0.01, "lion": 0.001}

    def by_value(factors: dict[str, float]) -> Outcome:
        def outcome(trial: Trial) -> str:
            word = trial.cell["optimizer"]
            return "stable" if trial.cell["lr"] < edges[word] * factors.get(word, 1.0) else "diverged"

        return outcome

    body = SAMPLED + "  lr: {log: [0.001, 1.0]}\n  optimizer: {values: [sgd, adamw]}\n"
    other = body.replace("[sgd, adamw]", "[lion, adamw, sgd]").replace("num: 64", "num: 96")
    found = compared(tmp_path, (body, by_value({})), (other, by_value({"adamw": 6.0})))
    assert set(found.axes[1].values) == {"sgd", "adamw"}
    rows = {row.before.setting["optimizer"]: row for row in found.differences[0].rows}
    assert rows["sgd"].factor == pytest.approx(1, rel=0.4)
    assert rows["adamw"].factor == pytest.approx(6, rel=0.4)
    assert compared_meshes(found, "lr", "optimizer") is None
    (ranks,) = {stability.y_values for stability in compared_maps(found)}
    assert set(ranks) == {"sgd", "adamw", "lion"}


@pytest.mark.slow
def test_a_list_is_compared_with_a_range_at_its_values(tmp_path: Path) -> None:
    listed = GRID.replace("{linear: [0.0, 0.9], num: 5}", "{values: [0.0, 0.3, 0.6, 0.95]}")
    found = compared(tmp_path, (listed, planted()), (RANGES, planted()))
    assert [row.before.setting for row in found.differences[0].rows] == [{"beta1": value} for value in (0.0, 0.3, 0.6)]
    maps = compared_maps(found)
    assert [len({cell.y for cell in stability.cells.values()}) for stability in maps] == [3, 64]
    assert comparison_picture("svg", maps, None).startswith(b"<?xml")


def test_rows_without_one_edge_in_both_are_counted_and_shown(tmp_path: Path) -> None:
    found = compared(tmp_path, (RANGES, planted()), (RANGES, lambda trial: "stable"))
    text = "\n".join(comparison_lines(found))
    assert "The edge along lr cannot be compared: none of 9 rows has one edge in both." in text
    assert len([line for line in text.splitlines() if line.startswith("  beta1=") and " in s0; " in line]) == 9


@pytest.mark.slow
def test_of_several_edges_in_a_row_the_number_is_told(tmp_path: Path) -> None:
    def outcome(trial: Trial) -> str:
        return "stable" if trial.cell["lr"] < 0.01 or trial.cell["lr"] > 0.2 else "spiked"

    found = compared(tmp_path, (RANGES, planted()), (RANGES, outcome))
    lines = [line for line in comparison_lines(found) if line.startswith("  beta1=")]
    assert all(line.endswith("; 2 edges in s1") for line in lines)


@pytest.mark.slow
def test_degraded_trials_are_not_stable_and_beyond_the_edge_only_where_that_is_asked_for(tmp_path: Path) -> None:
    def low_is_degraded(trial: Trial) -> str:
        return "degraded" if trial.cell["lr"] < 0.004 else planted()(trial)

    folders = folders_of(tmp_path, (RANGES, planted()), (RANGES, low_is_degraded))
    with opened(folders) as ledgers:
        tables = list(map(read_table, ledgers))
        plain, counted = (compare(tables, rule=StableRule(asked)) for asked in (False, True))
    num = plain.sides[1].num_degraded
    assert num > 0
    assert plain.differences[0].area_change == counted.differences[0].area_change < -0.1
    assert all(row.factor == pytest.approx(1, abs=0.05) for row in plain.differences[0].rows)
    assert not any(row.factor for row in counted.differences[0].rows), "its rows have a lower edge, too"
    assert f"  not counted: {num} trials degraded" in comparison_lines(plain)


def row_of(*edges: Edge) -> Row:
    return Row(Cell(), "crosses", edges, p_stable=0.5)


def row_with(at: float | None, low: float | None, high: float | None, is_stable_below: bool = True) -> Row:
    return row_of(Edge(at, low, high, is_stable_below, "fit"))


LR, BETA2 = Axis("lr", "log", (), (1e-3, 1.0)), Axis("beta2", "log1m", (), (0.9, 0.9999))


def test_a_factor_on_a_log1m_axis_is_that_of_the_distance_to_one() -> None:
    found = row_shift(row_with(0.99, 0.98, 0.995), row_with(0.999, 0.998, 0.9995), BETA2)
    assert found.factor == pytest.approx(10)


@pytest.mark.parametrize(
    "after",
    [
        row_of(),
        row_with(None, 0.1, 0.2),
        row_with(0.4, 0.3, 0.5, is_stable_below=False),
        row_of(*row_with(0.1, 0.1, 0.1).edges, *row_with(0.4, 0.3, 0.5).edges),
    ],
    ids=["none", "in doubt", "of the other side", "two"],
)
def test_a_row_without_one_edge_on_the_same_side_has_no_factor(after: Row) -> None:
    assert row_shift(row_with(0.1, 0.05, 0.2), after, LR).factor is None


def test_a_single_row_is_told_and_drawn(tmp_path: Path) -> None:
    body = "seeds: [0]\nsample: {method: sobol, num: 30}\naxes: {lr: {log: [0.001, 1.0]}}\n"
    found = compared(tmp_path, (body, planted()), (body, planted(5.0)))
    (row,) = found.differences[0].rows
    assert f"moves by a factor {row.factor:.3g}." in "\n".join(comparison_lines(found))
    assert comparison_picture("png", compared_maps(found), compared_meshes(found, "lr", None)).startswith(b"\x89PNG")


@pytest.mark.parametrize("num_ranges", [1, 2, 3, 4])
def test_the_mesh_is_even_and_small(num_ranges: int) -> None:
    ranges = [LR, BETA2, Axis("a", "linear", (), (0.0, 1.0)), Axis("b", "linear", (), (0.0, 1.0))][:num_ranges]
    words = Axis("word", "values", tuple("pqr"))
    for region in (ranges, [*ranges, words]):
        cells = mesh_cells(region, "lr")
        assert 3 < len(cells) <= 1500
        assert np.mean([LR.unit(cell["lr"]) for cell in cells]) == pytest.approx(0.5, abs=0.02)
    assert {cell["word"] for cell in cells} == set("pqr")


OTHER_AXIS = SAMPLED + "  lr: {log: [0.001, 1.0]}\n  eps: {log: [1.0e-8, 1.0e-4]}\n"


@pytest.mark.parametrize(
    ("second", "options", "message"),
    [
        (OTHER_AXIS, {}, r"s1[\s\S]*has the axes lr, eps, and s0 has lr, beta1[\s\S]*same axes"),
        (RANGES.replace("[0.001, 1.0]", "[2.0, 9.0]"), {}, r"s0, s1[\s\S]*lr[\s\S]*s0: 0.001 to 1; s1: 2 to 9"),
        (RANGES.replace("num: 64", "num: 3"), {}, r"s1[\s\S]*6 trials with an outcome are too few"),
        (RANGES, {"x": "depth"}, r"--x[\s\S]*'depth' is not an axis[\s\S]*lr, beta1"),
        (GRID + "tie: {lr: 2 * lr}\n", {}, r"s1[\s\S]*lr[\s\S]*is tied otherwise than in the first"),
        (
            GRID.replace("num: 5", "num: 13") + "zip: [[lr, beta1]]\n",
            {},
            r"s1[\s\S]*lr[\s\S]*advances with another axis[\s\S]*without `zip`",
        ),
    ],
    ids=["axes", "region", "few", "x", "tie", "zip"],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, second: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compared(tmp_path, (RANGES, planted()), (second, lambda trial: "stable"), **options)


def test_lists_without_an_order_or_a_shared_value_are_refused(tmp_path: Path) -> None:
    bodies = [
        SAMPLED + f"  optimizer: {{values: [{words}]}}\n" for words in ("sgd, adamw", "sgd, adamw", "lion, radam")
    ]
    folders = folders_of(tmp_path, *((body, lambda trial: "stable") for body in bodies))
    with opened(folders) as (first, same, other):
        with pytest.raises(InputError, match="none of optimizer has values with an order"):
            compare([read_table(first), read_table(same)])
        with pytest.raises(InputError, match="no region of it in common"):
            compare([read_table(first), read_table(other)])


@pytest.mark.slow
def test_the_pictures_have_the_points_of_each_sweep_and_the_same_limits(tmp_path: Path) -> None:
    higher = RANGES.replace("[0.001, 1.0]", "[0.01, 10.0]").replace("num: 64", "num: 40")
    found = compared(tmp_path, (RANGES, planted()), (higher, planted()))
    maps, meshes = compared_maps(found), compared_meshes(found, "lr", "beta1")
    assert [len(stability.cells) for stability in maps] == [64, 40]
    assert {stability.x.ends for stability in maps} == {(0.001, 10.0)}
    assert meshes is not None
    assert [(mesh.x_X[0], mesh.x_X[-1]) for mesh in meshes.whole] == [(-3, 0), (-2, pytest.approx(1))]
    assert [(mesh.x_X[0], mesh.x_X[-1]) for mesh in meshes.common] == [(-2, 0), (-2, 0)]
    svg = comparison_picture("svg", maps, meshes).decode()
    for words in (
        "edge of stability, fitted",
        "edge of stability of s0",
        "95 % interval of the edge",
        "less that of s0",
    ):
        assert words in svg
