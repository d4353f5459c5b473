"""Messages are sent beside the run."""

from __future__ import annotations

import threading

from orchestrator.mirrors.notify.news import Message
from orchestrator.mirrors.notify.sender import NotDelivered, Sender

MESSAGES = [Message(f"message {i}", "", "info") for i in range(4)]


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
