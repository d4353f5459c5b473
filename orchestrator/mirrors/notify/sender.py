"""Sends messages beside the run, which never waits long for a server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from orchestrator.base.errors import SweepError
from orchestrator.mirrors.notify.news import Message

# How long the end of a run waits for messages. A service may take two messages at least five seconds apart.
PATIENCE_S = 8.0

Deliver = Callable[[Message], None]


class NotDelivered(SweepError):
    """A message did not arrive; this never ends a sweep. The text says why, without the URL."""


class Sender:
    """Sends messages in order, in a thread of its own; a message that fails is not sent again."""

    def __init__(self, deliver: Deliver, patience_s: float = PATIENCE_S) -> None:
        """``deliver`` sends one message; it raises NotDelivered and nothing else."""
        self._deliver, self._patience_s = deliver, patience_s
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._failures: list[NotDelivered] = []
        self._num = 0
        self._thread = threading.Thread(target=self._work, daemon=True, name="notify")

    def send(self, message: Message) -> None:
        """Queue ``message``."""
        if self._num == 0:
            self._thread.start()
        self._num += 1
        self._waiting.put(message)

    def finish(self) -> str | None:
        """Wait for what is queued, at most ``patience_s``; returns what went wrong, if anything."""
        if self._num == 0:
            return None
        self._waiting.put(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            return f"the service did not answer within {self._patience_s:g} s"
        if self._failures:
            return f"{len(self._failures)} of {self._num} messages did not arrive: {self._failures[0]}"
        return None

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                self._deliver(message)
            except NotDelivered as error:
                self._failures.append(error)
