"""Tools for agents: what they offer, what they refuse, and that they say what the commands say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator import answers, load
from orchestrator.api.agent_tools import READ_ONLY, Tool, called, tools_of
from orchestrator.base.errors import SweepError
from orchestrator.base.files import FROZEN_SWEEP

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
    assert list(tools) == list(READ_ONLY)
    assert all(tool.is_read_only for tool in tools.values())
    more = tools_of(results, allows_run=True)
    assert [name for name in more if name not in tools] == ["plan", "run", "remedy"]
    for name in ("run", "remedy"):
        assert "minutes" in more[name].schema["required"]
        assert not more[name].is_read_only


def test_names_descriptions_and_schemas_are_the_questions_own(tools: Mapping[str, Tool]) -> None:
    for name, tool in tools.items():
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
        ("run", {"name": "case", "trials": 1, "minutes": 1}),
        ("remedy", {"name": "case"}),
        ("__class__", {}),
    ],
)
def test_hostile_arguments_are_refused(
    results: Path, tools: Mapping[str, Tool], monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any]
) -> None:
    (results / "link").symlink_to(results.parent / "secret")
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
