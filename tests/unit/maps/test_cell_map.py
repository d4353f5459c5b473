import itertools
import math
from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.answers._rows import named_rows
from orchestrator.base.columns import METRICS
from orchestrator.base.errors import InputError
from orchestrator.base.vocabulary import cell_state
from orchestrator.maps.cell_map import cell_map, facet_maps
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import map_table, trial_table

# Four cells of three seeds; the order of trials is cell by cell.
GRID = "seeds: [0, 1, 2]\naxes:\n  lr: {values: [0.1, 0.2]}\n  clip: {values: [1.0, null]}\n"
LABELS = [
    *("stable", "stable", "stable"),  # lr 0.1 clip 1
    *("stable", "diverged", "spiked"),  # lr 0.1 clip none
    *("diverged", "diverged", "errored"),  # lr 0.2 clip 1
    *("planned", "planned", "planned"),  # lr 0.2 clip none
]
LOSSES = [1.0, 3.0, 2.0, 1.0, None, 4.0, 9.0, 11.0, None, None, None, None]


@pytest.fixture
def ledger(tmp_path: Path):
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(GRID), LABELS, LOSSES)
        yield ledger


def test_cells_hold_what_one_computes_by_hand(ledger) -> None:
    cells = cell_map(read_table(ledger)).cells
    found = {key: (c.state, c.num_seeds, c.num_finished, c.fraction_stable, c.value) for key, c in cells.items()}
    assert found == {
        (0.1, 1.0): ("stable", 3, 3, 1.0, 2.0),
        (0.1, None): ("diverged", 3, 3, pytest.approx(1 / 3), 2.5),
        (0.2, 1.0): ("diverged", 3, 2, 0.0, 10.0),
        (0.2, None): ("not_run", 3, 0, None, None),
    }


def test_the_axes_can_be_turned_and_the_table_has_the_same_cells(ledger) -> None:
    straight, turned = cell_map(read_table(ledger)), cell_map(read_table(ledger), x="clip", y="lr")
    assert {(y, x): cell.state for (x, y), cell in turned.cells.items()} == {
        key: cell.state for key, cell in straight.cells.items()
    }
    table = map_table(straight)
    assert list(table.columns) == [
        "lr", "clip", "num_seeds", "num_finished", "state", "cell_lr_health", "fraction_stable", "fraction_low",
        "fraction_high", "num_stable", "num_degraded", "num_collapsed", "num_spiked", "num_diverged", "num_stalled",
        "num_pruned", "num_risen", "num_errored", "total_spikes",
        *(f"median_{name}" for name in METRICS),
    ]  # fmt: skip
    assert table["num_diverged"].tolist() == [0, 1, 2, 0]


def test_an_axis_can_be_fixed_and_the_map_says_so(ledger) -> None:
    fixed = cell_map(read_table(ledger), x="lr", y=None, where={"clip": "none"})
    assert (fixed.y, fixed.note) == (None, "clip = none")
    assert {key[0]: cell.num_seeds for key, cell in fixed.cells.items()} == {0.1: 3, 0.2: 3}


def test_the_fraction_has_wilson_s_interval(ledger) -> None:
    table = map_table(cell_map(read_table(ledger)))
    share, num, z = 1 / 3, 3, 1.959963984540054
    middle = (share + z**2 / (2 * num)) / (1 + z**2 / num)
    half = z / (1 + z**2 / num) * math.sqrt(share * (1 - share) / num + z**2 / (4 * num**2))
    row = table.iloc[1]
    assert (row.fraction_low, row.fraction_high) == (pytest.approx(middle - half), pytest.approx(middle + half))
    assert table.iloc[3][["fraction_low", "fraction_high"]].isna().all()


def test_medians_and_spikes_of_a_cell_are_those_of_its_finished_seeds(ledger) -> None:
    row = map_table(cell_map(read_table(ledger))).iloc[1]  # stable, diverged, spiked
    assert (row.median_final_loss, row.median_onset_step, row.total_spikes) == (2.5, 7, 1)
    assert math.isnan(row.median_spike_score), "twenty steps fill no window"


THREE = "axes:\n  lr: {values: [0.1, 0.2]}\n  clip: {values: [1.0, null]}\n  beta1: {values: [0.0, 0.5, 0.9]}\n"
# Per cell of lr and clip, the outcomes and losses at the three values of beta1.
OF_BETA1 = {
    (0.1, 1.0): (["stable", "stable", "stable"], [1.0, 3.0, 2.0]),
    (0.1, None): (["stable", "diverged", "spiked"], [1.0, 5.0, 4.0]),
    (0.2, 1.0): (["diverged", "errored", "planned"], [9.0, None, None]),
    (0.2, None): (["planned", "planned", "planned"], [None, None, None]),
}


@pytest.fixture
def three(tmp_path: Path):
    with ledger_at(tmp_path / "three") as ledger:
        labels, losses = (list(itertools.chain(*part)) for part in zip(*OF_BETA1.values(), strict=True))
        record(ledger, sweep_of(THREE), labels, losses)
        yield ledger


@pytest.mark.parametrize(
    ("reduce", "found", "state"),
    [
        ("worst", {(0.1, 1.0): (1.0, 3.0), (0.1, None): (0.0, 5.0)}, "diverged"),
        # Whether the cells without a result are stable decides these.
        ("median", {(0.1, 1.0): (1.0, 2.0), (0.1, None): (0.0, 4.0)}, "errored"),
        ("best", {(0.1, 1.0): (1.0, 1.0), (0.1, None): (1.0, 1.0)}, "errored"),
    ],
)
def test_a_third_axis_is_reduced_to_one_of_its_cells_and_named(three, reduce: str, found: dict, state: str) -> None:
    stability = cell_map(read_table(three), reduce=reduce)
    assert stability.note == f"{reduce} over beta1"
    cells = stability.cells
    assert {key: (cells[key].fraction_stable, cells[key].value) for key in found} == found
    assert (cells[(0.2, 1.0)].state, cells[(0.2, None)].state) == (state, "not_run")
    assert cells[(0.1, 1.0)].num_seeds == 1


def test_facets_are_one_map_for_each_value_of_an_axis(three) -> None:
    maps = facet_maps(read_table(three), "beta1", {})
    assert [stability.facet for stability in maps] == [(("beta1", value),) for value in ("0", "0.5", "0.9")]
    assert [stability.cells[(0.1, None)].state for stability in maps] == ["stable", "diverged", "spiked"]
    assert {stability.note for stability in maps} == {""}
    (one,) = {stability.note for stability in facet_maps(read_table(three), "clip", {"lr": "0.1"}, x="beta1")}
    assert one == "lr = 0.1"


@pytest.mark.parametrize(("facet", "says"), [("depth", "axes: lr, clip, beta1"), ("lr", "fixed or drawn")])
def test_a_facet_must_be_a_free_axis(three, facet: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        facet_maps(read_table(three), facet, {"lr": "0.1"} if facet == "lr" else {})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"x": "depth"}, "axes: lr, clip"),
        ({"y": "depth"}, "--y"),
        ({"x": "lr", "y": "lr"}, "two different axes"),
        ({"metric": "speed"}, "final_loss"),
        ({"reduce": "mean"}, "worst, median, best"),
        ({"where": {"lr": "0.3"}}, "values: 0.1, 0.2"),
        ({"where": {"beta1": "0.3"}}, "not an axis"),
    ],
)
def test_what_the_sweep_does_not_have_is_refused_with_what_it_has(ledger, options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        cell_map(read_table(ledger), **options)


def test_trials_are_a_tidy_table(ledger) -> None:
    table = trial_table(read_table(ledger))
    assert len(table) == 12
    for column in (
        "trial_id",
        "lr",
        "beta2",
        "seed",
        "outcome",
        "onset_step",
        "num_spikes",
        "final_loss",
        "saved_steps",
    ):
        assert column in table.columns
    assert table.loc[table.outcome == "diverged", "lr"].tolist() == [0.1, 0.2, 0.2]


@pytest.mark.parametrize(
    ("labels", "state"),
    [
        (["stable", "stable"], "stable"),
        (["stable", "stable", "spiked"], "spiked"),
        (["spiked", "spiked", "diverged"], "spiked"),
        (["spiked", "diverged"], "diverged"),
        (["stable", "errored"], "unknown"),
        (["stable", "planned"], "unknown"),
        (["diverged", "planned"], "unknown"),
        (["diverged", "errored"], "diverged"),
        (["diverged", "errored", "lost"], "unknown"),
        (["errored", "errored"], "errored"),
        (["errored", "planned"], "errored"),
        (["planned", "lost", "running"], "not_run"),
        (["stalled", "spiked"], "stalled"),
        ([], "not_run"),
        (["pruned", "pruned"], "pruned"),
        (["stable", "pruned"], "pruned"),
        (["stable", "pruned", "errored"], "pruned"),
        (["stable", "pruned", "planned"], "unknown"),
        (["pruned", "pruned", "diverged"], "diverged"),
        (["pruned", "unknown"], "unknown"),
    ],
)
def test_a_cell_is_stable_when_all_seeds_are_and_unknown_while_some_are_missing(labels: list[str], state: str) -> None:
    assert cell_state(labels) == state


NEXT_TO_ONE = "axes: {beta2: {values: [0.9999, 0.99999, 0.999999]}, lr: {values: [0.1, 0.2]}}\n"


def test_cells_next_to_one_are_cells_of_their_own(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(NEXT_TO_ONE), [*["stable"] * 2, *["diverged"] * 2, *["stable"] * 2])
        facets = {
            m.facet[0][1]: [cell.state for cell in m.cells.values()]
            for m in facet_maps(read_table(ledger), "beta2", {})
        }
        one = cell_map(read_table(ledger), where={"beta2": 0.9999})
    assert facets == {"0.9999": ["stable"] * 2, "0.99999": ["diverged"] * 2, "0.999999": ["stable"] * 2}
    assert (one.note, [cell.state for cell in one.cells.values()]) == ("beta2 = 0.9999", ["stable"] * 2)


def test_a_machine_s_fault_is_a_result_that_is_missing(tmp_path: Path) -> None:
    body = "seeds: [0, 1, 2]\naxes: {lr: {values: [0.1, 0.2, 0.4]}}\n"
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(body), [*["stable"] * 3, "stable", "stable", "errored", *["diverged"] * 3])
        grid = GridMap(read_table(ledger))
    cell = grid.cells.cells[0.2, None]
    assert (cell.state, cell.num_finished, cell.num_seeds, cell.fraction_stable) == ("unknown", 2, 3, 1.0)
    text = "edge near lr=0.25 (lr 0.1 is stable, 0.4 is not) (not known at 0.2 (1 errored, 2 stable))"
    assert named_rows(grid) == [("all cells", text)]
