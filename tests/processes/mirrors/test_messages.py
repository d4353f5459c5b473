"""Messages of `sweep run` as a server gets them, from Apprise's plugin for JSON over HTTP."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import QUADRATIC

RUN = ("run", "edge.yaml", "--executor", "inline")
# Parts of a URL that must not be found anywhere.
USER, PASSWORD, TOKEN = "somebody", "pa55w0rd", "t0ken-in-the-path"


class Server(http.server.ThreadingHTTPServer):
    """Keeps what it is sent, and answers with ``status``; None for no answer until it is closed."""

    daemon_threads = True

    def __init__(self, status: int | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.received: list[dict[str, Any]] = []
        self.closing = threading.Event()

    def url(self, options: str = "") -> str:
        return f"json://{USER}:{PASSWORD}@127.0.0.1:{self.server_port}/{TOKEN}{options}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append({"path": self.path, **json.loads(content)})
        if self.server.status is None:
            self.server.closing.wait()
            return
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def serve() -> Iterator[Callable[[int | None], Server]]:
    """Start servers that are closed in the end."""
    servers: list[Server] = []

    def start(status: int | None) -> Server:
        server = Server(status)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.closing.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a sweep file that asks for messages, to be in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge.yaml").write_text(f"{QUADRATIC}notify: {{url_from: NOTIFY_URL}}\n")
    return tmp_path


def assert_kept_to_itself(folder: Path, *said: str) -> None:
    """No part of the URL is in any file of ``folder`` or in what was ``said``."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    for secret in (USER, PASSWORD, TOKEN):
        assert all(secret.encode() not in content for content in files)
        assert all(secret not in text for text in said)


def test_a_run_tells_a_server_of_its_end_once_and_keeps_the_url_to_itself(
    folder: Path, command_line, monkeypatch, serve
) -> None:
    server = serve(200)
    monkeypatch.setenv("NOTIFY_URL", server.url())
    code, text = command_line(*RUN)
    assert code == 0
    assert "warning" not in text
    (message,) = server.received
    assert (message["path"], message["title"], message["type"]) == (f"/{TOKEN}", "edge: finished", "success")
    assert message["message"].startswith("12 trials: 10 stable, 2 diverged\n")
    assert_kept_to_itself(folder, text)
    assert command_line(*RUN)[0] == 0
    assert len(server.received) == 1, "nothing was trained"


def test_a_test_message_arrives_and_a_server_that_refuses_it_is_told_with_its_status(
    folder: Path, command_line, monkeypatch, serve
) -> None:
    server = serve(200)
    monkeypatch.setenv("NOTIFY_URL", server.url())
    assert command_line(*RUN, "--notify-test") == (0, "the service of NOTIFY_URL accepted the test message\n")
    assert [message["title"] for message in server.received] == ["edge: test"]
    refusing = serve(401)
    monkeypatch.setenv("NOTIFY_URL", refusing.url())
    code, text = command_line(*RUN, "--notify-test")
    assert (code, text) == (
        3, "error: notify: 1 of 1 messages did not arrive: the service answered with HTTP status 401\n",
    )  # fmt: skip
    assert len(refusing.received) == 1
    assert list(folder.iterdir()) == [folder / "edge.yaml"]


def test_two_services_in_one_variable_are_both_told(folder: Path, command_line, monkeypatch, serve) -> None:
    servers = [serve(200), serve(200)]
    monkeypatch.setenv("NOTIFY_URL", ", ".join(server.url() for server in servers))
    assert command_line(*RUN, "--notify-test")[0] == 0
    assert [len(server.received) for server in servers] == [1, 1]


@pytest.mark.usefixtures("without_files")
@pytest.mark.parametrize(("answer", "says"), [
    (403, "the service answered with HTTP status 403\n"),
    (500, "the service answered with HTTP status 500\n"),
    ("down", "the service cannot be reached, did not answer in time, or refused it\n"),
    (None, "did not answer in time"),  # and Apprise itself gives up
])  # fmt: skip
def test_a_server_that_takes_no_message_costs_one_warning_with_its_cause(
    folder: Path, command_line, monkeypatch, serve, answer: int | str | None, says: str
) -> None:
    server = serve(200 if answer == "down" else answer)
    monkeypatch.setenv("NOTIFY_URL", server.url("?rto=0.2"))
    if answer == "down":
        server.shutdown()
        server.server_close()
    code, text = command_line(*RUN)
    assert code == 0
    assert text.count("warning:") == 1
    assert says in text
    assert len(server.received) == (answer != "down")
    assert_kept_to_itself(folder, text)


@pytest.mark.slow
def test_a_server_that_hangs_for_good_holds_neither_the_sweep_nor_the_end_of_the_process(folder: Path, serve) -> None:
    server = serve(None)
    # Apprise itself would wait for a day, and every thread but a daemon holds the end of the process as long.
    environment = {**os.environ, "NOTIFY_URL": server.url("?rto=86400&cto=86400")}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *RUN],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not server.closing.is_set()
    assert done.returncode == 0, done.stderr
    assert len(server.received) == 1
    assert done.stdout.count("warning: notify: the service did not answer within 8 s\n") == 1
    assert done.stderr == ""
    assert_kept_to_itself(folder, done.stdout)
