"""A server of pages for the browsers of this machine alone, whose addresses other users cannot guess."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import sys
from abc import ABC, abstractmethod
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

from orchestrator.base.errors import InputError, Problem, SweepError

HOST = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Listener(socket.socket):
    """A socket for pages, and the random word in their addresses: the port is open to every user of this machine."""

    token = ""


def listening_socket(port: int | None) -> Listener:
    """A socket on loopback, on ``port`` or else a free one. Raises InputError where the port is taken."""
    listener = Listener(socket.AF_INET, socket.SOCK_STREAM)
    listener.token = secrets.token_urlsafe(16)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port or 0))
        listener.listen(16)
    except OSError as error:
        listener.close()
        remedy = "choose another, or leave the option out for one that is free"
        raise InputError(Problem("--port", str(port), error.strerror or str(error), remedy)) from None
    return listener


def address_of(listener: Listener, name: str | None = None) -> str:
    """The address of the page of the sweep ``name``, or of the index."""
    path = f"{quote(name, safe='')}/" if name is not None else ""
    return f"http://{HOST}:{listener.getsockname()[1]}/{listener.token}/{path}"


class LoopbackServer(ThreadingHTTPServer, ABC):
    """Answers requests under the random word of its address; a subclass says what is where."""

    daemon_threads = True

    def __init__(self, listener: Listener) -> None:
        """Take over ``listener``."""
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.prefix = f"/{listener.token}".encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that left before it had its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @abstractmethod
    def answer(self, target: str) -> tuple[str, str] | None:
        """Return type and text of what is at ``target``, the path and query of a request; None if nothing is.

        Raises SweepError if it cannot be read.
        """


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    server_version, sys_version = "sweep", ""
    protocol_version = "HTTP/1.1"
    timeout = 30.0  # seconds of silence that end a connection

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        # A page of another site may have its name resolved to this machine, and must not read what is here.
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "this server answers to this machine alone\n")
            return
        path = self.path.encode()
        prefix = self.server.prefix
        if not (hmac.compare_digest(path[: len(prefix)], prefix) and path[len(prefix) :].startswith(b"/")):
            text = "open the whole address that sweep printed: its random part keeps other users out\n"
            self._send(HTTPStatus.FORBIDDEN, "text/plain", text)
            return
        try:
            found = self.server.answer(path[len(prefix) :].decode())
        except SweepError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")
            return
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is no such page yet\n")
            return
        self._send(HTTPStatus.OK, *found)

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        is_known = status == HTTPStatus.OK and self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if is_known else status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE):
            self.send_header("Refresh", "2")  # a run that has just been started makes its ledger
        self.send_header("ETag", tag)
        if not is_known:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not is_known:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests: the terminal is the run's."""
