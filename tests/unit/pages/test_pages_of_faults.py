"""The pages on reliability and on files say no more than what is there."""

import re
from pathlib import Path

import pytest
from driver_cases import Observer
from sweep_cases import QUADRATIC

from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.pages.report import export_all
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROOT = Path(__file__).parents[3]
RELIABILITY = (ROOT / "docs/reliability.md").read_text()
ON_DISK = (ROOT / "docs/on-disk.md").read_text()
FAULTS = re.findall(r"^\| (F\d+) \| [^|]+ \| [^|]+ \|$", RELIABILITY, re.MULTILINE)
LIST_OF_TESTS = (ROOT / "tests/faults/README.md").read_text()
TESTS = re.findall(r"^- (F\d+): (.*(?:\n  .*)*)", LIST_OF_TESTS, re.MULTILINE)


def test_the_table_has_every_fault_once_and_each_has_its_tests() -> None:
    numbered = [f"F{number}" for number in range(1, len(FAULTS) + 1)]
    assert numbered == FAULTS
    assert [name for name, _ in TESTS] == FAULTS
    assert len(FAULTS) >= 29


@pytest.mark.parametrize(("name", "shown_by"), TESTS, ids=[name for name, _ in TESTS])
def test_every_fault_names_tests_that_exist(name: str, shown_by: str) -> None:
    suites = [*(ROOT / "tests").rglob("test_*.py"), ROOT / "objectives" / "conformance.py"]
    defined = {test for path in suites for test in re.findall(r"def (test_\w+)", path.read_text())}
    named = re.findall(r"`(test_\w+)`", shown_by)
    assert named
    assert set(named) <= defined


def test_every_file_of_a_sweep_is_on_the_page_of_files(tmp_path: Path) -> None:
    sweep = build_sweep(parse_document(QUADRATIC, "edge.yaml"), Overrides(sets=("checkpoint.every_steps=20",)))
    seen: set[str] = set()

    look = Observer(lambda *_: seen.update(path.name for path in (tmp_path / "edge").iterdir()))
    run_sweep(sweep, tmp_path / "edge", InlineExecutor, [look])
    export_all(tmp_path / "edge")
    seen |= {path.name for path in (tmp_path / "edge").iterdir()}
    assert {"ledger.db", "sweep.yaml", "lock", "report.html", "exported"} <= seen
    for name in seen:
        assert f"`{name}" in ON_DISK, name
