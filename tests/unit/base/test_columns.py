from pathlib import Path
from statistics import median

import numpy as np
import pytest
from sweep_cases import ledger_at, record, sweep_of

from objectives.base import OBJECTIVES
from orchestrator.base.columns import (
    CURVE_METRIC_COLUMNS,
    MAP_COLUMNS,
    METRICS,
    READING_COLUMNS,
    TRACE_COLUMNS,
    TRIAL_COLUMNS,
    meaning,
    names,
)
from orchestrator.detection.detector import SpikeDetector
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.curve_metrics import CURVE_METRICS, SIGMAS, WINDOW
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import map_table, trial_table

AXES = "axes: {lr: {values: [0.1, 0.2]}, eps: {values: [1e-8, 1e-4]}}\n"
EVERY = (*TRIAL_COLUMNS, *CURVE_METRIC_COLUMNS, *TRACE_COLUMNS, *MAP_COLUMNS)


def test_every_column_of_the_tables_is_defined_in_its_order(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(AXES), ["stable", "diverged", "errored", "planned"])
        trials, cells = trial_table(read_table(ledger)), map_table(cell_map(read_table(ledger)))
        fields = {name for name in trials.columns if name in OBJECTIVES["quadratic"].config_class.model_fields}
    assert [name for name in trials.columns if name not in fields] == [
        name for name in names((*TRIAL_COLUMNS, *READING_COLUMNS)) if name not in fields
    ]
    assert list(cells.columns) == ["lr", "eps", *names(MAP_COLUMNS)]


def test_no_name_is_defined_twice() -> None:
    found = names(EVERY)
    assert sorted(set(found)) == sorted(found)


@pytest.mark.parametrize("column", EVERY, ids=lambda column: column.name)
def test_a_column_says_what_it_means(column) -> None:
    assert column.meaning
    assert not column.meaning.endswith(".")


def test_a_map_shows_columns_of_trials_and_metrics_of_curves() -> None:
    assert set(names(CURVE_METRIC_COLUMNS)) == set(CURVE_METRICS)
    assert all(title.startswith("median ") for title in METRICS.values())
    assert meaning("final_loss").startswith("median of the last ten training losses")
    assert meaning("onset_step").endswith("(step)")
    assert f"{SIGMAS:g} deviations of the last {WINDOW}" in meaning("spike_score")


def test_the_losses_of_a_trial_are_what_the_table_says() -> None:
    losses = (3 - 0.01 * np.arange(100) + 0.02 * np.random.default_rng(0).standard_normal(100)).tolist()
    detector = SpikeDetector()
    for loss in losses:
        detector.update(loss)
    found = detector.record()
    assert found.initial_loss == losses[0]
    assert found.recent_loss == pytest.approx(median(losses[-10:]))
    assert found.best_loss == pytest.approx(min(median(losses[i : i + 10]) for i in range(91)))
