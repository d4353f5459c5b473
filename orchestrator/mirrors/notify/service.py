"""The service behind a URL, through Apprise. The URL leaves this module only towards the service."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator

from orchestrator.base.errors import InputError, Problem
from orchestrator.mirrors.notify.news import Message
from orchestrator.mirrors.notify.sender import Deliver, NotDelivered
from orchestrator.sweepfile.sections import NotifyConfig

_STATUS = re.compile(r"\berror=(\d{3})\b")  # of HTTP, in Apprise's log


def service_of(notify: NotifyConfig, where: str) -> Deliver:
    """What sends a message to the URL in the environment variable that ``notify`` names, written at ``where``.

    Raises InputError without the variable, for a URL that Apprise cannot use, and without Apprise.
    """
    url = os.environ.get(notify.url_from, "")
    if problems := list(_missing(notify.url_from, url, where)):
        raise InputError(*problems)
    import apprise

    _silence_logs()
    # In the sender's thread, one after the other: threads of Apprise's own would hold the end of the process.
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
    """Why a message did not arrive: only the status, since other words of Apprise's log may be parts of the URL."""
    statuses = dict.fromkeys(status for line in log for status in _STATUS.findall(line))
    if statuses:
        return f"the service answered with HTTP status {', '.join(statuses)}"
    return "the service cannot be reached, did not answer in time, or refused it"


def _silence_logs() -> None:
    """Keep Apprise's log, and what its requests say of hosts and paths, out of the terminal."""
    logging.getLogger("apprise").propagate = False
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Unverified HTTPS request")
