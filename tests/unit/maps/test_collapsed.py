"""Trials whose router collapsed while their loss stayed on its trend."""

from pathlib import Path

import pytest
from sweep_cases import sweep_of

from orchestrator.base.files import LEDGER
from orchestrator.base.vocabulary import COLLAPSED, cell_state, is_known, is_over_edge
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.lifetimes import lifetime
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import map_table

ROUTERS = (
    "objective: router\nsteps: 200\naxes: {beta: {values: [1, 6]}}\nseeds: [0, 1]\n"
    "fixed: {lr: 0.5, experts: 4, b: 0.5}\ntracking: {enabled: false}\n"
)


@pytest.mark.parametrize(
    ("labels", "state"),
    [
        (["collapsed", "stable"], "collapsed"),
        (["collapsed", "degraded"], "collapsed"),
        (["collapsed", "errored"], "collapsed"),
        (["collapsed", "pruned"], "collapsed"),
        (["collapsed", "spiked"], "spiked"),
        (["collapsed", "planned"], "unknown"),
        (["collapsed", "unknown"], "unknown"),
    ],
)
def test_a_cell_is_collapsed_if_a_seed_is_and_none_has_a_worse_outcome(labels: list[str], state: str) -> None:
    assert cell_state(labels) == state


def test_a_collapsed_cell_is_known_to_be_over_the_edge() -> None:
    assert is_known(COLLAPSED)
    assert is_over_edge(COLLAPSED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("routers")
    summary = run_sweep(sweep_of(ROUTERS, base="name: routers\n"), folder, InlineExecutor)
    assert summary.counts == {"stable": 2, "collapsed": 2}
    return folder


def test_a_collapse_marks_trials_with_its_onset_and_changes_no_outcome(folder: Path) -> None:
    with LedgerReader(folder / LEDGER) as ledger:
        table = read_table(ledger)
        for trial in table.trials:
            assert (trial.outcome, trial.onset_step) == ("stable", None)
            telemetry = ledger.telemetry(trial.trial_id)
            if trial.cell["beta"] == 1:
                assert (trial.collapsed_step, trial.label) == (None, "stable")
                assert not lifetime(trial).has_onset
            else:
                is_before_N = telemetry["step"] < trial.collapsed_step
                assert (telemetry["router_gini"][is_before_N] <= 0.5).all()
                assert (telemetry["router_dead"][~is_before_N] > 0).any()
                assert (trial.label, lifetime(trial).has_onset) == ("collapsed", True)


def test_the_edge_of_a_router_lies_where_it_collapses(folder: Path) -> None:
    with LedgerReader(folder / LEDGER) as ledger:
        stability = GridMap(read_table(ledger))
        (row,) = stability.rows()
        assert [(edge.stable, edge.not_stable) for edge in row.edges] == [(1, 6)]
        table = map_table(stability.cells)
        assert table["state"].tolist() == ["stable", "collapsed"]
        assert table["num_collapsed"].tolist() == [0, 2]
        assert table["fraction_stable"].tolist() == [1.0, 0.0]
