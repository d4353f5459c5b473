"""Send the messages of a run through Apprise, from a thread, so that the run never waits long for a server."""

from __future__ import annotations

import importlib.util
import logging
import os
import queue
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

from orchestrator.base.errors import InputError, Problem, SweepError
from orchestrator.base.trial_result import MemberResult
from orchestrator.driver.progress import Progress
from orchestrator.mirrors.news import Message, News
from orchestrator.sweepfile.sections import NotifyConfig

# How long the end of a run waits for messages. A service may accept two messages only five seconds apart.
PATIENCE_S = 8.0
_HTTP_STATUS = re.compile(r"\berror=(\d{3})\b")  # in Apprise's log

Deliver = Callable[[Message], None]


class NotDelivered(SweepError):
    """A message did not arrive. The text says why, without the URL. It never ends a sweep."""


class Notifier:
    """Send the messages of a run when they are due. An observer of the run."""

    def __init__(self, news: News, sender: Sender) -> None:
        self._news, self._sender = news, sender

    def began(self, progress: Progress) -> None:
        """Note the state before training."""
        self._news.began(progress)

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Send the message that is due, if any."""
        self._send(self._news.changed(progress, finished))

    def ended(self, progress: Progress) -> None:
        """Send the last message."""
        self._send(self._news.ended(progress))

    def finish(self) -> str | None:
        """Wait a moment for the messages to arrive and return what went wrong, or None."""
        return self._sender.finish()

    def _send(self, message: Message | None) -> None:
        if message is not None:
            self._sender.send(message)


class Sender:
    """Send messages in order from a thread. A message that fails is not sent again."""

    def __init__(self, deliver: Deliver, patience_s: float = PATIENCE_S) -> None:
        """``deliver`` sends one message; it may raise NotDelivered, and no other error."""
        self._deliver, self._patience_s = deliver, patience_s
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._failures: list[NotDelivered] = []
        self._num = 0
        self._thread = threading.Thread(target=self._work, daemon=True, name="notify")

    def send(self, message: Message) -> None:
        """Queue ``message``."""
        if self._num == 0:
            self._thread.start()
        self._num += 1
        self._queue.put(message)

    def finish(self) -> str | None:
        """Wait for queued messages, at most ``patience_s``, and return what went wrong, or None."""
        if self._num == 0:
            return None
        self._queue.put(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            return f"the service did not answer within {self._patience_s:g} s"
        if self._failures:
            return f"{len(self._failures)} of {self._num} messages did not arrive: {self._failures[0]}"
        return None

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                self._deliver(message)
            except NotDelivered as error:
                self._failures.append(error)


def service_of(notify: NotifyConfig, where: str) -> Deliver:
    """Return a function that sends a message to the URL in the environment variable ``notify.url_from``.

    ``where`` is the line of the sweep file that names the variable. The URL leaves this module only towards the
    service. Raises InputError if the variable is unset, its URL is invalid, or Apprise is not installed.
    """
    url = os.environ.get(notify.url_from, "")
    if problems := list(_missing(notify.url_from, url, where)):
        raise InputError(*problems)
    import apprise

    _silence_logs()
    # Messages go out one after another in the sender's thread: Apprise's own threads would delay the process's exit.
    services = apprise.Apprise(asset=apprise.AppriseAsset(app_id="sweep", async_mode=False, service_timeout=0))
    if not services.add(url):
        message = f"the value of the environment variable {notify.url_from} is not a URL of Apprise"
        raise InputError(Problem(where, "notify.url_from", message, "its services have forms such as json://host/path"))

    def deliver(message: Message) -> None:
        try:
            kind = apprise.NotifyType(message.kind)
            text = apprise.NotifyFormat.TEXT
            result = services.notify(message.body, message.title, notify_type=kind, body_format=text)
        except Exception as error:  # a plugin may raise anything, with the URL in its text
            raise NotDelivered(f"the service failed with {type(error).__name__}") from None
        if not result:
            raise NotDelivered(_reason(entry.message for entry in result.logs()))

    return deliver


def _missing(variable: str, url: str, where: str) -> Iterator[Problem]:
    if not url.strip():
        message = f"the environment variable {variable} is not set"
        remedy = "set it to a URL of Apprise, or leave messages out: --set notify=null"
        yield Problem(where, "notify.url_from", message, remedy)
    if importlib.util.find_spec("apprise") is None:
        message = "messages need the package apprise, which is not installed"
        remedy = "pip install 'sweep-stability[notify]', or leave messages out: --set notify=null"
        yield Problem(where, "notify", message, remedy)


def _reason(log: Iterable[str]) -> str:
    """Return why a message did not arrive: only the status, since the rest of the log may have parts of the URL."""
    statuses = dict.fromkeys(status for line in log for status in _HTTP_STATUS.findall(line))
    if statuses:
        return f"the service answered with HTTP status {', '.join(statuses)}"
    return "the service cannot be reached, did not answer in time, or refused it"


def _silence_logs() -> None:
    """Keep the logs of Apprise and its requests, which mention hosts and paths, out of the terminal."""
    logging.getLogger("apprise").propagate = False
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Unverified HTTPS request")
