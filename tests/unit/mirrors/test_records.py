from __future__ import annotations

from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.maps.table import read_table
from orchestrator.mirrors.mlflow_runs import differing
from orchestrator.mirrors.records import trial_record
from orchestrator.mirrors.sweep_records import sweep_record

ROW = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 10], num: 5}}\n"
LABELS = ["stable", "stable", "stable", "stable", "stable", "spiked", "diverged", "diverged", "diverged", "diverged"]
LOSSES = [3.0, 3.0, 2.0, 2.0, 1.0, 1.0, None, None, None, None]


@pytest.fixture
def ledger(tmp_path: Path):
    with ledger_at(tmp_path) as made:
        record(made, sweep_of(ROW), LABELS, LOSSES)
        yield made


def test_a_sweep_has_the_size_of_its_stable_region_its_edge_and_the_setting_to_take(ledger) -> None:
    found = sweep_record(ledger).metrics
    assert found["stable_fraction"] == pytest.approx((1 + 1 + 0.5 + 0 + 0) / 5)
    assert found["stable_cells"] == pytest.approx(2 / 5)
    assert (found["edge_low"], found["edge_high"]) == (pytest.approx(1e-2), pytest.approx(1e-1))
    assert found["recommended_lr"] == pytest.approx(1e-3), "a factor of 10 is below the edge's"
    assert found["num_diverged"] == 4


def test_its_settings_are_its_fixed_fields_and_the_ranges_of_its_axes(ledger) -> None:
    settings = sweep_record(ledger).settings
    assert settings["lr"] == "0.001 .. 10 (5 values)"
    assert settings["objective"] == "quadratic"
    assert settings["steps"].isdigit()


def test_a_cell_has_its_distance_to_the_edge_in_decades_negative_beyond_it(ledger) -> None:
    cells = sweep_record(ledger).cells
    assert [round(cell.metrics["distance_to_edge"], 6) for cell in cells] == [2, 1, -1, -2, -3]
    assert [cell.metrics["stable_fraction"] for cell in cells] == [1, 1, 0.5, 0, 0]
    assert [cell.key.values["log10_lr"] for cell in cells] == ["-3", "-2", "-1", "0", "1"]
    assert len({cell.key.cell_id for cell in cells}) == 5


def test_a_blow_up_is_drawn_at_twice_the_initial_loss(ledger) -> None:
    axes = {axis.name: axis for axis in read_table(ledger).axes}
    by_outcome = {row.outcome: row for row in ledger.trials()}
    initial = by_outcome["diverged"].initial_loss
    values = {
        outcome: {point.name: point.value for point in trial_record(ledger, row, "auto", axes, "edge").points}
        for outcome, row in by_outcome.items()
    }
    assert values["diverged"]["loss_capped"] == 2 * initial
    assert "log10_loss" not in values["diverged"]
    assert values["stable"]["loss_capped"] == values["stable"]["final_loss"]


def test_the_outcome_of_one_seed_changes_only_its_own_cell(tmp_path: Path, ledger) -> None:
    with ledger_at(tmp_path / "other") as other:
        record(other, sweep_of(ROW), ["diverged", *LABELS[1:]], [None, *LOSSES[1:]])
        before, after = sweep_record(ledger).cells, sweep_record(other).cells
    assert [a.key for a in after] == [b.key for b in before] or [a.key.cell_id for a in after] == [
        b.key.cell_id for b in before
    ]
    changed = [a.metrics["stable_fraction"] != b.metrics["stable_fraction"] for a, b in zip(after, before, strict=True)]
    assert changed == [True, False, False, False, False]


def test_settings_differ_where_two_sweeps_have_other_values_of_one() -> None:
    first = {"sweep": "a", "schedule": "constant", "width": "64", "lr": "0.1 .. 1 (3 values)"}
    second = {"sweep": "b", "schedule": "cosine", "width": "64", "lr": "0.1", "final_lr_fraction": "0"}
    assert differing([first, second]) == {"schedule", "lr"}
    assert differing([first]) == set()
