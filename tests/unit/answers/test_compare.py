from pathlib import Path
from typing import Any

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator import load
from orchestrator.base.errors import InputError

ROW = "seeds: [0, 1, 2]\naxes: {lr: {log: [1e-3, 1], num: 4}}\n"
LABELS = {"a": "sdsddddddddd", "b": "sssssssssddd"}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two finished sweeps, the second with a wider stable region."""
    for name, letters in LABELS.items():
        with ledger_at(tmp_path / name) as ledger:
            labels = [{"s": "stable", "d": "diverged"}[letter] for letter in letters]
            record(ledger, sweep_of(ROW, f"name: {name}\nobjective: quadratic\nsteps: 20\n"), labels)
    return [tmp_path / name for name in LABELS]


def compared(folders: list[Path], **options: Any) -> Any:
    first, *others = map(load, folders)
    return first.compare(*others, **options)


def test_a_comparison_is_words_and_a_picture(folders: list[Path], tmp_path: Path, command_line) -> None:
    code, text = command_line("compare", *map(str, folders))
    lines, picture = text.splitlines(), tmp_path / "compare" / "a_vs_b.png"
    assert (code, lines[-1]) == (0, f"picture: {picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "3 paired seeds cannot tell a difference from chance: 6 can" in lines[0]
    three = compared([*folders, folders[0]], reduce="best")
    assert three.rendered("svg").startswith(b"<?xml")


@pytest.mark.slow
def test_a_comparison_of_scattered_cells_is_words_and_a_picture_of_fitted_surfaces(tmp_path: Path) -> None:
    ranges = "seeds: [0]\nsample: {method: sobol, num: 40}\naxes: {lr: {log: [1e-3, 1]}, beta1: {linear: [0, 0.9]}}\n"
    folders = [tmp_path / "low", tmp_path / "high"]
    for folder, edge, fixed in zip(folders, (0.01, 0.2), ("", "fixed: {warmup: 5}\n"), strict=True):
        with ledger_at(folder) as ledger:
            sweep = sweep_of(ranges + fixed, f"name: {folder.name}\nobjective: quadratic\nsteps: 20\n")
            record(ledger, sweep, ["stable" if trial.cell["lr"] < edge else "diverged" for trial in sweep.trials])
    lines = compared(folders).lines()
    assert lines[1] == "compared: lr 0.001 to 1 x beta1 0 to 0.9, which all cover"
    assert "differs: warmup = 0, 5" in lines
    assert any("How sure that is cannot be said without two seeds of each." in line for line in lines)
    assert sum(": factor " in line for line in lines) == 9
    assert compared(folders).rendered("png").startswith(b"\x89PNG")
    turned = compared(folders, x="beta1", y="lr", degraded=True)
    assert any("The edge along beta1 " in line for line in turned.lines())
    with pytest.raises(InputError, match="choose two different axes"):
        compared(folders, x="lr", y="lr")


@pytest.mark.parametrize(
    ("num", "options", "says"),
    [
        (2, {"x": "depth"}, "axes: lr"),
        (2, {"y": "depth"}, "axes: lr"),
        (2, {"x": "lr", "y": "lr"}, "two different axes"),
        (2, {"reduce": "mean"}, "worst, median, best"),
        (1, {}, "two names or more"),
        (2, {"by": "lr"}, "give one name"),
        (1, {"base": "0.1"}, "add --by AXIS"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(
    folders: list[Path], num: int, options: dict[str, str], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        compared(folders[:num], **options)
