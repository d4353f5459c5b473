from __future__ import annotations

import json
from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.base.errors import InputError
from orchestrator.commands.boundary import boundary
from orchestrator.commands.compare import compare
from orchestrator.commands.importance import importance
from orchestrator.commands.recommend import recommend
from orchestrator.commands.sensitivity import sensitivity
from orchestrator.commands.survival import survival

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


def test_the_answers_read_a_sweep_s_folder(folders: list[Path]) -> None:
    lines = list(boundary(folders[1], None, None, {}, "worst", False))
    assert lines[0] == "b: the edge along lr; a cell is stable when all its seeds are"
    assert lines[1] == "all cells  edge near lr=0.316 (lr 0.1 is stable, 1 is not)"
    assert next(recommend(folders[1], 2.0, "final_loss", False)).startswith("lr=0.001:")
    assert "over 4 values from 0.001 to 1" in next(sensitivity(folders[1], "lr", None, None))


def test_sensitivity_over_a_range_is_words_and_json(folders: list[Path], tmp_path: Path) -> None:
    lines = list(sensitivity(folders[1], "lr", "1e-2:0.1", tmp_path / "costs.json"))
    assert "over 2 values from 0.01 to 0.1" in lines[0]
    assert lines[-1] == f"wrote {tmp_path / 'costs.json'}"
    told = json.loads((tmp_path / "costs.json").read_text())
    assert (told["axis"], told["low"], told["high"], told["num_values"]) == ("lr", 0.01, 0.1, 2)
    (all_cells,) = told["settings"]
    assert all_cells == {"setting": {}, "sensitivity": 0.0, "best": 0.01, "seeds": {"0": 0.0, "1": 0.0, "2": 0.0}}


def test_sensitivity_of_scattered_cells_is_words_and_json(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "s") as ledger:
        sampled = sweep_of("axes: {lr: {log: [1e-3, 1]}}\nsample: {method: sobol, num: 16}\n")
        record(ledger, sampled, ["stable"] * 16)
    lines = list(sensitivity(tmp_path / "s", "lr", "1e-2:0.1", tmp_path / "costs.json"))
    assert "lr sensitivity from 0.01 to 0.1" in lines[0]
    told = json.loads((tmp_path / "costs.json").read_text())
    assert (told["axis"], told["low"], told["high"], told["num_cells"]) == ("lr", 0.01, 0.1, 16)
    assert [set(each) for each in told["settings"]] == [{"setting", "sensitivity", "best"}]


@pytest.mark.parametrize("text", ["1e-4", "1:1", "2:1", "a:b", "nan:1", "0:inf", ":", "1:2:3", ""])
def test_a_range_that_is_not_low_and_high_is_refused(folders: list[Path], text: str) -> None:
    with pytest.raises(InputError, match="is not LOW:HIGH"):
        list(sensitivity(folders[1], "lr", text, None))


def test_survival_is_words_and_json(folders: list[Path], tmp_path: Path) -> None:
    lines = list(survival(folders[1], "lr", 500, tmp_path / "lasts.json"))
    assert lines[0] == "b: 12 runs of up to 20 steps, 3 with an onset"
    assert lines[-1] == f"wrote {tmp_path / 'lasts.json'}"
    told = json.loads((tmp_path / "lasts.json").read_text())
    assert [group["num_onsets"] for group in told["groups"]] == [0, 0, 0, 3]
    with pytest.raises(InputError, match="--json"):
        list(survival(folders[1], None, None, tmp_path / "no folder" / "lasts.json"))


def test_importance_is_words_and_json(folders: list[Path], tmp_path: Path) -> None:
    lines = list(importance(folders[1], tmp_path / "importance.json"))
    assert lines[-1] == f"wrote {tmp_path / 'importance.json'}"
    told = json.loads((tmp_path / "importance.json").read_text())
    assert told["shares"]["stability"] == {"ped_anova": {"lr": 1.0}, "fanova": {"lr": 1.0}, "surface": {"lr": 1.0}}


def test_a_comparison_is_words_and_a_picture(folders: list[Path], tmp_path: Path) -> None:
    lines = list(compare(folders, None, None, "worst", False, None, tmp_path / "results"))
    picture = tmp_path / "results" / "compare" / "a_vs_b.png"
    assert lines[-1] == f"picture: {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "More than chance: b is more stable here." in lines[-2]
    *_, drawn = compare([*folders, folders[0]], None, None, "best", False, tmp_path / "three.svg", tmp_path)
    assert (tmp_path / "three.svg").read_text().startswith("<?xml"), drawn


@pytest.mark.slow
def test_a_comparison_of_scattered_cells_is_words_and_a_picture_of_fitted_surfaces(tmp_path: Path) -> None:
    ranges = "seeds: [0]\nsample: {method: sobol, num: 40}\naxes: {lr: {log: [1e-3, 1]}, beta1: {linear: [0, 0.9]}}\n"
    folders = [tmp_path / "low", tmp_path / "high"]
    for folder, edge, fixed in zip(folders, (0.01, 0.2), ("", "fixed: {warmup: 5}\n"), strict=True):
        with ledger_at(folder) as ledger:
            sweep = sweep_of(ranges + fixed, f"name: {folder.name}\nobjective: quadratic\nsteps: 20\n")
            record(ledger, sweep, ["stable" if trial.cell["lr"] < edge else "diverged" for trial in sweep.trials])
    lines = list(compare(folders, None, None, "worst", False, None, tmp_path))
    assert lines[0] == "compared: lr 0.001 to 1 x beta1 0 to 0.9, which all cover"
    assert "differs: warmup = 0, 5" in lines
    assert any("More than the fits leave open: high is more stable here." in line for line in lines)
    assert sum(": factor " in line for line in lines) == 9
    assert (tmp_path / "compare" / "low_vs_high.png").read_bytes().startswith(b"\x89PNG")
    turned = list(compare(folders, "beta1", "lr", "worst", True, tmp_path / "turned.svg", tmp_path))
    assert any("The edge along beta1 " in line for line in turned)
    with pytest.raises(InputError, match="choose two different axes"):
        list(compare(folders, "lr", "lr", "worst", False, None, tmp_path))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"x": "depth"}, "axes: lr"),
        ({"y": "depth"}, "axes: lr"),
        ({"x": "lr", "y": "lr"}, "two different axes"),
        ({"reduce": "mean"}, "worst, median, best"),
        ({"output": Path("x.gif")}, ".png, .svg or .pdf"),
        ({"folders": 1}, "two names or more"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(folders, tmp_path: Path, options: dict, says: str) -> None:
    chosen = {"x": None, "y": None, "reduce": "worst", "output": None, "folders": 2} | options
    options = (chosen["x"], chosen["y"], chosen["reduce"], False, chosen["output"])
    with pytest.raises(InputError, match=says):
        list(compare(folders[: chosen["folders"]], *options, tmp_path))
    assert not (tmp_path / "compare").exists()
