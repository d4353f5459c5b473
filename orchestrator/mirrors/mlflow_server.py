"""MLflow's server for `sweep ui`: its command and its login.

MLflow's own login needs packages that MLflow does not bring. Without any, each user of the machine could delete
experiments.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from orchestrator.mirrors.mlflow_store import artifacts_folder

Message = MutableMapping[str, Any]  # as in ASGI
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

PASSWORD = "MLFLOW_TRACKING_PASSWORD"  # where MLflow's clients look for theirs
TOKEN = "token"  # in an address
_TOKEN = "SWEEP_UI_TOKEN"  # in the environment of the server's process
_APP = "sweep-ui"
_OPEN = ("/health", "/version")  # as in MLflow's own login
_HELP = b"open the whole address that sweep printed: its random part keeps other users out\n"


def server_command(uri: str, results: Path, port: int, python: str, app: str | None = None) -> list[str]:
    """Return the command that serves MLflow's pages for ``uri``, on loopback only, by MLflow's ``app``."""
    hosts = ",".join(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))
    artifacts = artifacts_folder(results).as_uri()
    return [
        *(python, "-m", "mlflow", "server", "--backend-store-uri", uri),
        *("--default-artifact-root", artifacts, "--host", "127.0.0.1", "--port", str(port)),
        *("--allowed-hosts", hosts, "--workers", "1", *(() if app is None else ("--app-name", app))),
    ]


@contextlib.contextmanager
def closed_server(token: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of MLflow's app behind the login with ``token``, and the environment that shows it to MLflow.

    MLflow looks for apps among the entry points of installed packages: one is described in a temporary folder.
    """
    with tempfile.TemporaryDirectory(prefix="sweep-ui-") as folder:
        package = Path(folder) / "sweep_ui-0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: sweep-ui\nVersion: 0\n")
        (package / "entry_points.txt").write_text(f"[mlflow.app]\n{_APP} = sweep_stability:mlflow_app\n")
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        yield _APP, {"PYTHONPATH": path, _TOKEN: token}


def app_with_login() -> Login:
    """Return MLflow's app behind the login with the token of this environment. Raises KeyError without one."""
    from mlflow.server.fastapi_app import app

    return Login(app, os.environ[_TOKEN], os.environ.get(PASSWORD))


class Login:
    """An ASGI app that refuses requests without the token or the password.

    An address with the token sets a cookie. It has the server's port in its name, since browsers send cookies to all
    ports of a host. Programs send token or password by basic authentication, with any user name.
    """

    def __init__(self, app: App, token: str, password: str | None = None) -> None:
        """``app`` answers requests with the ``token``, or with the ``password`` of MLflow's clients."""
        self._app = app
        self._token = token.encode()
        self._passwords = [self._token, *([password.encode()] if password else [])]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan" or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        words = parse_qs(scope["query_string"].decode(errors="replace")).get(TOKEN, [])
        if scope["type"] == "http" and any(hmac.compare_digest(word.encode(), self._token) for word in words):
            cookie = b"%s=%s; Path=/; HttpOnly; SameSite=Lax" % (_cookie_name(scope), self._token)
            headers = [(b"location", b"/"), (b"set-cookie", cookie), (b"referrer-policy", b"no-referrer")]
            await _reply(send, 303, headers)
        elif self._is_known(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            challenge = (b"www-authenticate", b'Basic realm="sweep ui", charset="UTF-8"')
            await _reply(send, 401, [challenge, (b"content-type", b"text/plain")], _HELP)

    def _is_known(self, scope: Message) -> bool:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        cookie = b"%s=%s" % (_cookie_name(scope), self._token)
        cookies = (found.strip() for found in headers.get(b"cookie", b"").split(b";"))
        if any(hmac.compare_digest(found, cookie) for found in cookies):
            return True
        kind, _, content = headers.get(b"authorization", b"").partition(b" ")
        try:
            _, _, word = base64.b64decode(content, validate=True).partition(b":")
        except binascii.Error:
            return False
        return kind.lower() == b"basic" and any(hmac.compare_digest(word, known) for known in self._passwords)


def _cookie_name(scope: Message) -> bytes:
    return b"sweep-ui-%d" % scope["server"][1]


async def _reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
