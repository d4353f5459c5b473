"""Twelve trainers in the forms of well-known ones: a check begins with the truth of each, and no map is wrong.

tests/clients has their scripts, written anew, and clients.yaml what is known of each.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.sweepfile.spec import Sweep, load_sweep

FOLDER = Path(__file__).parents[1] / "clients"
CLIENTS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "clients.yaml").read_text())
TRIES = [
    pytest.param(name, i, id=f"{name}-{i}", marks=[pytest.mark.slow] if client.get("is_slow") else [])
    for name, client in CLIENTS.items()
    for i in range(len(client["tries"]))
]
KINDS: dict[str, tuple[str, int]] = {}  # the first try with each kind of answer, which is checked by default
for name, i in (case.values for case in TRIES if not case.marks):
    KINDS.setdefault(CLIENTS[name]["tries"][i].get("check", ""), (name, i))
CHECKS = [
    case if case.values in list(KINDS.values())[:2] else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)
    for case in TRIES
    if "check" in CLIENTS[case.values[0]]["tries"][case.values[1]]
]
MAPS = [case for case in TRIES if "outcomes" in CLIENTS[case.values[0]]["tries"][case.values[1]]]


def file_of(folder: Path, client: dict[str, Any], attempt: dict[str, Any]) -> Path:
    """The sweep file of a try, next to copies of the scripts."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    content = {
        "name": "client",
        "objective": {"command": f"{client['command']} {attempt.get('with', '')}", **attempt.get("set", {})},
        "steps": attempt.get("steps", client["steps"]),
        "seeds": [1],
        "axes": {"lr": {"values": list(attempt.get("outcomes", {0.1: None}))}},
        "tracking": {"enabled": False},
    }
    path = folder / "client.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(("name", "i"), CHECKS)
def test_a_check_of_a_client_begins_with_the_truth(tmp_path: Path, name: str, i: int) -> None:
    attempt = CLIENTS[name]["tries"][i]
    path = file_of(tmp_path, CLIENTS[name], attempt)
    # So many that a trainer without an end goes beyond its steps on any machine, however long its imports take.
    command = ["check", str(path), "--losses", "130", "--timeout", "300", "--json", str(tmp_path / "said.json")]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    said = json.loads((tmp_path / "said.json").read_text())
    assert said["kind"] == attempt["check"], done.output
    assert done.exit_code == (0 if said["kind"] in ("read", "few", "units") else 3)
    assert attempt.get("every", 1) in (said["every"], "any")
    assert said["facts"] == attempt.get("facts", {})
    if "names" in attempt and "errored" not in attempt.get("outcomes", {}).values():
        assert attempt["names"] in said["sentence"] + said["remedy"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "i"), MAPS)
def test_the_map_of_a_client_is_right_or_names_the_key_to_set(
    tmp_path: Path, name: str, i: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    attempt = CLIENTS[name]["tries"][i]
    sweep = load_sweep(file_of(tmp_path, CLIENTS[name], attempt))
    labels, reasons = mapped(sweep, tmp_path / "results" / "client")
    assert labels == attempt["outcomes"], reasons
    for lr, label in labels.items():
        assert label != "errored" or attempt["names"] in reasons[lr]


def mapped(sweep: Sweep, results: Path) -> tuple[dict[float, str], dict[float, str]]:
    """The label and the reason of the trial at each learning rate."""
    run_sweep(sweep, results, InlineExecutor)
    with LedgerReader(results / "ledger.db") as ledger:
        trials = read_table(ledger).trials
    return {row.cell["lr"]: row.label for row in trials}, {row.cell["lr"]: row.reason or "" for row in trials}
