"""What observers learn of a run beyond its results: hangs, what holds trials back, and how it ended."""

import signal

import pytest
from driver_cases import EndsPacks
from sweep_cases import sweep_with

from orchestrator.base.errors import StorageError
from orchestrator.base.packs import Failed, Lost, Report
from orchestrator.driver.progress import Progress
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.writer import LedgerWriter


class Last:
    """Keeps the progress that it was shown."""

    def __init__(self) -> None:
        self.held_back: list[str | None] = []

    def began(self, progress: Progress) -> None:
        self.progress = progress

    def changed(self, progress: Progress, finished) -> None:
        self.held_back.append(progress.held_back)

    def ended(self, progress: Progress) -> None:
        self.num_ended = getattr(self, "num_ended", 0) + 1


@pytest.mark.parametrize("kind", [Lost, Failed])
def test_trainers_that_hung_are_counted_and_those_that_failed_otherwise_are_not(train, kind) -> None:
    seen = Last()
    endings = [kind("silent", is_hung=True), kind("silent", is_hung=True), kind("killed")]
    train(sweep_with("resources.pack=2"), lambda: EndsPacks(*endings), observers=[seen])
    assert seen.progress.num_hung == 2


def test_a_worker_without_a_heartbeat_counts_as_hung(train) -> None:
    seen, clock = Last(), [0.0]

    class Silent(InlineExecutor):
        was_killed = False

        def poll(self, timeout_s: float):
            clock[0] += 400
            if self._reports is not None and not self.was_killed:
                return []
            return super().poll(timeout_s)

        def kill(self, pack_id: str) -> None:
            self.was_killed, self._reports = True, None

    train(sweep_with(), Silent, observers=[seen], clock=lambda: clock[0])
    assert seen.progress.num_hung == 1


def test_what_holds_trials_back_is_known_until_one_trains(train) -> None:
    seen = Last()
    failures = [Failed("no such file"), Failed("no such file")]
    sweep = sweep_with("resources.pack=2")
    train(sweep, lambda: EndsPacks(*failures), observers=[seen])
    reason = "no other trial is started: the first 2 failed alike before their first loss"
    # The pack that the executor has already is trained all the same.
    assert list(dict.fromkeys(seen.held_back)) == [None, reason]
    assert seen.progress.held_back is None
    assert seen.progress.outcomes


def test_a_signal_that_stopped_the_run_and_no_error_is_known(train) -> None:
    class Stopping(Last):
        def changed(self, progress: Progress, finished) -> None:
            if finished and progress.stopped_by is None:
                signal.raise_signal(signal.SIGTERM)

    seen = Stopping()
    assert train(sweep_with("resources.pack=4"), observers=[seen]).stopped_by == signal.SIGTERM
    assert (seen.progress.stopped_by, seen.progress.error) == (signal.SIGTERM, None)


def test_the_error_that_ended_the_run_is_known(train, monkeypatch) -> None:
    seen, error = Last(), StorageError("the disk is gone")

    def record(*_: object) -> None:
        raise error

    monkeypatch.setattr(LedgerWriter, "record", record)
    with pytest.raises(StorageError):
        train(sweep_with(), observers=[seen])
    assert seen.progress.error is error
    assert seen.num_ended == 1


def test_throughput_counts_from_the_first_steps_on_and_not_before_there_is_enough_of_it() -> None:
    now = [12.0]
    progress = Progress(sweep_with(), {}, {}, {}, 8, clock=lambda: now[0], started=0.0, member_steps=1000)
    assert progress.member_steps_per_second == 0, "no step has been seen"
    progress.steps_began = (10.0, 600)
    assert progress.member_steps_per_second == 0, "two seconds are too few"
    now[0] = 14.0
    assert progress.member_steps_per_second == (1000 - 600) / 4


def test_the_share_that_is_done_grows_with_steps_in_hand_and_with_trials_that_are_over(train) -> None:
    class Shares(Last):
        shares: list[float] = []

        def changed(self, progress: Progress, finished) -> None:
            self.shares.append(progress.share_done)

    seen = Shares()
    sweep = sweep_with()
    train(sweep, observers=[seen])
    assert seen.shares == sorted(seen.shares)
    assert seen.shares[-1] == 1, "trials that ended early need no more steps"
    assert seen.progress.steps_began is not None
    trials = {trial.trial_id: trial for trial in sweep.trials}
    first = sweep.trials[0]
    progress = Progress(sweep, trials, dict.fromkeys(trials, "planned"), {}, len(trials), lambda: 0.0, 0.0)
    assert progress.share_done == 0
    progress.running = {"a": Report("a", 5, 5, 1.0)}
    assert progress.share_done == pytest.approx(5 / (len(trials) * first.steps))
    assert Progress(sweep, {}, {}, {}, 0, lambda: 0.0, 0.0).share_done == 0


@pytest.mark.parametrize(
    ("status", "is_left"),
    [("planned", 1), ("running", 1), ("interrupted", 1), ("lost", 1), ("finished", 0), ("errored", 0)],
)
def test_a_trial_that_goes_on_later_has_steps_left(status: str, is_left: int) -> None:
    sweep = sweep_with()
    first = sweep.trials[0]
    progress = Progress(sweep, {first.trial_id: first}, {first.trial_id: status}, {}, 0, lambda: 0.0, 0.0)
    assert progress.steps_left == is_left * first.steps
