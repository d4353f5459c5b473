"""The public suite, run by pytest in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def test_a_file_without_an_objective_is_told_so(tmp_path, pytestconfig) -> None:
    file = tmp_path / "test_mine.py"
    file.write_text(
        "from objectives.conformance import ObjectiveConformance\n\n\nclass TestMine(ObjectiveConformance):\n    pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    done = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, text=True)
    assert "TestMine sets no objective: objective = OBJECTIVE" in done.stdout
