"""What is imported ahead is all that the files of a finished sweep need."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.answers._tracked import tracked_answers
from orchestrator.pages.export_process import ExportProcess
from orchestrator.pages.report import export_all

GRID = "seeds: [0, 1]\naxes:\n  lr: {values: [0.1, 0.2]}\n  clip: {values: [1.0, null]}\n"
CODE = """
import sys
from pathlib import Path
from orchestrator.pages.export_process import import_all
import_all()
before = set(sys.modules)
from orchestrator.pages.report import export_all
export_all(Path(sys.argv[1]))
new = set(sys.modules) - before
libraries = {name.split(".")[0] for name in new} - {name.split(".")[0] for name in before}
print(*sorted(libraries & {"matplotlib", "pandas", "scipy", "sklearn", "optuna", "pyarrow", "PIL", "torch"}))
print(*sorted(name for name in new if name.startswith("orchestrator.")))
"""


@pytest.mark.slow
def test_after_the_imports_ahead_the_files_need_no_library_and_no_module_more(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "grid") as ledger:
        record(ledger, sweep_of(GRID), ["stable", "diverged"] * 4)
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path / "grid")], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr[-2000:]
    assert (tmp_path / "grid" / "report.html").exists()


@pytest.mark.slow
def test_the_process_writes_what_this_one_would(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "grid") as ledger:
        record(ledger, sweep_of(GRID), ["stable", "diverged"] * 4)
    process = ExportProcess(tmp_path / "grid", with_answers=True)
    process.start()
    process.ended(SimpleNamespace(error=None))
    assert process._process is not None
    process._process.wait(60)  # it needs nothing more to be done
    written, answers = process.finish(with_answers=True)
    assert {path.name for path in written} >= {"map.csv", "trials.csv", "report.html"}
    assert answers == tracked_answers(tmp_path / "grid")
    assert answers
    assert ExportProcess(tmp_path / "grid").finish() == (written, [])
    by_two_processes = [path.read_bytes() for path in written]
    assert export_all(tmp_path / "grid") == written
    assert [path.read_bytes() for path in written] == by_two_processes


def test_after_an_error_of_the_run_nothing_is_written(tmp_path: Path) -> None:
    process = ExportProcess(tmp_path, with_answers=True)
    process.start()
    process.ended(SimpleNamespace(error=OSError()))
    assert process._process is not None
    assert process._process.communicate() == ("", None)


def test_a_process_that_dies_leaves_the_work_to_this_one(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "grid") as ledger:
        record(ledger, sweep_of(GRID), ["stable", "diverged"] * 4)
    process = ExportProcess(tmp_path / "grid")
    process.start()
    assert process._process is not None
    process._process.kill()
    written, answers = process.finish(with_answers=True)
    assert all(path.is_file() for path in written)
    assert answers == tracked_answers(tmp_path / "grid")
