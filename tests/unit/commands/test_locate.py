from __future__ import annotations

import json
from pathlib import Path

import pytest
from sweep_cases import learning, ledger_at, record, sweep_of

from orchestrator.base.errors import InputError
from orchestrator.commands.boundary import boundary
from orchestrator.commands.locate import locate
from orchestrator.commands.replay import replay
from orchestrator.logs.columns import Columns

GRID = "axes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5]}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of(GRID), ["stable"] * 6 + ["diverged"] * 2)
    return tmp_path / "case"


def located(folder: Path, *sets: str, log: Path | None = None, json_file: Path | None = None) -> list[str]:
    return list(locate(folder, None, sets, log, Columns(), None, False, json_file))


def log_of(folder: Path, losses) -> Path:
    path = folder / "train.log"
    path.write_text("".join(f"step {i} loss {loss:.5f}\n" for i, loss in enumerate(losses)))
    return path


def test_a_log_is_judged_as_by_replay_and_told_beside_what_the_map_predicts(folder: Path, tmp_path: Path) -> None:
    log = log_of(tmp_path, learning(300, changes=[(200, 206, 2.0)]))
    lines = located(folder, "lr=0.02", "beta1=0.2", log=log, json_file=tmp_path / "found.json")
    list(replay([str(log)], Columns(), (), tmp_path, tmp_path / "replayed.json", None, None))
    found = json.loads((tmp_path / "found.json").read_text())
    assert [found["log"]] == json.loads((tmp_path / "replayed.json").read_text())
    assert (found["log"]["outcome"], found["side"], found["num_cells_around"]) == ("spiked", "stable", 4)
    assert any(line.startswith(f"{log}: spiked from step 2") for line in lines)
    assert "  the map predicts stable: it is not so" in lines
    assert "  the map predicts stable: so it is" in located(
        folder, "lr=0.02", "beta1=0.2", log=log_of(tmp_path, learning(300))
    )


def test_a_run_on_a_cell_is_told_with_its_margins_and_the_nearest_cells(folder: Path) -> None:
    lines = located(folder, "lr=0.01", "beta1=0.5", "warmup=3")
    assert lines[:4] == [
        "case: lr=0.01 beta1=0.5",
        "inside stable territory: its cell is stable on all seeds",
        "  lr down: open: stable to 0.001 (factor 10), where what was tried ends",
        "  lr up: stable to 0.1 (factor 10), not at 1 (factor 100)",
    ]
    assert "caution: --set warmup=3: warmup = 3, where the sweep has 0" in lines
    assert "  lr=0.01 beta1=0.5: stable, 1 of 1 seeds stable, median final loss 1" in lines
    assert lines[-1].startswith(f"curves of the first: `sweep diagnose {folder} --trial ")


def test_a_share_of_the_steps_is_the_number_of_steps_that_a_sweep_file_makes_of_it(folder: Path) -> None:
    asked = located(folder, "lr=0.01", "beta1=0.5", "warmup=0%", "adagc=1", "adagc_warmup=5%")
    assert not any("warmup = 0" in line for line in asked)
    lines = located(folder, "lr=0.01", "beta1=0.5", "warmup=15%")
    assert "caution: --set warmup=15%: warmup = 3, where the sweep has 0" in lines
    lines = located(folder, "lr=0.01", "beta1=0.5", "warmup=15%", "steps=200")
    assert "caution: --set warmup=15%: warmup = 30, where the sweep has 0" in lines
    with pytest.raises(InputError, match="--set warmup=150%: warmup: '150%' is refused"):
        located(folder, "lr=0.01", "beta1=0.5", "warmup=150%")


def test_a_log_that_is_not_there_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        located(folder, "lr=0.01", "beta1=0.5", log=tmp_path / "train.log")


# --- a boundary at a level ---


def at_level(folder: Path, metric: str | None, level: float | None, degraded: bool = False, out: Path | None = None):
    return list(boundary(folder, None, None, {}, "worst", degraded, out, metric, level))


def test_a_level_of_a_metric_is_printed_and_written_in_rows_as_the_edge_is(tmp_path: Path) -> None:
    sweep = sweep_of(GRID)
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep, ["stable"] * 8, [10 * trial.cell["lr"] for trial in sweep.trials])
    lines = at_level(tmp_path / "case", "final_loss", 0.5, out=tmp_path / "passed.json")
    assert lines[:2] == [
        "case: where the median final_loss passes 0.5 along lr",
        "beta1=0.5  level passed near lr=0.0316 (lr 0.01 is below, 0.1 is not)",
    ]
    found = json.loads((tmp_path / "passed.json").read_text())
    assert (found["metric"], found["level"], found["along"], found["is_fitted"]) == ("final_loss", 0.5, "lr", False)
    for row in found["rows"]:
        (edge,) = row["edges"]
        assert (row["kind"], row["not_known"], edge["below"], edge["above"]) == ("crosses", [], 0.01, 0.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("final_loss", None), "--metric: final_loss: needs --level"),
        ((None, 3.0), "--level: 3.0: needs --metric"),
        (("final_loss", 3.0, True), "--degraded"),
        (("loss_of_mine", 3.0), "'loss_of_mine' is unknown"),
    ],
)
def test_half_a_level_is_refused(folder: Path, options: tuple, says: str) -> None:
    with pytest.raises(InputError, match=says):
        at_level(folder, *options)


def test_scattered_cells_have_no_level_to_pass_and_a_remedy(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {lr: {log: [1e-3, 1]}}\nsample: {method: sobol, num: 16}\n")
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep, ["stable"] * 16)
    with pytest.raises(InputError, match=r"scattered[\s\S]*remedy: train a grid"):
        at_level(tmp_path / "case", "final_loss", 0.5)
