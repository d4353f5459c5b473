"""The sweeps that ship are found by name, and copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.commands.arguments import read_sweep
from orchestrator.commands.init import init
from orchestrator.sweepfile import shipped_sweeps as module
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.shipped_sweeps import shipped_sweeps
from orchestrator.sweepfile.spec import load_sweep

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_file_of_the_folder_ships_under_its_name() -> None:
    assert {path.stem for path in (ROOT / "sweeps").glob("*.yaml")} == set(shipped_sweeps())


def test_where_the_package_is_installed_they_are_within_it(tmp_path: Path, monkeypatch) -> None:
    for folder in ("shipped", "sweeps"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"of_{folder}.yaml").touch()
    monkeypatch.setattr(module, "_FOLDERS", (tmp_path / "shipped", tmp_path / "sweeps"))
    assert list(shipped_sweeps()) == ["of_shipped"]
    monkeypatch.setattr(module, "_FOLDERS", (tmp_path / "none",))
    assert shipped_sweeps() == {}


def test_a_sweep_that_ships_needs_no_file_and_a_file_of_that_name_comes_first() -> None:
    assert read_sweep("lr_warmup", Path("results"), Overrides(), False).name == "lr_warmup"
    Path("lr_warmup").write_text("name: mine\nobjective: quadratic\nsteps: 5\naxes: {lr: {values: [1]}}\n")
    assert read_sweep("lr_warmup", Path("results"), Overrides(), False).name == "mine"
    with pytest.raises(InputError):
        read_sweep("lr_warmdown", Path("results"), Overrides(), False)


def test_a_copy_has_its_comments_and_the_new_name() -> None:
    list(init("mine", None, None, Overrides(), None, "lr_warmup"))
    text = Path("mine.yaml").read_text()
    assert text == shipped_sweeps()["lr_warmup"].read_text().replace("name: lr_warmup", "name: mine")
    assert load_sweep(Path("mine.yaml")).name == "mine"


@pytest.mark.parametrize(
    ("shipped", "changes", "said"),
    [("nothing", Overrides(), "choose adam_phase"), ("lr_warmup", Overrides(steps=5), "edit the copy")],
)
def test_what_cannot_be_copied_is_told(shipped: str, changes: Overrides, said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(init("mine", None, None, changes, None, shipped))
