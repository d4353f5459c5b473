"""The server of pages: what it answers, and to whom."""

import base64
import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import BASE, ledger_at, record, sweep_of

from orchestrator.answers.compare import CompareQuery
from orchestrator.answers.diagnose import answer_of
from orchestrator.base.errors import InputError, SweepError
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.causes.diagnosis import diagnose
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.pages.loopback import address_of, listening_socket
from orchestrator.pages.server import PageServer
from orchestrator.render.html import blocks_html, cards_html

GRID = "axes: {lr: {values: [0.1, 0.2]}, eps: {values: [1e-8, 1e-4]}}\n"
TOKEN = "token"
HOSTILE = '<script>alert("x")</script>'


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with a sweep, a file beside it and one above it."""
    folder = tmp_path / "results"
    (folder / "case").mkdir(parents=True)
    with ledger_at(folder / "case") as ledger:
        record(ledger, sweep_of(GRID), ["stable", "diverged", "errored", "planned"])
        ledger.give_up([ledger.trials()[2].trial_id], HOSTILE)
    (folder / "case" / FROZEN_SWEEP).write_text(f"# Where is\n# the {HOSTILE}?\nname: case\n")
    (tmp_path / "secret").write_text("secret")
    (folder / "plain").mkdir()
    return folder


@pytest.fixture
def port(results: Path) -> Iterator[int]:
    listener = listening_socket(None)
    listener.token = TOKEN
    with PageServer(listener, results) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def asked(port: int, target: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("GET", f"/{TOKEN}{target}", skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    found = response.status, dict(response.getheaders()), response.read().decode()
    connection.close()
    return found


def data_of(port: int) -> dict[str, Any]:
    """The data of the sweep's page."""
    return json.loads(asked(port, "/case/")[2].partition('id="data">')[2].partition("</script>")[0])


def test_the_page_of_a_sweep_and_the_list_of_all_are_served_with_text_escaped(port: int) -> None:
    for target in ("/case/answers", "/case/", "/"):
        status, headers, text = asked(port, target)
        assert status == 200
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert HOSTILE not in text
        if target == "/case/answers":
            continue  # a part of the page
        assert "default-src 'none'" in text
    assert '<a href="case/">case</a>' in text
    assert "<dd>3 of 4 over: 1 stable, 1 diverged</dd>" in text
    assert "&lt;script&gt;" in asked(port, "/case/answers")[2]
    assert "<dd>50%</dd>" in text


def test_the_live_page_leaves_the_curves_to_be_asked_for(port: int, results: Path) -> None:
    data = data_of(port)
    assert data["curves"] is None
    status, _, text = asked(port, f"/case/curves?trials={data['trials']['trial_id'][1]},nothing")
    assert status == 200
    curve, unknown = json.loads(text)
    assert curve["last"] == 19
    assert curve["loss"]
    assert unknown == {}


def test_news_are_what_has_changed_since_a_version_of_the_page(port: int, results: Path) -> None:
    version = asked(port, "/case/")[2].partition('data-version="')[2].partition('"')[0]
    status, headers, text = asked(port, f"/case/news?since={version}")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(text).keys() == {"version", "summary"}
    assert json.loads(asked(port, "/case/news?since=older")[2])["data"]["name"] == "case"


def test_a_diagnosis_is_asked_for_by_the_id_of_a_trial(port: int, results: Path) -> None:
    data = data_of(port)
    stable, diverged, errored, _ = data["trials"]["trial_id"]
    said = json.loads(asked(port, f"/case/diagnosis?trial={diverged}")[2])["html"]
    with LedgerReader(results / "case" / "ledger.db") as ledger:
        found = diagnose(read_table(ledger), diverged)
        assert found is not None
        shown = cards_html(answer_of(ledger, found, in_full=True).blocks())
    assert said.replace("chosen on the page", "given by its id") == shown
    assert "it stayed on its trend" in json.loads(asked(port, f"/case/diagnosis?trial={stable}")[2])["html"]
    assert "has no result" in json.loads(asked(port, f"/case/diagnosis?trial={errored}")[2])["html"]
    assert "no such trial" in json.loads(asked(port, "/case/diagnosis?trial=x")[2])["html"]


def test_a_sweep_is_compared_with_another_of_the_folder_and_with_nothing_else(port: int, results: Path) -> None:
    assert json.loads(asked(port, "/case/others")[2]) == []
    (results / "other").mkdir()
    with ledger_at(results / "other") as ledger:
        record(ledger, sweep_of(GRID, BASE.replace("case", "other")), ["stable", "stable", "stable", "planned"])
    assert json.loads(asked(port, "/case/others")[2]) == ["other"]
    said = json.loads(asked(port, "/case/comparison?with=other")[2])["html"]
    with LedgerReader(results / "case" / "ledger.db") as one, LedgerReader(results / "other" / "ledger.db") as two:
        answer = CompareQuery().ask([read_table(one), read_table(two)])
    assert said.startswith(blocks_html(answer.blocks()))
    assert said.count("<figure>") == 1, "the maps of both"
    assert asked(port, "/case/comparison?with=../secret")[0] == 404
    assert asked(port, "/case/comparison")[0] == 404


def test_sweeps_that_cannot_be_compared_say_why(port: int, results: Path) -> None:
    (results / "other").mkdir()
    with ledger_at(results / "other") as ledger:
        record(ledger, sweep_of("axes: {lr: {values: [7.0, 8.0]}}\n"), ["stable", "stable"])
    assert "share" in json.loads(asked(port, "/case/comparison?with=other")[2])["html"]


@pytest.mark.parametrize("words", ["steps=5:9", "steps=x:y", "steps=-1:9", "steps=9", "reading=nothing", ""])
def test_curves_can_be_asked_for_in_part(port: int, words: str) -> None:
    data = data_of(port)
    status, _, text = asked(port, f"/case/curves?trials={data['trials']['trial_id'][0]}&{words}")
    assert status == 200
    (found,) = json.loads(text)
    assert found["last"] == 19
    num_points = len(base64.b64decode(found["loss"][0])) // 4
    assert num_points == (7 if words == "steps=5:9" else 20), "with the points beside the part"


def test_a_page_that_has_not_changed_is_not_sent_again(port: int) -> None:
    tag = asked(port, "/case/")[1]["ETag"]
    status, headers, text = asked(port, "/case/", If_None_Match=tag)
    assert (status, headers["ETag"], text) == (304, tag, "")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", ""])
@pytest.mark.parametrize("target", ["", "diagnosis?trial=x", "comparison?with=case", "news", "others"])
def test_a_request_in_the_name_of_another_host_is_refused(port: int, host: str, target: str) -> None:
    status, _, text = asked(port, f"/case/{target}", Host=host)
    assert status == 421
    assert "case" not in text


def test_this_machine_s_two_names_are_answered(port: int) -> None:
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert asked(port, "/case/", Host=host)[0] == 200


@pytest.mark.parametrize(
    "target",
    [
        "/../secret",
        "/case/../../secret",
        "/%2e%2e/secret",
        "/..%2fsecret/",
        "/../",
        "/plain/",
        "/case",
        "/case/x",
        "/x/",
    ],
)
def test_nothing_but_pages_and_curves_can_be_asked_for(port: int, target: str) -> None:
    status, _, text = asked(port, target)
    assert status == 404
    assert text == "there is no such page yet\n"


def test_a_ledger_that_cannot_be_read_is_said_and_listed(port: int, results: Path) -> None:
    (results / "broken").mkdir()
    (results / "broken" / "ledger.db").write_bytes(b"no database at all" * 100)
    status, _, text = asked(port, "/broken/")
    assert status == 503
    assert "ledger.db" in text
    status, _, text = asked(port, "/")
    assert status == 200
    assert ">broken</a>" in text


def test_a_port_that_is_taken_is_an_error_of_the_user() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(InputError, match=f"{taken}"):
            listening_socket(taken)


def test_the_address_of_a_page_names_its_sweep() -> None:
    with listening_socket(None) as listener:
        number = listener.getsockname()[1]
        assert listener.getsockname()[0] == "127.0.0.1"
        assert address_of(listener, "a b") == f"http://127.0.0.1:{number}/{listener.token}/a%20b/"
        assert address_of(listener) == f"http://127.0.0.1:{number}/{listener.token}/"


@pytest.mark.parametrize("path", ["/", "/case/", "/wrong/case/", "/token", "/tokencase/", "/%74oken/case/", "/é/"])
def test_who_does_not_know_the_token_is_refused(port: int, path: str) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as other:
        other.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        reply = b"".join(iter(lambda: other.recv(65536), b"")).decode()
    assert reply.startswith("HTTP/1.1 403 ")
    assert "case" not in reply


def test_each_server_has_its_own_token() -> None:
    with listening_socket(None) as one, listening_socket(None) as other:
        assert len({one.token, other.token, ""}) == 3


def test_a_silent_connection_is_closed(port: int, monkeypatch) -> None:
    monkeypatch.setattr("orchestrator.pages.loopback._Handler.timeout", 0.05)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
        silent.sendall(b"GET /token/")
        assert silent.recv(100) == b""


def test_answers_beyond_a_few_at_once_are_refused(results: Path, monkeypatch) -> None:
    target = "/case/diagnosis?trial=x"
    with PageServer(listening_socket(None), results) as server:
        assert all(server.answer(target) for _ in range(6)), "each gives its place back"
    monkeypatch.setattr("orchestrator.pages.server._MOST_ANSWERS", 0)
    with PageServer(listening_socket(None), results) as server, pytest.raises(SweepError, match="ask again"):
        server.answer(target)


def test_a_browser_that_leaves_before_its_answer_prints_nothing(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    at_once = struct.pack("ii", 1, 0)  # the connection is reset when it is closed
    for _ in range(5):
        leaving = socket.create_connection(("127.0.0.1", port))
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        leaving.sendall(f"GET /case/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        leaving.close()
    assert asked(port, "/case/")[0] == 200
    assert capfd.readouterr().err == ""
