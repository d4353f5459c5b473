"""Messages are sent from a thread, by Apprise, without disclosing the URL."""

import importlib.util
import io
import logging
import re
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import finished, sweep_of, sweep_with
from tiers import examples

from orchestrator.base.errors import InputError, StorageError
from orchestrator.base.trial_result import MemberResult
from orchestrator.driver.progress import Progress
from orchestrator.mirrors.notifier import PAUSE_S, Message, News, NotDelivered, Sender, _reason, service_of
from orchestrator.sweepfile.sections import EVENTS, NotifyConfig

MESSAGES = [Message(f"message {i}", "", "info") for i in range(4)]
CONFIG = NotifyConfig(url_from="NOTIFY_TEST_URL")
MESSAGE = Message("edge: finished", "12 trials", "success")


def test_messages_arrive_in_order() -> None:
    arrived: list[Message] = []
    sender = Sender(arrived.append)
    for message in MESSAGES:
        sender.send(message)
    assert sender.finish() is None
    assert arrived == MESSAGES


def test_a_run_without_messages_starts_no_thread_and_waits_for_none() -> None:
    before = threading.active_count()
    sender = Sender(lambda message: None)
    assert sender.finish() is None
    assert threading.active_count() == before


def test_failures_are_one_warning_with_the_first_reason_and_do_not_stop_the_others() -> None:
    arrived: list[Message] = []

    def deliver(message: Message) -> None:
        if message in MESSAGES[1:3]:
            raise NotDelivered(f"{message.title} is refused")
        arrived.append(message)

    sender = Sender(deliver)
    for message in MESSAGES:
        sender.send(message)
    assert sender.finish() == "2 of 4 messages did not arrive: message 1 is refused"
    assert arrived == [MESSAGES[0], MESSAGES[3]]


def test_a_service_that_hangs_holds_neither_the_one_who_sends_nor_the_end() -> None:
    release = threading.Event()
    sender = Sender(lambda message: release.wait() and None, patience_s=0.01)
    for message in MESSAGES:
        sender.send(message)
    assert sender.finish() == "the service did not answer within 0.01 s"
    assert not release.is_set()
    release.set()


@pytest.fixture
def root_log() -> Iterator[io.StringIO]:
    """What a program that logs to its root logger would show."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def refusal() -> str:
    with pytest.raises(InputError) as refused:
        service_of(CONFIG, "edge.yaml:9")
    assert refused.value.__context__ is None
    return str(refused.value)


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_variable_that_is_not_set_is_refused_with_two_remedies(monkeypatch, value: str | None) -> None:
    monkeypatch.delenv("NOTIFY_TEST_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("NOTIFY_TEST_URL", value)
    assert refusal() == (
        "edge.yaml:9: notify.url_from: the environment variable NOTIFY_TEST_URL is not set\n"
        "    remedy: set it to a URL of Apprise, or leave messages out: --set notify=null"
    )


def test_without_apprise_what_to_install_is_named_and_the_variable_too_where_it_is_not_set(monkeypatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "apprise" else find(name))
    monkeypatch.setenv("NOTIFY_TEST_URL", "json://127.0.0.1")
    assert "pip install 'apprise" in refusal()
    monkeypatch.delenv("NOTIFY_TEST_URL")
    assert "NOTIFY_TEST_URL is not set" in refusal()
    assert "needs the package" not in refusal()
    assert "need the package apprise" in refusal()


@pytest.mark.parametrize("url", ["secret", "secret://user:pa55@secret.example/pa55", "slack://pa55/secret"])
def test_what_apprise_cannot_use_is_refused_and_not_repeated(monkeypatch, capfd, root_log, url: str) -> None:
    monkeypatch.setenv("NOTIFY_TEST_URL", url)
    message = refusal()
    assert "the value of the environment variable NOTIFY_TEST_URL is not a URL of Apprise" in message
    captured = capfd.readouterr()
    for text in (message, captured.out, captured.err, root_log.getvalue()):
        assert "secret" not in text
        assert "pa55" not in text


def test_of_a_service_that_raises_only_the_kind_of_its_error_is_reported(monkeypatch) -> None:
    import apprise

    monkeypatch.setenv("NOTIFY_TEST_URL", "json://user:pa55@127.0.0.1/secret")

    def notify(*_: object, **__: object) -> None:
        raise ConnectionError("http://user:pa55@127.0.0.1/secret")

    monkeypatch.setattr(apprise.Apprise, "notify", notify)
    with pytest.raises(NotDelivered) as failed:
        service_of(CONFIG, "")(MESSAGE)
    assert str(failed.value) == "the service failed with ConnectionError"
    assert failed.value.__cause__ is None


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (["Failed to send JSON POST notification: Unauthorized, error=401."], "HTTP status 401"),
        (["a, error=500.", "b, error=500.", "c, error=503."], "HTTP status 500, 503"),
        (["A Connection error occurred sending to secret.example."], "cannot be reached"),
        ([], "cannot be reached"),
    ],
)
def test_only_the_status_of_a_log_is_reported(log: list[str], reason: str) -> None:
    assert reason in _reason(log)
    assert "secret" not in _reason(log)


FOLDER = Path("results/edge")


class Run:
    """A run of six cells of two seeds that a test plays; the clock stands still unless it is moved."""

    def __init__(self, *events: str, outcomes: dict[int, str] | None = None) -> None:
        """``outcomes`` are those of earlier runs, by position in the sweep."""
        sweep = sweep_with()
        self.now = 1000.0
        self.ids = [trial.trial_id for trial in sweep.trials]
        known = {self.ids[i]: outcome for i, outcome in (outcomes or {}).items()}
        statuses = {trial_id: "finished" if trial_id in known else "planned" for trial_id in self.ids}
        trials = {trial.trial_id: trial for trial in sweep.trials}
        self.progress = Progress(sweep, trials, statuses, known, 12, lambda: self.now, self.now)
        self.news = News(events or EVENTS, FOLDER)
        self.news.began(self.progress)

    def results(self, *outcomes: tuple[int, str]) -> Message | None:
        """These trials get results."""
        new: list[MemberResult] = []
        for i, outcome in outcomes:
            self.progress.statuses[self.ids[i]] = "finished"
            self.progress.outcomes[self.ids[i]] = outcome
            new.append(finished(self.ids[i], outcome))
        return self.news.changed(self.progress, new)

    def errors(self, *positions: int) -> Message | None:
        """These trials are errored."""
        for i in positions:
            self.progress.statuses[self.ids[i]] = "errored"
        return self.results()

    def hangs(self) -> Message | None:
        """A worker hangs."""
        self.progress.num_hung += 1
        return self.results()

    def ends(self) -> Message | None:
        return self.news.ended(self.progress)


@st.composite
def plays(draw) -> list[tuple[float, str, int]]:
    """What happens to which trial, and how many seconds after what was before; each trial once."""
    order = draw(st.permutations(range(12)))
    kinds = st.sampled_from(["stable", "diverged", "spiked", "errored", "hung"])
    return [(draw(st.sampled_from([0.0, 1.0, 20.0, 59.0, 61.0])), draw(kinds), i) for i in order]


@given(plays())
@settings(max_examples=examples(200))
def test_messages_are_a_minute_apart_but_for_the_last_and_report_everything_once(play) -> None:
    run, sent, times = Run(), [], []
    for seconds, kind, i in play:
        run.now += seconds
        message = {"errored": lambda: run.errors(i), "hung": run.hangs}.get(kind, lambda: run.results((i, kind)))()  # noqa: B023
        if message is not None:
            sent.append(message)
            times.append(run.now)
    last = run.ends()
    assert all(after - before >= PAUSE_S for before, after in pairwise(times))
    assert last is not None
    text = "\n".join(message.body for message in [*sent, last])
    kinds = [kind for _, kind, _ in play]
    assert sum(map(int, re.findall(r"(\d+) trials? errored", text))) == kinds.count("errored")
    assert sum(map(int, re.findall(r"hung (\d+) time", text))) == kinds.count("hung")
    outcomes = {i: kind for _, kind, i in play}
    mixed = sum({outcomes[2 * cell], outcomes[2 * cell + 1]} == {"stable", "diverged"} for cell in range(6))
    lines = re.findall(r"another ended stable: (.*)", text)
    named = [name for line in lines for name in line.partition("; and ")[0].split("; ")]
    assert len(named) == len(set(named))
    assert len(named) + sum(map(int, re.findall(r"and (\d+) more", text))) == mixed


def test_nothing_is_sent_while_all_is_well() -> None:
    run = Run()
    assert run.results((0, "stable"), (1, "stable"), (2, "diverged"), (3, "diverged"), (4, "spiked")) is None
    run.now += 10_000
    assert run.results() is None


def test_the_end_is_reported_with_outcomes_time_and_folder() -> None:
    run = Run()
    run.results(*((i, "stable") for i in range(10)), (10, "diverged"), (11, "diverged"))
    run.now += 3723
    assert run.ends() == Message(
        "edge: finished",
        "12 trials: 10 stable, 2 diverged\n1:02:03 of training, results in results/edge",
        "success",
    )


def test_a_run_that_a_signal_ended_is_reported_as_stopped() -> None:
    run = Run("finished")
    run.progress.stopped_by = signal.SIGINT
    message = run.ends()
    assert (message.title, message.kind) == ("edge: stopped", "info")
    assert "the same command resumes the sweep\n12 trials: 12 planned\n" in message.body


def test_an_error_that_ends_the_run_is_reported_without_its_text() -> None:
    for events in (("finished",), ("failed",)):
        run = Run(*events)
        run.progress.error = StorageError("json://user:password@host is in here")
        message = run.ends()
        assert (message.title, message.kind) == ("edge: ended by an error", "failure")
        assert "StorageError: the output of `sweep run` has its text\n" in message.body
        assert "password" not in message.body


def test_errored_trials_are_reported_at_once_and_the_next_ones_together_a_minute_later() -> None:
    run = Run()
    first = run.errors(0)
    assert (first.title, first.kind) == ("edge: trials errored", "failure")
    assert first.body.startswith("1 trial errored: `sweep status edge` says why\n12 trials: 11 planned, 1 errored\n")
    run.now += 1
    assert run.errors(1) is None
    run.now += 58
    assert run.errors(2) is None
    run.now += 1
    later = run.results()
    assert later.body.startswith("2 trials errored")
    run.now += PAUSE_S
    assert run.results() is None


def test_what_is_left_at_the_end_is_in_the_last_message_which_does_not_wait() -> None:
    run = Run()
    run.errors(0)
    run.hangs()
    run.errors(1)
    last = run.ends()
    assert (last.title, last.kind) == ("edge: finished, trials errored, hung", "failure")
    assert last.body.startswith("1 trial errored: `sweep status edge` says why\nhung 1 time: a worker")


def test_trials_that_earlier_runs_left_errored_are_not_reported() -> None:
    run = Run()
    run.progress.statuses[run.ids[0]] = "errored"
    run.news.began(run.progress)
    assert run.results() is None
    run.now += 1
    message = run.errors(1)
    assert message.body.startswith("1 trial errored")


def test_a_run_that_starts_no_other_trial_is_reported_once_with_its_reason_and_ends_early() -> None:
    run = Run()
    run.progress.held_back = "no other trial is started: the first 2 failed alike before their first loss"
    message = run.results()
    assert message.body.startswith(f"{run.progress.held_back}\n")
    run.now += PAUSE_S
    assert run.results() is None
    last = run.ends()
    assert last.title == "edge: ended early"


def test_a_worker_that_hangs_is_reported_with_how_long_it_was_silent() -> None:
    message = Run().hangs()
    assert (message.title, message.kind) == ("edge: hung", "warning")
    assert message.body.startswith("hung 1 time: a worker or trainer said nothing for 600 s\n")


def test_a_seed_that_diverges_next_to_a_stable_one_is_reported_in_whatever_order_they_end() -> None:
    for order in ([(2, "stable"), (3, "diverged")], [(2, "diverged"), (3, "stable")]):
        for together in (True, False):
            run = Run()
            message = run.results(*order) if together else (run.results(order[0]), run.results(order[1]))[1]
            assert (message.title, message.kind) == ("edge: a seed diverged", "warning")
            assert message.body.startswith("one seed diverged, another ended stable: lr=0.1 beta1=0.5\n")


def test_a_result_of_an_earlier_run_counts_but_a_cell_that_was_mixed_before_is_not_reported() -> None:
    run = Run(outcomes={0: "stable", 2: "stable", 3: "diverged"})
    assert run.results() is None
    message = run.results((1, "diverged"))
    assert "lr=0.1 beta1=0\n" in message.body
    assert "beta1=0.5" not in message.body


def test_a_cell_is_reported_once_however_many_of_its_seeds_diverge() -> None:
    sweep = sweep_of("seeds: [0, 1, 2, 3]\n")
    ids = [trial.trial_id for trial in sweep.trials]
    progress = Progress(
        sweep,
        {trial.trial_id: trial for trial in sweep.trials},
        dict.fromkeys(ids, "planned"),
        {},
        4,
        lambda: now[0],
        0.0,
    )
    now, news = [0.0], News(["diverged"], FOLDER)
    news.began(progress)
    sent = []
    for trial_id, outcome in zip(ids, ["stable", "diverged", "diverged", "stable"], strict=True):
        now[0] += PAUSE_S
        sent.append(news.changed(progress, [finished(trial_id, outcome)]))
    assert [message is not None for message in sent] == [False, True, False, False]


def test_many_cells_are_counted_after_the_first_five() -> None:
    message = Run().results(*((i, "diverged" if i % 2 else "stable") for i in range(12)))
    line = message.body.splitlines()[0]
    assert line.count("lr=") == 5
    assert line.endswith("; and 1 more")


def test_only_events_that_are_asked_for_are_reported() -> None:
    for event in EVENTS:
        run = Run(event)
        titles = [run.errors(0), run.hangs(), run.results((2, "stable"), (3, "diverged")), run.ends()]
        found = [message.title for message in titles if message is not None]
        assert (
            found
            == {
                "finished": ["edge: finished"],
                "failed": ["edge: trials errored"],
                "stalled": ["edge: hung"],
                "diverged": ["edge: a seed diverged"],
            }[event]
        )


def test_what_is_left_is_reported_at_the_end_even_if_the_end_itself_is_not() -> None:
    run = Run("failed")
    run.errors(0)
    run.errors(1)
    last = run.ends()
    assert last.title == "edge: trials errored"
