import contextlib
from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.answers._comparison import comparison_content, comparison_lines
from orchestrator.base.errors import InputError
from orchestrator.maps.comparison import Comparison, Difference, compare, compared_maps
from orchestrator.maps.table import read_table

ROW = "seeds: [0, 1, 2]\naxes: {lr: {log: [1e-3, 1], num: 4}}\n"
S, D = ["stable"] * 3, ["diverged"] * 3


def compared(folder: Path, *sweeps: tuple[str, list[str]], **options) -> Comparison:
    with contextlib.ExitStack() as stack:
        ledgers = []
        for i, (body, labels) in enumerate(sweeps):
            ledger = stack.enter_context(ledger_at(folder / str(i)))
            record(ledger, sweep_of(body, f"name: s{i}\nobjective: quadratic\nsteps: 20\n"), labels)
            ledgers.append(ledger)
        return compare(list(map(read_table, ledgers)), **options)


def factors(difference: Difference) -> tuple[float | None, ...]:
    return tuple(row.factor for row in difference.rows)


def test_a_small_comparison_is_what_one_computes_by_hand(tmp_path: Path) -> None:
    one_stable = ["stable", "diverged", "diverged"]
    found = compared(tmp_path, (ROW, [*S, *one_stable, *D, *D]), (ROW, [*S, *S, *S, *D]))
    first, second = found.sides
    assert (found.num_cells, first.area, second.area) == (4, pytest.approx(4 / 12), pytest.approx(9 / 12))
    (difference,) = found.differences
    assert (difference.pairs.num, difference.pairs.num_gained, difference.pairs.num_lost) == (12, 5, 0)
    assert (difference.num_seeds, difference.is_paired, difference.p_value) == (3, True, pytest.approx(0.25))
    assert difference.area_change == pytest.approx(5 / 12)
    # The edge of the first is between 1e-3 and 1e-2, that of the second between 1e-1 and 1.
    assert factors(difference) == (pytest.approx(100),)
    assert comparison_content(found)["differences"][0]["edge"]["resolution"] == pytest.approx(10)


def test_a_sweep_compared_with_itself_differs_in_nothing(tmp_path: Path) -> None:
    labels = [*S, *S, "stable", "spiked", "diverged", *D]
    found = compared(tmp_path, (ROW, labels), (ROW, labels))
    (difference,) = found.differences
    assert (difference.area_change, difference.area_interval, difference.p_value) == (0, None, 1.0)
    assert factors(difference) == (1.0,)
    verdict, *_, details = comparison_lines(found)
    assert verdict.endswith("(p = 1 by permuting whole seeds, at least 0.25).")
    assert "is in the same bracket in the one row" in details


def test_only_shared_cells_are_compared_and_the_others_are_counted(tmp_path: Path) -> None:
    wider = "seeds: [0, 1, 2]\naxes: {lr: {log: [1e-3, 10], num: 5}}\n"
    found = compared(tmp_path, (ROW, [*S, *S, *D, *D]), (wider, [*S, *S, *D, *D, *D]))
    assert (found.num_cells, [side.num_left_out for side in found.sides]) == (4, [0, 1])
    assert found.differences[0].pairs.num == 12
    assert "  left out: 1 cell of s1 that the others do not have" in comparison_lines(found)


def test_an_axis_of_one_is_matched_with_the_fixed_value_of_the_other(tmp_path: Path) -> None:
    body = "seeds: [0]\naxes: {lr: {values: [0.1, 0.2]}}\nfixed: {beta1: 0.5}\n"
    both = "seeds: [0]\naxes: {lr: {values: [0.1, 0.2]}, beta1: {values: [0.0, 0.5]}}\n"
    found = compared(tmp_path, (body, ["stable"] * 2), (both, ["diverged", "stable", "diverged", "diverged"]))
    assert found.num_cells == 2
    assert (found.differences[0].pairs.num_gained, found.differences[0].pairs.num_lost) == (0, 1)
    assert found.changed == {}


def test_what_else_differs_is_named(tmp_path: Path) -> None:
    other = ROW + "fixed: {beta1: 0.5}\n"
    found = compared(tmp_path, (ROW, [*S, *S, *D, *D]), (other, [*S, *S, *D, *D]))
    assert found.changed == {"beta1": (0.9, 0.5)}
    assert "differs: beta1 = 0.9, 0.5" in comparison_lines(found)


def test_sweeps_that_share_no_cell_are_refused_with_the_reason(tmp_path: Path) -> None:
    other = "seeds: [0]\naxes: {lr: {values: [0.5, 0.7]}}\n"
    with pytest.raises(
        InputError, match=r"share no cell[\s\S]*values of lr differ \(s0: 0.001, 0.01, 0.1, 1; s1: 0.5, 0.7"
    ):
        compared(tmp_path, (ROW, [*S, *S, *D, *D]), (other, ["stable"] * 2))


def test_an_axis_that_the_other_objective_lacks_is_refused(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "a") as a, ledger_at(tmp_path / "b") as b:
        record(a, sweep_of("axes: {curvature: {values: [1, 2]}}\n"), ["stable"] * 2)
        other = sweep_of("axes: {lr: {values: [1, 2]}}\n", "name: fit\nobjective: function_fit\nsteps: 20\n")
        record(b, other, ["stable"] * 2)
        with pytest.raises(InputError, match="fit: has no curvature"):
            compare([read_table(a), read_table(b)])


def test_one_seed_gives_no_interval_and_other_seeds_no_pairs(tmp_path: Path) -> None:
    bodies = [f"seeds: [{seed}]\naxes: {{lr: {{values: [0.1, 0.2]}}}}\n" for seed in (0, 7)]
    found = compared(tmp_path, (bodies[0], ["stable", "diverged"]), (bodies[1], ["stable", "stable"]))
    (difference,) = found.differences
    assert (found.sides[0].area_interval, difference.pairs) == (None, None)
    verdict, *_, details = comparison_lines(found)
    assert "They share no seeds" in details
    assert "How sure that is cannot be said" in verdict


def test_rows_without_exactly_one_edge_are_counted_apart(tmp_path: Path) -> None:
    body = "seeds: [0]\naxes: {lr: {log: [1e-2, 1], num: 3}, eps: {values: [1e-8, 1e-4]}}\n"
    # eps 1e-8: stable, stable, diverged in both; eps 1e-4: an edge only in the first.
    first = ["stable", "stable", "stable", "diverged", "diverged", "diverged"]
    second = ["stable", "stable", "stable", "stable", "diverged", "stable"]
    found = compared(tmp_path, (body, first), (body, second))
    assert found.edge_axis.name == "lr"
    assert factors(found.differences[0]) == (1.0, None)


def test_an_edge_that_moves_towards_one_is_a_factor_of_the_distance_to_one(tmp_path: Path) -> None:
    body = "seeds: [0]\naxes: {beta2: {log1m: [0.9, 0.9999], num: 4}}\n"
    labels = [["stable", "diverged", "diverged", "diverged"], ["stable", "stable", "diverged", "diverged"]]
    found = compared(tmp_path, (body, labels[0]), (body, labels[1]))
    assert factors(found.differences[0]) == (pytest.approx(10),)


def test_maps_of_the_shared_cells_have_the_same_axes(tmp_path: Path) -> None:
    wider = "seeds: [0, 1, 2]\naxes: {lr: {log: [1e-3, 10], num: 5}}\n"
    maps = compared_maps(compared(tmp_path, (ROW, [*S, *S, *D, *D]), (wider, [*S, *S, *D, *D, *D])))
    assert [stability.name for stability in maps] == ["s0", "s1"]
    assert maps[0].x_values == maps[1].x_values == tuple(pytest.approx(v) for v in (1e-3, 1e-2, 1e-1, 1.0))


def test_four_times_the_curvature_moves_the_edge_of_the_quadratic_to_a_quarter(train, tmp_path: Path) -> None:
    body = """
seeds: [0, 1]
axes: {{lr: {{log: [0.25, 16], num: 25}}, beta1: {{values: [0.0, 0.5]}}}}
fixed: {{optimizer: sgd, curvature: {curvature}}}
tracking: {{enabled: false}}
"""
    for name, curvature in (("flat", 1.0), ("steep", 4.0)):
        train(sweep_of(body.format(curvature=curvature), f"name: {name}\nobjective: quadratic\nsteps: 120\n"))
    with ledger_at(tmp_path / "flat") as flat, ledger_at(tmp_path / "steep") as steep:
        found = compare([read_table(flat), read_table(steep)])
    near = pytest.approx(0.25, rel=0.2)
    assert factors(found.differences[0]) == (near, near), "brackets of 1.19"
    assert found.changed == {"curvature": (1.0, 4.0)}
    assert "2 paired seeds cannot tell a difference from chance: 6 can (p = 0.5" in comparison_lines(found)[0]


def test_cells_without_all_results_are_not_compared(tmp_path: Path) -> None:
    half = ["stable", "planned", "planned"]
    found = compared(tmp_path, (ROW, [*S, *half, *D, *D]), (ROW, [*S, *S, *D, "errored", "stable", "stable"]))
    assert (found.num_cells, found.num_unknown) == (4, 2)
    assert [side.area for side in found.sides] == [0.5, 0.5]
    assert found.differences[0].pairs.num == 6
    assert "  not compared: 2 cells with seeds that have no result in one of them" in comparison_lines(found)


def test_sweeps_that_know_no_cell_in_common_are_refused(tmp_path: Path) -> None:
    planned = ["planned"] * 12
    with pytest.raises(InputError, match="share 4 cells, and none of them is known in all sweeps"):
        compared(tmp_path, (ROW, planned), (ROW, [*S, *S, *D, *D]))


def test_maps_of_one_area_that_are_unlike_are_not_called_alike(tmp_path: Path) -> None:
    found = compared(tmp_path, (ROW, [*S, *S, *D, *D]), (ROW, [*D, *D, *S, *S]))
    assert (found.differences[0].area_change, found.differences[0].num_turned) == (0, 4)
    assert "4 cells have all seeds stable in one and none in the other." in comparison_lines(found)[-1]


def test_nothing_is_concluded_about_settings_from_two_objectives(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "a") as a, ledger_at(tmp_path / "b") as b:
        body = "seeds: [0, 1]\naxes: {lr: {values: [1, 2]}}\n"
        record(a, sweep_of(body), ["stable"] * 4)
        record(b, sweep_of(body, "name: fit\nobjective: function_fit\nsteps: 20\n"), ["stable"] * 4)
        verdict = comparison_lines(compare([read_table(a), read_table(b)]))[0]
    assert verdict.endswith("(quadratic, function_fit), so no setting explains the difference.")


def test_cells_next_to_one_are_compared_each_with_its_own(tmp_path: Path) -> None:
    body = "seeds: [0]\naxes: {beta2: {values: [0.99999999999, 0.999999999999]}}\n"
    found = compared(tmp_path, (body, ["stable", "diverged"]), (body, ["stable", "diverged"]))
    assert (found.num_cells, found.differences[0].pairs.num) == (2, 2)
