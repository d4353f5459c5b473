"""Tells the user of a run: an observer that sends the news."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.trial_result import MemberResult
from orchestrator.driver.progress import Progress
from orchestrator.mirrors.notify.news import Message, News
from orchestrator.mirrors.notify.sender import Sender


class Notifier:
    """Sends the messages of a run as they become due. An observer of the run."""

    def __init__(self, news: News, sender: Sender) -> None:
        self._news, self._sender = news, sender

    def began(self, progress: Progress) -> None:
        """Training is about to begin."""
        self._news.began(progress)

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Send what is due."""
        self._send(self._news.changed(progress, finished))

    def ended(self, progress: Progress) -> None:
        """Send the last message."""
        self._send(self._news.ended(progress))

    def finish(self) -> str | None:
        """Wait a moment for the messages to arrive; returns what went wrong, if anything."""
        return self._sender.finish()

    def _send(self, message: Message | None) -> None:
        if message is not None:
            self._sender.send(message)
