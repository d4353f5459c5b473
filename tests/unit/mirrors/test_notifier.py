"""Messages are sent from a thread, by Apprise, without disclosing the URL."""

from __future__ import annotations

import importlib.util
import io
import logging
import threading
from collections.abc import Iterator

import pytest

from orchestrator.base.errors import InputError
from orchestrator.mirrors.notifier import Message, NotDelivered, Sender, _reason, service_of
from orchestrator.sweepfile.sections import NotifyConfig

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


def test_without_apprise_the_extra_is_named_and_the_variable_too_where_it_is_not_set(monkeypatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "apprise" else find(name))
    monkeypatch.setenv("NOTIFY_TEST_URL", "json://127.0.0.1")
    assert "pip install 'sweep-stability[notify]'" in refusal()
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
