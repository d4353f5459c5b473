import math
from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of, table_with, trial_row

from orchestrator.answers._rows import named_rows
from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, Cell
from orchestrator.maps.edges import STABLE, Edge, Margin
from orchestrator.maps.grid_map import GridMap, row_of
from orchestrator.maps.stability_map import map_of
from orchestrator.maps.table import read_table

LOG = Axis("lr", "log", (1e-3, 1e-2, 1e-1, 1.0), (1e-3, 1.0))
S, D = "stable", "diverged"


def edges(states: list[str], axis: Axis = LOG):
    row = row_of(
        Cell(), [(value, STABLE.of_state(state)) for value, state in zip(axis.values, states, strict=True)], axis
    )
    return row.kind, [(e.stable, e.not_stable, e.at) for e in row.edges]


def about(value: float):
    return pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("states", "kind", "found"),
    [
        ([S, S, D, D], "crosses", [(1e-2, 1e-1, about(math.sqrt(1e-3)))]),
        ([D, S, S, S], "crosses", [(1e-2, 1e-3, about(math.sqrt(1e-5)))]),
        ([S, "unknown", D, D], "crosses", [(1e-3, 1e-1, about(1e-2))]),
        ([S, "errored", D, D], "crosses", [(1e-3, 1e-1, about(1e-2))]),
        ([S, D, S, S], "crosses more than once", [(1e-3, 1e-2, about(10**-2.5)), (1e-1, 1e-2, about(10**-1.5))]),
        ([S, S, S, S], "stable throughout", []),
        ([D, D, "spiked", D], "not stable throughout", []),
        ([S, S, "not_run", "unknown"], "stable throughout", []),
        (["not_run", "errored", "unknown", "not_run"], "not known", []),
    ],
)
def test_a_row_has_an_edge_wherever_stable_meets_not_stable(states, kind: str, found: list) -> None:
    assert edges(states) == (kind, found)


def test_the_edge_lies_in_the_middle_of_its_bracket_on_the_axis_own_scale() -> None:
    linear = Axis("x", "linear", (0.0, 2.0), (0.0, 2.0))
    near_one = Axis("beta2", "log1m", (0.9, 0.999), (0.9, 0.999))
    assert edges([S, D], linear)[1] == [(0.0, 2.0, 1.0)]
    assert edges([S, D], near_one)[1] == [(0.9, 0.999, about(0.99))]


def test_no_clipping_has_no_place_on_an_axis_and_the_edge_only_a_bracket() -> None:
    clip = Axis("clip", "values", (0.5, 1.0, None))
    assert edges([S, S, D], clip) == ("crosses", [(1.0, None, None)])


GRID = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 4}, eps: {values: [1e-8, 1e-4, 1e-2]}}\n"


def grid_with(folder: Path, labels: list[str], body: str = GRID) -> GridMap:
    with ledger_at(folder) as ledger:
        record(ledger, sweep_of(body), labels)
        return map_of(read_table(ledger))


def test_a_cell_is_stable_for_the_boundary_when_all_its_seeds_are(tmp_path: Path) -> None:
    # Cells in order: lr slowest, eps fastest, two seeds each.
    cells = [
        *(["stable"] * 2, ["stable"] * 2, ["planned"] * 2),  # lr 1e-3
        *(["stable"] * 2, ["stable", "spiked"], ["planned"] * 2),  # lr 1e-2
        *(["diverged"] * 2, ["stable"] * 2, ["errored"] * 2),  # lr 1e-1
        *(["diverged"] * 2, ["diverged"] * 2, ["planned"] * 2),  # lr 1
    ]
    stability = grid_with(tmp_path, [label for cell in cells for label in cell])
    one, several, nothing = stability.rows()
    edge = Edge(about(math.sqrt(1e-3)), 1e-2, 1e-1, is_stable_below=True, basis="bracket")
    assert (one.setting, one.kind, one.edges) == ({"eps": 1e-8}, "crosses", (edge,))
    assert (several.kind, len(several.edges)) == ("crosses more than once", 3)
    assert (nothing.kind, nothing.not_known) == ("not known", LOG.values)
    assert named_rows(stability) == [
        ("eps=0.01", "not known at lr 0.001, 0.01, 0.1 (2 errored), 1"),
        (
            "eps=0.0001",
            "crosses 3 times: edge near lr=0.00316 (lr 0.001 is stable, 0.01 is not); "
            "edge near lr=0.0316 (lr 0.1 is stable, 0.01 is not); edge near lr=0.316 (lr 0.1 is stable, 1 is not)",
        ),
        ("eps=1e-8", "edge near lr=0.0316 (lr 0.01 is stable, 0.1 is not)"),
    ]


def test_an_axis_without_an_order_has_no_edge(tmp_path: Path) -> None:
    stability = grid_with(tmp_path, ["stable"] * 2, "axes: {schedule: {values: [constant, linear]}}\n")
    with pytest.raises(InputError, match="no order"):
        stability.rows()


def test_the_boundary_of_the_quadratic_is_where_theory_puts_it(train, tmp_path: Path) -> None:
    """Gradient descent with an averaged momentum of beta1 is stable below lr = 2 (1 + beta1) / (1 - beta1) / h."""
    body = """
seeds: [0, 1]
axes: {lr: {log: [1, 64], num: 25}, beta1: {values: [0.0, 0.5, 0.8]}}
fixed: {optimizer: sgd, curvature: 1.0}
tracking: {enabled: false}
"""
    sweep = sweep_of(body, "name: known\nobjective: quadratic\nsteps: 200\n")
    train(sweep)
    with ledger_at(tmp_path / "known") as ledger:
        rows = map_of(read_table(ledger)).rows()
    for row in rows:
        (edge,) = row.edges
        known = 2 * (1 + row.setting["beta1"]) / (1 - row.setting["beta1"])
        assert edge.stable < known <= edge.not_stable
        assert edge.at == pytest.approx(known, rel=0.1), "the bracket is a factor of 1.19"


def margins(setting: Cell, axes: tuple[Axis, ...], states: dict[Cell, str]) -> list[Margin]:
    """The margins of a setting on a grid whose cells have these states."""
    trials = [trial_row(cell=cell, outcome=state) for cell, state in states.items() if state != "not_run"]
    return GridMap(table_with(trials, axes)).margins(setting)


STATES = {
    Cell(lr=lr, eps=eps): state
    for eps, row in {1e-8: [S, S, S, D], 1e-4: [S, S, S, S], 1e-2: ["not_run", "not_run", S, "spiked"]}.items()
    for lr, state in zip(LOG.values, row, strict=True)
}
AXES = (LOG, Axis("eps", "values", (1e-8, 1e-4, 1e-2)))


def test_margins_are_factors_to_the_last_stable_value_and_to_the_first_that_is_not() -> None:
    found = {
        (m.axis, m.is_upwards): (m.known, m.edge, m.last_stable, m.first_not_stable)
        for m in margins(Cell(lr=1e-2, eps=1e-8), AXES, STATES)
    }
    assert found == {
        ("lr", False): (about(10), None, 1e-3, None),
        ("lr", True): (about(10), about(100), 1e-1, 1.0),
        ("eps", False): (1.0, None, 1e-8, None),
        ("eps", True): (about(1e4), None, 1e-4, None),  # 1e-2 has not run
    }


def test_margins_near_one_are_factors_of_the_distance_to_one() -> None:
    axis = Axis("beta2", "log1m", (0.9, 0.99, 0.999), (0.9, 0.999))
    up = margins(Cell(beta2=0.9), (axis,), {Cell(beta2=0.9): S, Cell(beta2=0.99): S, Cell(beta2=0.999): D})[1]
    assert (up.known, up.edge) == (about(10), about(100))


def test_words_have_no_margin_and_nothing_is_any_factor_from_no_clipping() -> None:
    axes = (Axis("clip", "values", (1.0, None)), Axis("schedule", "values", ("constant", "linear")))
    settings = ((1.0, "linear", S), (None, "linear", D), (1.0, "constant", D))
    states = {Cell(clip=clip, schedule=schedule): state for clip, schedule, state in settings}
    (down, up) = margins(Cell(clip=1.0, schedule="linear"), axes, states)
    assert (down.edge, up.known, up.edge) == (None, 1.0, math.inf)
