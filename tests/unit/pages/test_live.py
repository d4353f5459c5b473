"""The page of a sweep that trains: what is new is on it, and it does not read everything again."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import finished, ledger_at, sweep_of

from orchestrator.base.files import FROZEN_SWEEP, sweep_lock
from orchestrator.base.packs import Report
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.sentence import sentence_of
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.pages import live as live_page
from orchestrator.pages.card import highlights
from orchestrator.pages.curves import curves
from orchestrator.pages.data import report_data
from orchestrator.pages.live import LivePage, changes

GRID = "axes: {lr: {values: [0.1, 0.2]}}\n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def started(ledger, sweep, trials):
    ledger.plan("quadratic", sweep.trials, driver_facts(sweep))
    (pack,) = make_packs(sweep, trials, 1)
    ledger.start_pack(pack, "test")
    return pack


def data_of(page: str) -> dict[str, Any]:
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def curve(first: int, last: int) -> dict[str, np.ndarray]:
    steps = np.arange(first, last)
    return {"step": steps, "loss": 3.0 - steps / 20}


def test_a_trial_in_training_is_shown_with_its_step_loss_and_rate_and_then_its_result(tmp_path: Path) -> None:
    sweep, clock = sweep_of(GRID), Clock()
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    first, second = [trial.trial_id for trial in sweep.trials]
    with ledger_at(tmp_path) as ledger, sweep_lock(tmp_path):
        ledger.plan("quadratic", sweep.trials, driver_facts(sweep))
        live = LivePage(tmp_path, clock)
        assert "0 of 2 trials have ended, 0 train." in live.page()
        (pack,) = make_packs(sweep, sweep.trials[:1], 1)
        ledger.start_pack(pack, "test")
        ledger.record(Report(pack.pack_id, 10, 0, 2.0, {first: curve(0, 10)}))
        assert "0 train." in live.page(), "the page of a moment before"
        clock.now += 10
        page = live.page()
        assert "0 of 2 trials have ended, 1 train at 5 member-steps/s; at most 0:06 left." in page
        assert "<td>lr=0.1 seed=0</td><td>10 of 20</td><td>2.55</td><td>5.0</td>" in page
        assert [each.get("last") for each in curves(tmp_path, [first, second])] == [9, None]
        done = (finished(first, "diverged"),)
        ledger.record(Report(pack.pack_id, 20, 0, 4.0, {first: curve(10, 20)}, done))
        clock.now += 10
        page = live.page()
        assert data_of(page)["trials"]["outcome"] == ["diverged", "planned"]
        assert "1 of 2 trials have ended, 0 train" in page
    clock.now += 10
    assert "No run is under way." in live.page()


def test_the_live_page_has_the_data_of_the_report_but_for_the_curves(tmp_path: Path) -> None:
    sweep = sweep_of(GRID + "seeds: [0, 1]\n")
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    with ledger_at(tmp_path) as ledger:
        pack = started(ledger, sweep, sweep.trials)
        curves = {identity: curve(0, 20) for identity in pack.trial_ids}
        done = tuple(finished(identity, "stable") for identity in pack.trial_ids)
        ledger.record(Report(pack.pack_id, 80, 0, 4.0, curves, done))
        table = read_table(ledger)
        frozen = report_data(table)
        frozen |= highlights(table, frozen, sentence_of(table))
    live = data_of(LivePage(tmp_path).page())
    unlike = ("curves", "curve_titles", "num_points", "diagnoses", "remedy_pictures")
    assert {key: live[key] for key in live if key not in unlike} == json.loads(
        json.dumps({key: frozen[key] for key in frozen if key not in unlike})
    )


def test_the_curves_of_a_trial_with_a_result_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, clock = sweep_of(GRID), Clock()
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    with ledger_at(tmp_path) as ledger:
        pack = started(ledger, sweep, sweep.trials[:1])
        identity = pack.trial_ids[0]
        ledger.record(Report(pack.pack_id, 20, 0, 4.0, {identity: curve(0, 20)}, (finished(identity, "stable"),)))
    live = LivePage(tmp_path, clock)
    live.page()

    def refused(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(LedgerReader, "trace", refused)
    clock.now += 10
    assert data_of(live.page())["trials"]["outcome"] == ["stable", "planned"]


def test_map_and_summary_are_of_one_state_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of(GRID)
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    first, _ = [trial.trial_id for trial in sweep.trials]
    with ledger_at(tmp_path) as ledger, sweep_lock(tmp_path):
        pack = started(ledger, sweep, sweep.trials)

        def read_while_a_trial_ends(*args: Any) -> SweepTable:
            table = read_table(*args)
            ledger.record(Report(pack.pack_id, 20, 0, 4.0, {first: curve(0, 20)}, (finished(first, "stable"),)))
            return table

        monkeypatch.setattr(live_page, "read_table", read_while_a_trial_ends)
        page = LivePage(tmp_path).page()
    assert data_of(page)["trials"]["outcome"] == ["running", "running"]
    assert "<td>lr=0.1 seed=0</td><td>0 of 20</td>" in page, "not the 20 steps of a moment later"


def test_the_answers_say_of_how_many_trials_they_are(tmp_path: Path) -> None:
    sweep, clock = sweep_of(GRID), Clock()
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    first, second = [trial.trial_id for trial in sweep.trials]
    with ledger_at(tmp_path) as ledger:
        pack = started(ledger, sweep, sweep.trials)
        ledger.record(Report(pack.pack_id, 20, 0, 4.0, {first: curve(0, 20)}, (finished(first, "stable"),)))
        page = LivePage(tmp_path, clock)
        assert "The answers below are from when 1 of 2 trials had ended." in page.answers()
        ledger.record(Report(pack.pack_id, 20, 0, 4.0, {second: curve(0, 20)}, (finished(second, "diverged"),)))
        assert "2 of 2 trials have ended" in page.page()
        assert "from when 1 of 2 trials had ended" in page.page(), "they rest longer than the map"
    clock.now += 1000
    assert "had ended" not in page.answers()


LEAVES = st.none() | st.integers(0, 3) | st.sampled_from(["a", "b"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=40,
)


def applied(found: Any, news: list[dict[str, Any]]) -> Any:
    """What the page's script does with ``news``."""
    root = {"found": copy.deepcopy(found)}
    for change in news:
        way = ["found", *change["path"]]
        holder: Any = root
        for key in way[:-1]:
            holder = holder[key]
        if "at" in change:
            for place, value in zip(change["at"], change["to"], strict=True):
                holder[way[-1]][place] = value
        else:
            holder[way[-1]] = change["value"]
    return root["found"]


@given(VALUES, VALUES)
def test_changes_turn_any_data_into_any_other(before: Any, after: Any) -> None:
    assert applied(before, json.loads(json.dumps(list(changes(before, after))))) == after


def test_of_a_column_only_the_entries_that_changed_are_sent() -> None:
    before = {"columns": {"state": ["planned"] * 1000, "words": ["x"] * 1000}, "name": "case"}
    after = copy.deepcopy(before)
    after["columns"]["state"][7] = "stable"
    assert list(changes(before, after)) == [{"path": ["columns", "state"], "at": [7], "to": ["stable"]}]
    assert list(changes(before, before)) == []
