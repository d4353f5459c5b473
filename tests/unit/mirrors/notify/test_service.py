"""What of the URL and of Apprise is refused before training, without telling the URL."""

from __future__ import annotations

import importlib.util
import io
import logging
from collections.abc import Iterator

import pytest

from orchestrator.base.errors import InputError
from orchestrator.mirrors.notify import service
from orchestrator.mirrors.notify.news import Message
from orchestrator.mirrors.notify.sender import NotDelivered
from orchestrator.mirrors.notify.service import service_of
from orchestrator.sweepfile.sections import NotifyConfig

CONFIG = NotifyConfig(url_from="TOLD_TO")
MESSAGE = Message("edge: finished", "12 trials", "success")


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
    monkeypatch.delenv("TOLD_TO", raising=False)
    if value is not None:
        monkeypatch.setenv("TOLD_TO", value)
    assert refusal() == (
        "edge.yaml:9: notify.url_from: the environment variable TOLD_TO is not set\n"
        "    remedy: set it to a URL of Apprise, or leave messages out: --set notify=null"
    )


def test_without_apprise_the_extra_is_named_and_the_variable_too_where_it_is_not_set(monkeypatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "apprise" else find(name))
    monkeypatch.setenv("TOLD_TO", "json://127.0.0.1")
    assert "pip install 'sweep-stability[notify]'" in refusal()
    monkeypatch.delenv("TOLD_TO")
    assert "TOLD_TO is not set" in refusal()
    assert "needs the package" not in refusal()
    assert "need the package apprise" in refusal()


@pytest.mark.parametrize("url", ["secret", "secret://user:pa55@secret.example/pa55", "slack://pa55/secret"])
def test_what_apprise_cannot_use_is_refused_and_not_repeated(monkeypatch, capfd, root_log, url: str) -> None:
    monkeypatch.setenv("TOLD_TO", url)
    told = refusal()
    assert "the value of the environment variable TOLD_TO is not a URL of Apprise" in told
    captured = capfd.readouterr()
    for text in (told, captured.out, captured.err, root_log.getvalue()):
        assert "secret" not in text
        assert "pa55" not in text


def test_a_service_that_raises_is_told_by_the_kind_of_its_error_alone(monkeypatch) -> None:
    import apprise

    monkeypatch.setenv("TOLD_TO", "json://user:pa55@127.0.0.1/secret")

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
def test_of_a_log_only_the_status_is_told(log: list[str], reason: str) -> None:
    assert reason in service._reason(log)
    assert "secret" not in service._reason(log)
