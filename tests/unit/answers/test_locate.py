from pathlib import Path

import pytest
from sweep_cases import learning, ledger_at, record, sweep_of

from orchestrator import load
from orchestrator.answers.locate import LocateAnswer
from orchestrator.answers.replay import ReplayQuery
from orchestrator.base.errors import InputError

GRID = "axes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5]}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of(GRID), ["stable"] * 6 + ["diverged"] * 2)
    return tmp_path / "case"


def located(folder: Path, *settings: str, log: Path | None = None) -> LocateAnswer:
    return load(folder).locate(at=settings, log=log)


def log_of(folder: Path, losses) -> Path:
    path = folder / "train.log"
    path.write_text("".join(f"step {i} loss {loss:.5f}\n" for i, loss in enumerate(losses)))
    return path


def test_a_log_is_judged_as_by_replay_and_compared_with_what_the_map_predicts(folder: Path, tmp_path: Path) -> None:
    log = log_of(tmp_path, learning(300, changes=[(200, 206, 2.0)]))
    answer = located(folder, "lr=0.02", "beta1=0.2", log=log)
    plain, replayed = answer.to_plain(), ReplayQuery(no_figures=True).ask(([str(log)], tmp_path)).to_plain()
    assert replayed[0].pop("explanation")["onset_step"] == 200, "which a place on a map leaves out"
    assert [plain["log"]] == replayed
    assert (plain["log"]["outcome"], answer.side, answer.num_cells_around) == ("spiked", "stable", 4)
    assert any(line.startswith(f"{log}: spiked from step 2") for line in answer.lines())
    assert "  the map predicts stable: it is not so" in answer.lines()
    answer = located(folder, "lr=0.02", "beta1=0.2", log=log_of(tmp_path, learning(300)))
    assert "  the map predicts stable: so it is" in answer.lines()


def test_a_run_on_a_cell_has_its_margins_and_the_nearest_cells(folder: Path) -> None:
    lines = located(folder, "lr=0.01", "beta1=0.5", "warmup=3").lines()
    assert lines[:4] == [
        "case: lr=0.01 beta1=0.5",
        "inside stable territory: its cell is stable on all seeds",
        "  lr down: open: stable to 0.001 (factor 10), where what was tried ends",
        "  lr up: stable to 0.1 (factor 10), not at 1 (factor 100)",
    ]
    assert "caution: --at warmup=3: warmup = 3, where the sweep has 0" in lines
    assert "  lr=0.01 beta1=0.5: stable, 1 of 1 seeds stable, median final loss 1" in lines
    assert lines[-1].startswith(f"curves of the first: `sweep diagnose {folder} --trial ")


def test_a_share_of_the_steps_is_the_number_of_steps_that_a_sweep_file_makes_of_it(folder: Path) -> None:
    def warmup(*settings: str) -> list[int]:
        cautions = located(folder, "lr=0.01", "beta1=0.5", *settings).cautions
        return [caution.run for caution in cautions if caution.name == "warmup"]

    assert warmup("warmup=0%", "adagc=1", "adagc_warmup=5%") == []
    assert warmup("warmup=15%") == [3]
    assert warmup("warmup=15%", "steps=200") == [30]
    with pytest.raises(InputError, match="--at warmup=150%: warmup: '150%' is refused"):
        warmup("warmup=150%")


def test_a_log_that_is_not_there_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        located(folder, "lr=0.01", "beta1=0.5", log=tmp_path / "train.log")
