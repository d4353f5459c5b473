"""The login in front of MLflow's server, asked without a server."""

import asyncio
import base64
from typing import Any

import pytest

from orchestrator.mirrors.mlflow_server import Login

TOKEN, PASSWORD = "s3cret", "of-clients"
NAME = b"sweep-ui-5000"
Reply = tuple[int, dict[bytes, bytes]]


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def ask(headers: dict[bytes, bytes] | None = None, path: str = "/", query: bytes = b"", kind: str = "http") -> Any:
    """The first message of the answer to one request."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {
        "type": kind, "path": path, "query_string": query, "headers": list((headers or {}).items()),
        "server": ("127.0.0.1", 5000),
    }  # fmt: skip
    asyncio.run(Login(inner, TOKEN, PASSWORD)(scope, receive, send))
    return sent[0]


def basic(word: str, user: str = "anyone") -> dict[bytes, bytes]:
    return {b"authorization": b"Basic " + base64.b64encode(f"{user}:{word}".encode())}


def test_nobody_gets_in_without_the_token() -> None:
    refused = ask()
    assert refused["status"] == 401
    assert dict(refused["headers"])[b"www-authenticate"].startswith(b"Basic")
    assert ask(path="/api/2.0/mlflow/experiments/delete")["status"] == 401
    assert ask(kind="websocket")["type"] == "websocket.close"


def test_whether_the_server_is_up_is_no_secret() -> None:
    assert ask(path="/health")["status"] == 200


def test_the_printed_address_sets_a_cookie_that_opens_all_pages() -> None:
    welcome = ask(query=b"a=b&token=s3cret")
    headers = dict(welcome["headers"])
    assert (welcome["status"], headers[b"location"]) == (303, b"/")
    cookie, *attributes = headers[b"set-cookie"].split(b"; ")
    assert {b"HttpOnly", b"SameSite=Lax"} <= set(attributes)
    assert ask({b"cookie": b'theirs={"a": [1]}; ' + cookie})["status"] == 200
    assert ask({b"cookie": cookie.replace(b"5000", b"5001")})["status"] == 401


@pytest.mark.parametrize(
    ("word", "status"), [(TOKEN, 200), (PASSWORD, 200), ("", 401), ("guess", 401), ("s3crét", 401)]
)
def test_programs_log_in_with_the_token_or_the_password_of_the_environment(word: str, status: int) -> None:
    assert ask(basic(word))["status"] == status


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Basic ???"},
        {b"authorization": b"Basic"},
        {b"authorization": b"Bearer s3cret"},
        {b"authorization": basic(TOKEN)[b"authorization"].replace(b"Basic", b"Digest")},
        {b"cookie": NAME + b"="},
        {b"cookie": b"=;;\xff"},
    ],
)
def test_headers_without_the_token_are_refused(headers: dict[bytes, bytes]) -> None:
    assert ask(headers)["status"] == 401


def test_a_wrong_token_in_the_address_is_refused() -> None:
    assert ask(query=b"token=guess")["status"] == 401
    assert ask(query=b"token=%C3%A9")["status"] == 401
