from __future__ import annotations

from pathlib import Path

import pytest
from fault_kit import assert_sound, results_of, run, write_sweep


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple]:
    """What the sweep finds when nothing goes wrong."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_sweep(folder)
    code, output = run(folder, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    assert_sound(folder)
    found = results_of(folder)
    assert {numbers[1] for numbers in found.values()} >= {"stable", "diverged"}
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the sweep file."""
    write_sweep(tmp_path)
    return tmp_path
