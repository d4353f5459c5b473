"""`sweep ui` with MLflow's real server: who gets in, and who does not."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import mlflow
import pytest
from local_server import free_port, wait_for
from mlflow import MlflowClient

SWEEP = Path(sys.executable).with_name("sweep")
DELETE = "/api/2.0/mlflow/experiments/delete"


class Server(NamedTuple):
    port: int
    token: str

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, target: str, method: str = "GET", body: str = "", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, target, body, {"Content-Type": "application/json", **headers})
            reply = connection.getresponse()
            reply.read()
            return reply


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a store of one experiment, and with files that have names of sweep's and MLflow's parts."""
    folder = tmp_path_factory.mktemp("login")
    (folder / "results").mkdir()
    client = MlflowClient(f"sqlite:///{folder / 'results' / 'mlflow.db'}")
    client.create_experiment("precious")
    for name in ("orchestrator", "objectives"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('not this one')")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    port = free_port()
    environment = {**os.environ, "MLFLOW_TRACKING_PASSWORD": "of my own"}
    command = [SWEEP, "ui", "--port", str(port)]
    served = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said = "".join(served.stdout.readline() for _ in range(3))  # a note, the experiment's runs, all of MLflow
        wait_for(f"http://127.0.0.1:{port}/health")
        yield Server(port, re.search(r"token=([\w-]+)", said)[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(served.pid, signal.SIGTERM)
        served.stdout.close()
        served.wait(60)


def test_another_user_of_the_machine_can_neither_read_nor_delete(server: Server) -> None:
    assert server.ask("/").status == 401
    assert server.ask("/ajax-api/2.0/mlflow/experiments/search?max_results=5").status == 401
    assert server.ask("/get-artifact?path=a&run_id=b").status == 401
    assert server.ask(DELETE, "POST", '{"experiment_id": "1"}').status == 401


def test_the_printed_address_opens_the_pages_and_what_they_ask_for(server: Server) -> None:
    welcome = server.ask(f"/?token={server.token}")
    cookie = welcome.headers["Set-Cookie"].partition(";")[0]
    assert (welcome.status, urlsplit(welcome.headers["Location"]).path) == (303, "/")
    assert server.ask("/", Cookie=cookie).status == 200
    assert server.ask("/ajax-api/2.0/mlflow/experiments/search?max_results=5", Cookie=cookie).status == 200


def test_a_login_does_not_let_other_sites_in(server: Server) -> None:
    cookie = server.ask(f"/?token={server.token}").headers["Set-Cookie"].partition(";")[0]
    assert server.ask("/", Cookie=cookie, Host="evil.example").status == 403


@pytest.mark.parametrize("own", [True, False], ids=["password of one's own", "token"])
def test_mlflows_client_logs_in(server: Server, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "anyone")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "of my own" if own else server.token)
    client = MlflowClient(f"http://{server.host}")
    assert "precious" in [experiment.name for experiment in client.search_experiments()]


def test_mlflows_client_without_the_password_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "anyone")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "a guess")
    with pytest.raises(mlflow.exceptions.MlflowException, match="401"):
        MlflowClient(f"http://{server.host}").search_experiments()
