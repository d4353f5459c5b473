"""Tools for agents: what they offer, what they refuse, and that they say what the commands say."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator import answers, load
from orchestrator.api.agent_resources import address_of, listed_resources, read_resource
from orchestrator.api.agent_tool import Tool, called
from orchestrator.api.agent_tools import READ_ONLY, tools_of
from orchestrator.base.errors import SweepError
from orchestrator.base.files import FROZEN_SWEEP, LEDGER

ROW = "axes: {lr: {log: [1e-3, 10], num: 5}}\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A finished sweep, and a secret beside the results."""
    sweep = sweep_of(ROW)
    with ledger_at(tmp_path / "results" / "case") as ledger:
        map_ledger(ledger, sweep, ["stable"] * 3 + ["diverged"] * 2)
    (tmp_path / "results" / "case" / FROZEN_SWEEP).write_text(sweep.text)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "train.log").write_text("step 1 loss 2\n")
    return tmp_path / "results"


@pytest.fixture
def tools(results: Path) -> Mapping[str, Tool]:
    return tools_of(results, allows_run=False)


def test_only_questions_are_offered_unless_running_is_allowed(results: Path, tools: Mapping[str, Tool]) -> None:
    assert list(tools) == [*READ_ONLY, "watch"]
    assert all(tool.is_read_only for tool in tools.values())
    more = tools_of(results, allows_run=True)
    assert [name for name in more if name not in tools] == ["plan", "run", "remedy", "cause"]
    for name in ("run", "remedy", "cause"):
        assert "minutes" in more[name].schema["required"]
        assert not more[name].is_read_only


def test_names_descriptions_and_schemas_are_the_questions_own(tools: Mapping[str, Tool]) -> None:
    for name in READ_ONLY:
        tool = tools[name]
        query = answers.query_class(name)
        assert (query.__doc__ or "").strip().splitlines()[0] == tool.description.splitlines()[0]
        assert json.loads(json.dumps(tool.schema))["additionalProperties"] is False
        own = {*tool.schema["properties"]} - {"name", "names", "paths"}
        assert own <= {*query.options()}
        assert "path" not in {str(query.types()[key]).lower() for key in own}


def test_a_tool_says_what_the_command_says(results: Path, tools: Mapping[str, Tool]) -> None:
    reply = called(tools, "recommend", {"name": "case", "margin": 5})
    answer = load("case", results).recommend(margin=5.0)
    assert reply.text.splitlines() == answer.lines()
    assert reply.data == json.loads(json.dumps(answer.to_plain()))
    assert called(tools, "boundary", {"name": "case"}).data["along"] == "lr"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("status", {}),
        ("status", {"name": "../secret"}),
        ("status", {"name": "/etc"}),
        ("status", {"name": "case\0"}),
        ("status", {"name": ["case"]}),
        ("status", {"name": "x" * 10_000}),
        ("status", {"name": "case", "watch": True}),
        ("locate", {"name": "case", "config": "/etc/passwd"}),
        ("locate", {"name": "case", "at": ["lr=1"] * 1000}),
        ("recommend", {"name": "case", "margin": "3"}),
        ("recommend", {"name": "case", "margin": float("nan")}),
        ("recommend", {"name": "case", "margin": True}),
        ("recommend", {"name": "case", "margin": 0}),
        ("compare", {"names": ["case", "../secret"]}),
        ("replay", {"paths": ["../secret/train.log"]}),
        ("replay", {"paths": ["link/train.log"]}),
        ("replay", {"paths": ["inside"]}),
        ("replay", {"paths": ["pipe.log"]}),
        ("watch", {"path": "../secret/train.log"}),
        ("watch", {"path": "-"}),
        ("watch", {"path": "pipe.log"}),
        ("watch", {"path": "inside"}),
        ("watch", {"path": "own.log", "seconds": 1e6}),
        ("watch", {"path": "own.log", "exit_on": ["never"]}),
        ("watch", {"path": "own.log", "beside": "../secret"}),
        ("watch", {"path": "own.log", "set": ["width=2"]}),
        ("watch", {"path": "own.log", "notify": "json://elsewhere"}),
        ("watch", {"path": "own.log", "run": "touch gone"}),
        ("run", {"name": "case", "trials": 1, "minutes": 1}),
        ("remedy", {"name": "case"}),
        ("__class__", {}),
    ],
)
def test_hostile_arguments_are_refused(
    results: Path, tools: Mapping[str, Tool], monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any]
) -> None:
    (results / "link").symlink_to(results.parent / "secret")
    (results / "inside").mkdir()
    (results / "inside" / "train.log").symlink_to(results.parent / "secret" / "train.log")
    (results / "own.log").write_text("step 1 loss 2\n")
    os.mkfifo(results / "pipe.log")
    monkeypatch.chdir(results)
    with pytest.raises(SweepError):
        called(tools, name, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"trials": 5},
        {"minutes": 1},
        {"trials": 0, "minutes": 1},
        {"trials": 5, "minutes": 1e9},
        {"trials": 5, "minutes": 1, "fixed": ["objective.command=[rm]"]},
        {"trials": 5, "minutes": 1, "fixed": ["x"], "set": ["objective.command=[rm]"]},
        {"trials": 5, "minutes": 1, "name": "secret/mine.yaml"},
    ],
)
def test_nothing_runs_without_a_whole_budget_or_with_a_program(results: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(SweepError):
        called(tools_of(results, allows_run=True), "run", {"name": "case", **arguments})


@pytest.fixture
def log(results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log that has begun, in the server's folder."""
    monkeypatch.chdir(results)
    path = results / "train.log"
    path.write_text("".join(f"step {n} loss {3 - n / 200}\n" for n in range(300)))
    return path


def test_a_watch_says_how_the_run_is_now_and_leaves_nothing_behind(log: Path, tools: Mapping[str, Tool]) -> None:
    before = sorted(log.parent.rglob("*"))
    reply = called(tools, "watch", {"path": "train.log", "steps": 1000})
    assert reply.data["report"]["step"] == 299
    assert reply.data["report"]["steps"] == 1000
    assert (reply.data["alarms"], reply.data["ended"]) == ([], None)
    assert "step 299 of 1,000" in reply.text
    assert sorted(log.parent.rglob("*")) == before
    done = called(tools, "watch", {"path": "train.log", "steps": 299, "seconds": 600})
    assert done.data["ended"]["outcome"] == "stable"


def test_a_watch_goes_on_for_its_seconds_and_returns_at_the_alarm_that_was_asked_for(
    log: Path, tools: Mapping[str, Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]

    def sleep(seconds: float) -> None:
        """Train on for a moment, and blow up a minute later."""
        passed[0] += seconds
        loss = "nan" if passed[0] > 60 else "1.4"
        with log.open("a") as file:
            file.writelines(f"step {300 + int(10 * passed[0]) + n} loss {loss}\n" for n in range(10))

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    quiet = called(tools, "watch", {"path": "train.log", "seconds": 30, "exit_on": ["lost"]})
    assert passed[0] == 30
    assert quiet.data["alarms"] == []
    found = called(tools, "watch", {"path": "train.log", "seconds": 600, "exit_on": ["nan", "lost"]})
    assert 60 < passed[0] < 90
    assert found.data["alarms"][-1]["kind"] in ("nan", "lost")
    assert found.data["ended"]["why"].startswith("--exit-on ")
    assert found.text.count("  episodes ") == 1, "of reports only the last"


def test_the_file_and_the_map_of_each_sweep_are_resources(results: Path) -> None:
    found, cursor = listed_resources(results, None)
    assert [address_of(name, kind.name) for name, kind in found] == [
        f"sweep://case/{name}" for name in ("sweep.yaml", "map.txt", "map.png")
    ]
    assert cursor is None
    assert read_resource("sweep://case/sweep.yaml", results)[1] == (results / "case" / FROZEN_SWEEP).read_text()
    drawing = str(read_resource("sweep://case/map.txt", results)[1]).splitlines()
    assert drawing == called(tools_of(results, allows_run=False), "map", {"name": "case"}).text.splitlines()
    kind, picture = read_resource("sweep://case/map.png", results)
    assert kind.mime_type == "image/png"
    assert isinstance(picture, bytes)
    assert picture.startswith(b"\x89PNG")


def test_many_sweeps_are_listed_in_parts(tmp_path: Path) -> None:
    for n in range(230):
        (tmp_path / f"s{n:03}").mkdir()
        (tmp_path / f"s{n:03}" / LEDGER).touch()
    names, cursor = [], None
    for _ in range(3):
        found, cursor = listed_resources(tmp_path, cursor)
        names += [name for name, kind in found if kind.name == "map.txt"]
    assert names == [f"s{n:03}" for n in range(230)]
    assert cursor is None


@pytest.mark.parametrize(
    "address",
    [
        "", "sweep://", "sweep://case", "sweep://case/", "sweep://case/ledger.sqlite", "sweep://../secret/sweep.yaml",
        "sweep://%2e%2e%2fsecret/sweep.yaml", "sweep:///etc/passwd", "file:///etc/passwd", "sweep://case%00/map.txt",
        "sweep://case/../case/map.txt", "sweep://" + "x" * 100_000 + "/map.txt",
    ],
)  # fmt: skip
def test_no_address_leads_elsewhere(results: Path, address: str) -> None:
    with pytest.raises(SweepError):
        read_resource(address, results)
