import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from driver_cases import Dying, EndsPacks, Observer
from sweep_cases import numbers, sweep_with

from objectives.models import quadratic
from orchestrator.base.errors import InputError, StorageError
from orchestrator.base.files import FROZEN_SWEEP, LEDGER, sweep_lock, write_checkpoint
from orchestrator.base.packs import (
    Completed,
    Failed,
    Lost,
    OutOfMemory,
    PackLost,
    PackStarted,
    Paused,
    Refused,
    Report,
)
from orchestrator.driver.runner import MAX_LOSSES, run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import load_sweep


class Never(InlineExecutor):
    def __init__(self) -> None:
        raise AssertionError("an executor was started")


class Moving(InlineExecutor):
    """Moves a folder away after its first report."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def poll(self, timeout_s: float):
        events = super().poll(timeout_s)
        if self.folder.exists() and any(isinstance(event, Report) for event in events):
            self.folder.rename(self.folder.with_name("moved"))
        return events


@pytest.mark.parametrize("moved", ["edge", "."], ids=["sweep", "results"])
def test_results_that_are_moved_end_the_run_which_goes_on_in_the_new_place(
    train, rows, tmp_path: Path, moved: str
) -> None:
    train(sweep_with())
    results = tmp_path / "results"
    with pytest.raises(StorageError, match=r"was moved or removed during the run\n.*--results"):
        run_sweep(sweep_with(), results / "edge", lambda: Moving((results / moved).resolve()))
    assert not (results / "edge").exists(), "nothing is written at the old place"
    with pytest.raises(StorageError, match="was moved"):
        write_checkpoint(results / "edge", b"late")
    assert not (results / "edge").exists()
    new = results / "moved" if moved == "edge" else tmp_path / "moved" / "edge"
    assert run_sweep(sweep_with(), new, InlineExecutor).exit_code == 0
    with LedgerReader(new / LEDGER) as ledger:
        assert numbers(ledger.trials()) == numbers(rows("edge"))


def test_every_trial_ends_finished_with_the_outcome_that_theory_knows(train, rows, quadratic_sweep) -> None:
    summary = train(quadratic_sweep)
    assert summary.exit_code == 0
    for row in rows("edge"):
        edge = 2 * (1 + row.config["beta1"]) / (1 - row.config["beta1"])
        assert row.status == "finished"
        assert (row.outcome == "diverged") == (row.config["lr"] > edge), row.cell


def test_running_twice_trains_nothing_and_starts_no_executor(train, rows, quadratic_sweep) -> None:
    train(quadratic_sweep)
    before = rows("edge")
    summary = train(quadratic_sweep, Never)
    assert (summary.trained, summary.exit_code) == (0, 0)
    assert rows("edge") == before


def test_a_new_value_trains_only_its_cells_and_a_removed_one_leaves_the_map(train, rows, tmp_path: Path) -> None:
    train(sweep_with())
    first = {row.trial_id: row.finished_at for row in rows("edge")}
    summary = train(sweep_with("axes.lr.values=[0.2, 1.0, 3.0]"))
    assert summary.trained == 4
    now = {row.trial_id: row.finished_at for row in rows("edge")}
    assert len(set(first) & set(now)) == 8
    assert all(now[trial_id] == first[trial_id] for trial_id in set(first) & set(now))
    with LedgerReader(tmp_path / "edge" / LEDGER) as ledger:
        assert len(ledger.trials(removed=True)) == 16
    assert train(sweep_with(), Never).trained == 0, "cells that come back are still there"


def test_another_share_of_audited_trials_trains_nothing_and_is_frozen(train, rows, tmp_path: Path) -> None:
    train(sweep_with())
    before = rows("edge")
    assert train(sweep_with("stopping.audit=0.5"), Never).trained == 0
    assert rows("edge") == before
    assert load_sweep(tmp_path / "edge" / FROZEN_SWEEP).stopping.audit == 0.5


def test_the_frozen_sweep_is_the_same_sweep(train, tmp_path: Path, quadratic_sweep) -> None:
    train(quadratic_sweep)
    frozen = load_sweep(tmp_path / "edge" / FROZEN_SWEEP)
    assert [t.trial_id for t in frozen.trials] == [t.trial_id for t in quadratic_sweep.trials]


def test_pack_size_does_not_change_a_single_number(train, rows, tmp_path: Path) -> None:
    tables = []
    for name, pack in (("one", 1), ("five", 5), ("all", "auto")):
        train(sweep_with(f"name={name}", f"resources.pack={pack}"))
        tables.append(numbers(rows(name)))
    assert tables[0] == tables[1] == tables[2]


def test_lost_packs_run_again_and_end_as_if_undisturbed(train, rows) -> None:
    train(sweep_with("name=calm", "resources.pack=4"))
    summary = train(sweep_with("name=disturbed", "resources.pack=4"), lambda: Dying(2))
    assert summary.exit_code == 0
    assert numbers(rows("disturbed")) == numbers(rows("calm"))
    assert {row.num_attempts for row in rows("disturbed")} == {1, 2}


class DyingWith(InlineExecutor):
    """Loses every pack that is to train a trial of this lr, as the kernel would where memory runs out."""

    def __init__(self, lr: float, at_least: int = 1) -> None:
        super().__init__()
        self.lr, self.at_least, self.sizes = lr, at_least, []

    def submit(self, pack) -> None:
        trained = [member.config for member in pack.members if member.trial_id not in pack.skip]
        self.sizes.append(len(trained))
        self.is_bad = {**getattr(self, "is_bad", {}), pack.pack_id: any(c["lr"] == self.lr for c in trained)}
        self.is_bad[pack.pack_id] &= min(len(trained), pack.width or 99) >= self.at_least
        super().submit(pack)

    def poll(self, timeout_s: float):
        events = super().poll(timeout_s)
        if events and not isinstance(events[0], PackStarted) and self.is_bad[events[0].pack_id]:
            self._reports = None
            return [PackLost(events[0].pack_id, "it was killed")]
        return events


def test_what_kills_its_process_is_found_by_halving_and_the_rest_goes_on(train, rows) -> None:
    train(sweep_with("name=calm"))
    summary = train(sweep_with("resources.pack=6"), lambda: DyingWith(3.0))
    assert summary.exit_code == 3
    bad = [row for row in rows("edge") if row.config["lr"] == 3.0]
    assert {row.status for row in bad} == {"errored"}
    assert all("killed" in row.reason and "batch_size" in row.reason for row in bad)
    good = [row for row in rows("edge") if row.config["lr"] != 3.0]
    assert numbers(good) == numbers([row for row in rows("calm") if row.config["lr"] != 3.0])


def test_what_is_too_large_together_trains_apart(train, rows) -> None:
    train(sweep_with("name=calm"))
    executor = DyingWith(3.0, at_least=2)
    assert train(sweep_with("resources.pack=12"), lambda: executor).exit_code == 0
    assert numbers(rows("edge")) == numbers(rows("calm"))
    assert executor.sizes[:3] == [12, 12, 6], "once more as it was, then halves"


def test_a_trial_that_larger_packs_were_lost_with_has_attempts_of_its_own(train, rows) -> None:
    """Lost with 12, 12, 6 and 3 others it would be given up at its first loss alone."""

    class DyingAtFirst(DyingWith):
        """Packs of several as often as they are tried, and each trial alone for the first time."""

        def submit(self, pack) -> None:
            super().submit(pack)
            alone = pack.trained_ids if len(pack.trained_ids) == 1 else ()
            self.is_bad[pack.pack_id] &= not set(alone) & tried_alone
            tried_alone.update(alone)

    tried_alone: set[str] = set()
    assert train(sweep_with("resources.pack=12"), lambda: DyingAtFirst(3.0)).exit_code == 0
    assert {row.status for row in rows("edge")} == {"finished"}
    assert tried_alone


def test_a_single_trial_that_dies_without_progress_is_given_up_after_three_times(train, rows) -> None:
    executor = DyingWith(0.1)
    assert train(sweep_with("axes={lr: {values: [0.1]}}", "seeds=[0]"), lambda: executor).exit_code == 3
    assert len(executor.sizes) == MAX_LOSSES
    assert rows("edge")[0].status == "errored"


def test_a_pack_that_runs_out_of_memory_is_halved_down_to_one_member(train, rows, monkeypatch) -> None:
    class Large(quadratic.QuadraticTrainer):
        def step(self):
            if self.num_members > 3:
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
            return super().step()

    train(sweep_with("name=calm"))
    monkeypatch.setattr(quadratic, "start", Large)
    assert train(sweep_with("resources.pack=12")).exit_code == 0
    assert numbers(rows("edge")) == numbers(rows("calm"))
    assert {row.num_attempts for row in rows("edge")} == {3}, "12, 6 and 3 at a time"


def test_a_member_that_does_not_fit_alone_is_errored_with_a_remedy(train, rows, monkeypatch) -> None:
    class TooLarge(quadratic.QuadraticTrainer):
        def step(self):
            if any(config.lr == 0.1 for config in self.configs):
                raise MemoryError("no room")
            return super().step()

    monkeypatch.setattr(quadratic, "start", TooLarge)
    assert train(sweep_with("resources.pack=4")).exit_code == 3
    bad = [row for row in rows("edge") if row.config["lr"] == 0.1]
    assert {row.status for row in bad} == {"errored"}
    assert all("out of memory" in row.reason and "batch_size" in row.reason for row in bad)
    assert {row.status for row in rows("edge") if row.config["lr"] != 0.1} == {"finished"}


def test_a_trainer_bug_is_errored_with_its_traceback_and_spares_the_other_packs(train, rows, monkeypatch) -> None:
    def start(configs, seeds, device, plan):
        if configs[0].dimension == 7:
            raise RuntimeError("seven is too many")
        return quadratic.QuadraticTrainer(configs, seeds, device, plan)

    monkeypatch.setattr(quadratic, "start", start)
    sweep = sweep_with("axes.dimension.values=[4, 7]")
    assert train(sweep).exit_code == 3
    for row in rows("edge"):
        bad = row.config["dimension"] == 7
        assert row.status == ("errored" if bad else "finished")
        assert ("seven is too many" in (row.error or "")) == bad
    assert train(sweep, Never).exit_code == 3, "errored trials do not run again by themselves"
    monkeypatch.setattr(quadratic, "start", quadratic.QuadraticTrainer)
    assert train(sweep, retry_errored=True).exit_code == 0


def test_trials_that_waited_when_their_pack_broke_are_trained_as_if_nothing_had_been(train, rows, monkeypatch) -> None:
    class BrokenByOne(quadratic.QuadraticTrainer):
        def step(self):
            if any((config.lr, config.beta1) == (0.1, 0.0) for config in self.configs):
                raise RuntimeError("one is too many")
            return super().step()

    train(sweep_with("name=calm", "resources.pack=1"))
    monkeypatch.setattr(quadratic, "start", BrokenByOne)
    # The first pack has six trials, two at a time, and the first two break it.
    summary = train(sweep_with("resources.pack=2"))
    assert summary.exit_code == 3
    broken = [row for row in rows("edge") if row.status == "errored"]
    assert [(row.config["lr"], row.config["beta1"]) for row in broken] == [(0.1, 0.0)] * 2
    assert all("one is too many" in row.error for row in broken)
    well = [row for row in rows("edge") if row.status == "finished"]
    assert len(well) == 10 == summary.counts["stable"] + summary.counts["diverged"]
    ids = {row.trial_id for row in well}
    assert numbers(well) == numbers([row for row in rows("calm") if row.trial_id in ids])
    assert {row.error for row in well} == {None}
    assert {row.num_attempts for row in rows("edge")} == {1}, "to wait is not an attempt"
    assert len({row.pack_id for row in well} & {row.pack_id for row in broken}) == 0, "they got a new pack"
    monkeypatch.setattr(quadratic, "start", quadratic.QuadraticTrainer)
    assert train(sweep_with("resources.pack=2"), retry_errored=True).exit_code == 0
    assert numbers(rows("edge")) == numbers(rows("calm"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_the_run_and_the_next_one_goes_on(train, rows, number, code) -> None:
    stop = Observer(lambda _, finished: os.kill(os.getpid(), number) if finished else None)
    train(sweep_with("name=calm", "resources.pack=4"))
    before = signal.getsignal(number)
    summary = train(sweep_with("resources.pack=4"), observers=[stop])
    assert summary.exit_code == code
    assert signal.getsignal(number) is before
    statuses = {row.status for row in rows("edge")}
    assert "finished" in statuses
    assert "running" not in statuses
    assert statuses != {"finished"}
    assert train(sweep_with("resources.pack=4")).exit_code == 0
    assert numbers(rows("edge")) == numbers(rows("calm"))


def test_a_run_under_nohup_outlives_its_terminal(train, quadratic_sweep) -> None:
    hang_up = Observer(lambda *_: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train(quadratic_sweep, observers=[hang_up]).exit_code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_sweep_that_another_driver_holds_is_refused(train, tmp_path: Path, quadratic_sweep) -> None:
    with sweep_lock(tmp_path / "edge"), pytest.raises(InputError, match=f"pid {os.getpid()}"):
        train(quadratic_sweep)


def test_progress_ends_at_nothing_left(train, quadratic_sweep) -> None:
    seen = []
    watch = Observer(lambda progress, _: seen.append((progress.to_train, progress.steps_left, dict(progress.counts))))
    train(quadratic_sweep, observers=[watch])
    to_train, steps_left, counts = seen[-1]
    assert (to_train, steps_left, sum(counts.values())) == (12, 0, 12)


@pytest.mark.parametrize(
    ("ending", "statuses", "attempts", "reason"),
    [
        (Completed(), {"errored": 6, "finished": 6}, {1}, "the worker ended without its result"),
        (Paused(), {"interrupted": 6, "finished": 6}, {1}, "the run was stopped"),
        (Paused("there are more places", goes_on=True), {"finished": 12}, {1, 2}, None),
        (Failed("Traceback\nit broke"), {"errored": 6, "finished": 6}, {1}, "it broke"),
        (OutOfMemory("a\nno room", 1), {"errored": 6, "finished": 6}, {1}, "out of memory with one member: no room"),
        (OutOfMemory("a\nno room", 6), {"finished": 12}, {1, 2}, None),
        (Refused("a\nanother version"), {"finished": 12}, {1, 2}, None),
        (Lost("a\nthe host is gone"), {"finished": 12}, {1, 2}, None),
    ],
    ids=["completed", "paused", "paused to go on", "failed", "out of memory alone", "out of memory", "refused", "lost"],
)
def test_an_ending_says_what_becomes_of_the_unfinished_trials_in_the_ledger_and_in_the_run(
    train, rows, ending, statuses: dict, attempts: set, reason: str | None
) -> None:
    summary = train(sweep_with("resources.pack=6"), lambda: EndsPacks(ending))
    found = rows("edge")
    assert Counter(row.status for row in found) == statuses
    assert Counter(row.label for row in found) == summary.counts, "the run says what the ledger says"
    assert {row.num_attempts for row in found} == attempts
    assert all(row.reason.startswith(reason) for row in found if row.status != "finished")


def test_those_who_waited_when_their_pack_failed_are_trained_elsewhere(train, rows) -> None:
    sweep = sweep_with("resources.pack=6")
    waited = tuple(trial.trial_id for trial in sweep.trials[:2])
    train(sweep, lambda: EndsPacks(Failed("it broke", waited)))
    assert {row.trial_id for row in rows("edge") if row.status == "errored"} == {t.trial_id for t in sweep.trials[2:6]}
