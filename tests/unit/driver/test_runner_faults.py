"""What the loop does when things fail at any of its steps; no process is harmed."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_cases import numbers, search_with, sweep_with
from tiers import thinned

from orchestrator.base.errors import StorageError
from orchestrator.base.files import CHECKPOINTS, LEDGER
from orchestrator.base.packs import Completed, Event, PackLost, PackStarted, Report
from orchestrator.executors.inline import InlineExecutor
from orchestrator.health import examine_sweep
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.worker.run import run_pack

SWEEPS = {
    "grid": lambda name: sweep_with(f"name={name}", "resources.pack=4"),
    "search": lambda name: search_with(f"name={name}", "search.trials=16"),
}
WRITES = ("plan", "propose", "release_abandoned", "start_pack", "record", "end_pack")
FAULTS = list(itertools.product(WRITES, (True, False), SWEEPS))
BY_DEFAULT = set(zip(WRITES, itertools.cycle((True, False)), ("grid", "search", "search", "grid", "search", "grid")))


@pytest.mark.parametrize(("method", "is_after", "kind"), thinned(FAULTS, BY_DEFAULT.__contains__))
def test_a_run_that_ends_at_any_write_to_the_ledger_is_completed_by_the_next(
    train, rows, tmp_path: Path, monkeypatch, method: str, is_after: bool, kind: str
) -> None:
    """At the first, the second ... call, before it or after it, until none is left."""
    sweep_named = SWEEPS[kind]
    train(sweep_named("calm"))
    calm = numbers(rows("calm"))
    original, number = getattr(LedgerWriter, method), 0
    while True:
        number += 1
        calls = [0]

        def failing(self, *arguments, **options):
            calls[0] += 1  # noqa: B023
            if calls[0] != number:  # noqa: B023
                return original(self, *arguments, **options)
            if is_after:
                original(self, *arguments, **options)
            raise StorageError("the disk is gone")

        sweep = sweep_named(f"broken{number}")
        monkeypatch.setattr(LedgerWriter, method, failing)
        try:
            train(sweep)
            is_harmed = False
        except StorageError:
            is_harmed = True
        monkeypatch.setattr(LedgerWriter, method, original)
        if calls[0] < number:
            break
        assert is_harmed or method == "end_pack", "only at the very end may a fault be kept for the next run"
        assert train(sweep).exit_code == 0
        assert numbers(rows(sweep.name)) == calm
        assert [f.text for f in examine_sweep(tmp_path / sweep.name) if f.level in ("fault", "warning")] == []
    assert number > 1 or (method, kind) == ("propose", "grid"), "a grid is planned at once"


class Twice(InlineExecutor):
    """Hands the reports of a pack that was lost on to the driver all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Event] = []

    def poll(self, timeout_s: float) -> list[Event]:
        events = super().poll(timeout_s)
        if events and not self.late and isinstance(events[0], PackStarted):
            (pack_id,) = {event.pack_id for event in events}
            self._reports = None
            zombie = next(pack for pack in self.packs if pack.pack_id == pack_id)
            spoilt = [replace(f, outcome="stalled") for r in run_pack(zombie) for f in r.finished]
            self.late = [Report(pack_id, 1, 0, 1.0, {}, tuple(spoilt), Completed())]
            return [*events, PackLost(pack_id, "no news"), *self.late]
        return [*events, *self.late]

    def submit(self, pack) -> None:
        self.packs = [*getattr(self, "packs", []), pack]
        super().submit(pack)


def test_what_an_attempt_says_after_it_was_lost_is_not_believed(train, rows) -> None:
    train(sweep_with("name=calm"))
    assert train(sweep_with(), Twice).exit_code == 0
    assert numbers(rows("edge")) == numbers(rows("calm"))


def test_a_report_of_a_pack_that_no_longer_owns_its_trials_changes_no_row(train, rows, tmp_path: Path) -> None:
    sweep = sweep_with()
    train(sweep)
    before = rows("edge")
    with LedgerWriter(tmp_path / "edge" / LEDGER) as ledger:
        pack_id = ledger.packs()[0].pack_id
        late = Report(pack_id, 1, 0, 1.0, {}, ())
        ledger.record(replace(late, pack_id="another"))
        ledger.record(late)
    assert rows("edge") == before


class Silent(InlineExecutor):
    """Takes packs and says nothing more; or a word now and then. Time passes by ``step_s`` at each poll."""

    def __init__(self, clock: list[float], step_s: float) -> None:
        super().__init__()
        self.clock, self.step_s, self.killed = clock, step_s, []

    def poll(self, timeout_s: float) -> list[Event]:
        self.clock[0] += self.step_s
        return super().poll(timeout_s)

    def kill(self, pack_id: str) -> None:
        self.killed.append(pack_id)
        self._reports = None


def test_what_hangs_is_killed_and_trained_again_and_what_is_slow_is_not(train, rows) -> None:
    clock = [0.0]
    slow = Silent(clock, 0.9 * 600)
    assert train(sweep_with("name=slow"), lambda: slow, clock=lambda: clock[0]).exit_code == 0
    assert slow.killed == []

    class Hung(Silent):
        def poll(self, timeout_s: float) -> list[Event]:
            if self._reports is not None and not self.killed:
                self.clock[0] += self.step_s
                return []
            return super().poll(timeout_s)

    hung = Hung(clock, 0.6 * 600)
    assert train(sweep_with("name=hung"), lambda: hung, clock=lambda: clock[0]).exit_code == 0
    assert len(hung.killed) == 1
    assert numbers(rows("hung")) == numbers(rows("slow"))


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0, -1.0])
def test_a_clock_that_jumps_changes_no_result_and_no_duration_is_negative(
    train, rows, tmp_path: Path, jump_s: float
) -> None:
    train(sweep_with("name=calm"))
    now = [1.7e9]

    def jumping() -> float:
        now[0] += jump_s
        return now[0]

    assert train(sweep_with("resources.pack=4"), wall_clock=jumping).exit_code == 0
    assert numbers(rows("edge")) == numbers(rows("calm"))
    with LedgerReader(tmp_path / "edge" / LEDGER) as ledger:
        assert all(pack.seconds >= 0 for pack in ledger.packs())
    assert train(sweep_with("resources.pack=4")).trained == 0


def test_checkpoints_go_when_nobody_needs_them(train, tmp_path: Path) -> None:
    assert train(sweep_with("checkpoint.every_steps=5")).exit_code == 0
    assert list((tmp_path / "edge" / CHECKPOINTS).glob("*")) == []
