"""A run whose search proposes trials while results come in."""

import signal
from pathlib import Path

import pytest
from driver_cases import Observer
from sweep_cases import numbers, search_with, sweep_with
from tiers import one_of

from orchestrator.base.files import LEDGER
from orchestrator.executors.inline import InlineExecutor
from orchestrator.health import examine_sweep
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter


def stop_at(number: int) -> Observer:
    """Asks the run to stop once so many trials have finished."""
    seen = []

    def changed(progress, finished) -> None:
        seen.extend(finished)
        if len(seen) >= number:
            signal.raise_signal(signal.SIGTERM)

    return Observer(changed)


def test_a_search_trains_as_many_trials_as_it_may_and_then_nothing(train, rows) -> None:
    summary = train(search_with())
    assert (summary.trained, summary.exit_code) == (24, 0)
    found = rows("sought")
    assert [row.position for row in found] == list(range(24))
    assert {row.status for row in found} == {"finished"}
    assert len({tuple(row.cell.items()) for row in found}) == 24
    assert train(search_with()).trained == 0


@pytest.mark.parametrize("stop", one_of(2, [1, 5, 10, 20]))
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not(train, rows, stop: int) -> None:
    train(search_with("name=calm"))
    assert train(search_with(), observers=[stop_at(stop)]).exit_code == 128 + signal.SIGTERM
    assert len(rows("sought")) < 24
    assert train(search_with()).exit_code == 0
    assert numbers(rows("sought")) == numbers(rows("calm"))


def test_proposals_are_in_the_ledger_before_they_are_trained(train, monkeypatch) -> None:
    there: set[str] = set()

    def remembered(method):
        def write(self, objective, trials, *rest):
            method(self, objective, trials, *rest)
            there.update(self.statuses())

        return write

    monkeypatch.setattr(LedgerWriter, "propose", remembered(LedgerWriter.propose))
    monkeypatch.setattr(LedgerWriter, "plan", remembered(LedgerWriter.plan))

    class Watchful(InlineExecutor):
        def submit(self, pack) -> None:
            assert set(pack.trial_ids) <= there
            super().submit(pack)

    assert train(search_with(), Watchful).trained == 24


def test_a_larger_number_of_trials_goes_on_with_those_that_there_are(train, rows) -> None:
    train(search_with("search.trials=8"))
    first = numbers(rows("sought"))
    assert train(search_with("search.trials=20")).trained == 12
    assert numbers(rows("sought"))[:8] == first


def test_a_search_begins_with_what_a_grid_has_found(train, rows) -> None:
    grid = ("name=sought", "axes.lr={log: [0.01, 10.0], num: 4}", "axes.beta1={linear: [0.0, 0.9], num: 3}")
    train(search_with(*grid, "search=null"))
    before = {row.trial_id for row in rows("sought")}
    assert len(before) == 12
    assert train(search_with("search.trials=20")).trained == 8
    assert before < {row.trial_id for row in rows("sought")}


def test_what_lies_beyond_an_axis_that_was_shortened_leaves_the_sweep(train, rows) -> None:
    train(search_with())
    train(search_with("axes.lr={log: [0.01, 0.5]}"))
    assert all(row.cell["lr"] <= 0.5 for row in rows("sought"))


def test_without_batches_packs_are_filled(train, tmp_path: Path) -> None:
    train(search_with("search.batch=null", "search.method=random", "search.trials=20"))
    with LedgerReader(tmp_path / "sought" / LEDGER) as ledger:
        assert [len(pack.trial_ids) % 4 for pack in ledger.packs()] == [0] * len(ledger.packs())


def test_a_search_over_listed_values_ends_when_it_has_tried_its_number(train, rows) -> None:
    axes = ("axes.lr={values: [0.01, 0.1, 1.0]}", "axes.beta1={values: [0.0, 0.5]}", "search.trials=6")
    train(search_with(*axes))
    assert {row.cell["lr"] for row in rows("sought")} <= {0.01, 0.1, 1.0}


def test_doctor_finds_nothing_wrong_with_a_search(train, tmp_path: Path) -> None:
    train(search_with())
    assert [found.text for found in examine_sweep(tmp_path / "sought") if found.level != "ok"] == []


def test_seeds_are_added_where_the_edge_is(train, rows) -> None:
    """The quadratic's edge lies between the second and the third learning rate, whatever the seed."""
    sweep = sweep_with("seeds={start: 1, up_to: 4, where: disagreement}", "axes.lr={values: [0.01, 0.1, 9.0, 20.0]}")
    assert train(sweep, observers=[stop_at(9)]).exit_code == 128 + signal.SIGTERM
    assert train(sweep).exit_code == 0
    seeds: dict[float, set[int]] = {}
    for row in rows("edge"):
        seeds.setdefault(row.cell["lr"], set()).add(row.seed)
    assert seeds == {0.01: {0}, 0.1: {0, 1, 2, 3}, 9.0: {0, 1, 2, 3}, 20.0: {0}}
    assert train(sweep).trained == 0
