"""What the shell completes, and the fields that `sweep objectives` finds."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.base.errors import InputError
from orchestrator.cli.completion import sweep_files, sweep_names
from orchestrator.commands import status as status_module
from orchestrator.commands.objectives import objectives
from orchestrator.commands.status import status


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
    assert sweep_names(asked(), "") == ["first", "fit"]
    assert sweep_names(asked(results=None), "fir") == ["first"]
    assert sweep_names(asked(results=here / "results"), "x") == []
    assert sweep_names(asked(results=Path("nowhere")), "") == []


def test_a_file_is_completed_on_the_way_to_it_and_a_sweep_by_its_name(here: Path) -> None:
    assert sweep_files(asked(), "fi") == ["fig.yml", "files/", "first", "fit"]
    assert sweep_files(asked(), "files/") == ["files/a.yaml"]
    assert sweep_files(asked(), "[") == []


def shown(*arguments: str | None) -> str:
    console = Console(file=io.StringIO(), width=200)
    for item in objectives(*arguments):
        console.print(item)
    return console.file.getvalue()


def test_fields_are_found_by_their_name_and_by_their_meaning() -> None:
    found = shown("gpt", "QK")
    assert "qk_norm" in found
    assert "beta1" not in found
    assert "quadratic:" not in shown("gpt", None)
    everywhere = shown(None, "learning rate")
    assert everywhere.count("peak learning rate") == 3, "one in each objective"


@pytest.mark.parametrize(("name", "match", "said"), [("gt", None, "gpt, function_fit"), (None, "zzz", "no field has")])
def test_what_is_not_there_is_told_with_what_is(name: str | None, match: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(objectives(name, match))


def test_a_status_that_is_watched_ends_with_the_run_and_its_last_state(here: Path, monkeypatch, capsys) -> None:
    held, waits = [True, True, False], []
    monkeypatch.setattr(status_module, "is_locked", lambda folder: held.pop(0) if held else False)
    monkeypatch.setattr(status_module.time, "sleep", waits.append)
    watched = list(status(Path("results/fit"), watch=True))
    assert [str(line) for line in watched] == [str(line) for line in status(Path("results/fit"))]
    assert len(waits) >= 1
