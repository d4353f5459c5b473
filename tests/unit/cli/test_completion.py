"""What the shell completes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.cli.options import names_from, sweep_files


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """A working folder with two sweeps, a folder that is none, and sweep files."""
    monkeypatch.chdir(tmp_path)
    for name in ("first", "fit"):
        with ledger_at(Path("results") / name) as ledger:
            record(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    Path("results/compare").mkdir()
    Path("files").mkdir()
    for name in ("files/a.yaml", "files/b.txt", "fig.yml"):
        Path(name).touch()
    return tmp_path


def asked(**params: object) -> SimpleNamespace:
    return SimpleNamespace(params=params)


def test_names_are_those_of_folders_with_a_ledger(here: Path) -> None:
    assert names_from(asked(), "") == ["first", "fit"]
    assert names_from(asked(results=None), "fir") == ["first"]
    assert names_from(asked(results=here / "results"), "x") == []
    assert names_from(asked(results=Path("nowhere")), "") == []


def test_a_file_is_completed_on_the_way_to_it_and_a_sweep_by_its_name(here: Path) -> None:
    assert sweep_files(asked(), "fi") == ["fig.yml", "files/", "first", "fit"]
    assert sweep_files(asked(), "files/") == ["files/a.yaml"]
    assert sweep_files(asked(), "[") == []
