"""A prediction has a section on the page and tags in trackers: the one that was asked for, else of twice the size."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiers import thinned
from typer.testing import CliRunner

from orchestrator import load
from orchestrator.answers._tracked import tracked_answers
from orchestrator.base.files import LEDGER, PREDICTION
from orchestrator.cli.app import app
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.mirrors.mirror import Mirror
from orchestrator.mirrors.tracker import SweepRecord
from orchestrator.pages.answers import answers_html
from orchestrator.sweepfile.sections import TrackingConfig

SECTION = "A larger model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return ladder(tmp_path, (16, 32, 64))


def ladder(results: Path, widths: Sequence[int]) -> Path:
    """An imported table whose edge falls as 1 / width."""
    rates = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
    lines = [f"{lr},{width},{'nan' if lr * width > 0.3 else 2}" for lr in rates for width in widths]
    (results / "table.csv").write_text("\n".join(["lr,width,loss", *lines]))
    arguments = ["import", str(results / "table.csv"), "--name", "ladder", "--axis", "lr", "--axis", "width"]
    done = CliRunner().invoke(app, [*arguments, "--outcome", "loss", "--results", str(results)])
    assert done.exit_code == 0, done.output
    return results / "ladder"


def ask(folder: Path, *options: str) -> None:
    done = CliRunner().invoke(app, ["predict", str(folder), *options])
    assert done.exit_code == 0, done.output


def section(folder: Path) -> str | None:
    """The text of the section, None without one."""
    with LedgerReader(folder / LEDGER) as ledger:
        text = answers_html(read_table(ledger), None, "")
    found = re.search(rf"<h2>{SECTION}</h2>(.*?)</section>", text, re.DOTALL)
    return None if found is None else found.group(1)


def test_three_sizes_have_a_section_on_twice_the_largest_until_another_is_asked_for(folder: Path) -> None:
    assert "width=128: the edge lies at lr" in (section(folder) or "")
    ask(folder, "--at", "width=192", "--lr", "1e-3")
    shown = section(folder) or ""
    assert "width=192: the edge lies at lr" in shown
    assert "P(stable) at your lr = 0.001" in shown


@pytest.mark.slow
def test_two_sizes_have_one_only_when_asked(tmp_path: Path) -> None:
    folder = ladder(tmp_path, (16, 64))
    assert section(folder) is None
    ask(folder, "--at", "width=128", "--assume", "-1")
    assert "width=128" in (section(folder) or "")


@pytest.mark.parametrize(
    "damage", thinned(["", "[]", '{"at": 3}', '{"unknown": 1}', '{"at": ["width=one"]}'], '{"unknown": 1}'.__eq__)
)
def test_a_damaged_question_costs_no_page_and_no_mirror(folder: Path, damage: str) -> None:
    (folder / PREDICTION).write_text(damage)
    section(folder)
    assert len(tracked_answers(folder)) <= 1


class Recorder:
    """A tracker that keeps what it is given."""

    name = library = "json"
    title = where = "Recorder"
    records: list[SweepRecord]

    def __init__(self, folder: Path, tracking: TrackingConfig, on_response: Any) -> None:
        type(self).records = []
        self.known: Mapping[str, str] = {}

    def write_trial(self, trial: Any) -> None:
        """Not wanted."""

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        self.records.append(sweep)


def test_trackers_have_it_with_the_sweep_as_a_whole(folder: Path) -> None:
    ask(folder, "--at", "width=192")
    answer = load(folder).predict(at=("width=192",))
    with Mirror(folder, TrackingConfig(), tracker=Recorder) as mirror:
        mirror.mirror_sweep([], tracked_answers(folder))
    (record,) = Recorder.records
    assert record.answers == []
    assert record.tags["predicted.at"] == "width=192"
    assert record.tags["predicted.edge"] == "{at:.2g} ({low:.2g} to {high:.2g})".format(**answer.to_plain()["edge"])
    assert record.tags["predicted.doubts"] == "none"
    assert record.metrics["predicted_edge"] == answer.result.edge.at
    assert record.metrics["predicted_lr"] == answer.result.take
    assert any("width=192" in sentence for sentence in record.description)
    assert "objective" in record.tags, "its own are there too"


def test_the_question_is_kept_as_it_was_asked(folder: Path) -> None:
    ask(folder, "--at", "width=1024", "--far")
    kept = json.loads((folder / PREDICTION).read_text())
    assert kept["at"] == ["width=1024"]
    assert kept["far"] is True
    assert "confirm" not in kept
