"""docs/custom-trainer.md from top to bottom: files are written as shown, commands run as shown."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from page_cases import BLOCK, run_commands, section, write_files

from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.config import MetricsConfig
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "custom-trainer.md").read_text()
TITLES = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
# What each section's blocks must come to; `None` for one that has no sweep.
OUTCOMES = {
    "A script, unmodified": ("mine", {"stable", "diverged"}),
    "A Python function": ("function", {"stable", "diverged"}),
    "A custom packed objective": ("my_digits", {"stable", "diverged"}),
    "More than one process a trial": ("ddp", {"stable", "diverged"}),
    "Slurm, without Ray on the nodes": ("jobs", {"stable", "diverged"}),
}
LONG = (
    "A script, unmodified",
    "A Python function",
    "A custom packed objective",
    "More than one process a trial",
    "Slurm, without Ray on the nodes",
    "Callbacks",
)
SAID = {"One line in a training loop": "diverged", "Callbacks": "diverged"}


def test_every_section_with_commands_is_tested() -> None:
    assert {title for title in TITLES if "```sh" in section(PAGE, title)} == {*OUTCOMES, *SAID}


@pytest.mark.parametrize("title", [pytest.param(t, marks=pytest.mark.slow) if t in LONG else t for t in OUTCOMES])
def test_the_blocks_of_a_section_give_a_map_with_stable_and_diverged_cells(tmp_path: Path, title: str) -> None:
    name, wanted = OUTCOMES[title]
    if name == "jobs":
        write_files(section(PAGE, "A script, unmodified"), tmp_path)
    write_files(section(PAGE, title), tmp_path)
    run_commands(section(PAGE, title), tmp_path)
    with LedgerReader(tmp_path / "results" / name / "ledger.db") as ledger:
        outcomes = Counter(row.outcome for row in ledger.trials())
    assert set(outcomes) >= wanted, outcomes
    assert None not in outcomes


@pytest.mark.parametrize("title", [pytest.param(t, marks=pytest.mark.slow) if t in LONG else t for t in SAID])
def test_the_blocks_of_a_section_stop_a_run_that_is_lost(tmp_path: Path, title: str) -> None:
    write_files(section(PAGE, title), tmp_path)
    said = run_commands(section(PAGE, title), tmp_path)
    assert SAID[title] in said


def test_the_page_shows_the_example_that_ships() -> None:
    assert f"```python\n{(ROOT / 'sweeps' / 'trainers' / 'digits.py').read_text()}```" in PAGE


def test_the_page_names_every_key_of_metrics() -> None:
    for name in MetricsConfig.model_fields:
        assert f"`{name}`" in PAGE


def test_parts_of_a_sweep_file_are_valid() -> None:
    parts = [text for language, text in BLOCK.findall(PAGE) if language == "yaml" and not text.startswith("name:")]
    assert parts
    for part in parts:
        sweep = build_sweep(parse_document(f"name: part\nsteps: 5\nfixed: {{lr: 0.1}}\n{part}", "page"))
        section = sweep.objective.section
        assert section.resume is not None or section.preload == "auto"


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
