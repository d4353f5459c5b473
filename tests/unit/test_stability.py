from __future__ import annotations

from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.errors import InputError
from orchestrator.outcomes import cell_state
from orchestrator.stability import map_table, stability_map, trial_table

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
    cells = stability_map(ledger).cells
    found = {key: (c.state, c.num_seeds, c.num_finished, c.fraction_stable, c.value) for key, c in cells.items()}
    assert found == {
        (0.1, 1.0): ("stable", 3, 3, 1.0, 2.0),
        (0.1, None): ("diverged", 3, 3, pytest.approx(1 / 3), 2.5),
        (0.2, 1.0): ("diverged", 3, 2, 0.0, 10.0),
        (0.2, None): ("not_run", 3, 0, None, None),
    }


def test_the_axes_can_be_turned_and_the_table_has_the_same_cells(ledger) -> None:
    straight, turned = stability_map(ledger), stability_map(ledger, x="clip", y="lr")
    assert {(y, x): cell.state for (x, y), cell in turned.cells.items()} == {
        key: cell.state for key, cell in straight.cells.items()
    }
    table = map_table(straight)
    assert list(table.columns) == [
        "lr", "clip", "num_seeds", "num_finished", "state", "fraction_stable", "num_stable", "num_spiked",
        "num_diverged", "num_stalled", "num_errored", "median_final_loss",
    ]  # fmt: skip
    assert table["num_diverged"].tolist() == [0, 1, 2, 0]


def test_axes_that_are_not_shown_are_pooled_or_fixed_and_the_map_says_so(ledger) -> None:
    pooled = stability_map(ledger, x="lr", y=None, where={"clip": "none"})
    assert (pooled.y, pooled.note) == (None, "clip = none")
    assert {key[0]: cell.num_seeds for key, cell in pooled.cells.items()} == {0.1: 3, 0.2: 3}


def test_a_third_axis_is_pooled_with_the_seeds_and_named(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "three") as ledger:
        sweep = sweep_of(GRID.replace("seeds: [0, 1, 2]\n", "") + "  beta1: {values: [0.0, 0.5, 0.9]}\n")
        record(ledger, sweep, LABELS, LOSSES)
        stability = stability_map(ledger)
        assert stability.note == "pooled over beta1"
        assert stability.cells[(0.1, None)].num_seeds == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"x": "depth"}, "axes: lr, clip"),
        ({"y": "depth"}, "--y"),
        ({"x": "lr", "y": "lr"}, "two different axes"),
        ({"metric": "speed"}, "final_loss"),
        ({"where": {"lr": "0.3"}}, "values: 0.1, 0.2"),
        ({"where": {"beta1": "0.3"}}, "not an axis"),
    ],
)
def test_what_the_sweep_does_not_have_is_refused_with_what_it_has(ledger, options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        stability_map(ledger, **options)


def test_trials_are_a_tidy_table(ledger) -> None:
    table = trial_table(ledger)
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
        (["stable", "errored"], "errored"),
        (["stable", "planned"], "stable"),
        (["planned", "lost", "running"], "not_run"),
        (["stalled", "spiked"], "stalled"),
        ([], "not_run"),
    ],
)
def test_a_cell_shows_its_commonest_trouble(labels: list[str], state: str) -> None:
    assert cell_state(labels) == state
