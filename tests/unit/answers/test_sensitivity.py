from pathlib import Path

from sweep_cases import ledger_at, record, sweep_of

from orchestrator import load


def test_over_a_range_of_a_grid_only_its_values_there_count(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        sweep = sweep_of("seeds: [0, 1, 2]\naxes: {lr: {log: [1e-3, 1], num: 4}}\n")
        record(ledger, sweep, ["stable"] * 9 + ["diverged"] * 3)
    assert "over 4 values from 0.001 to 1" in load(tmp_path / "case").sensitivity().lines()[0]
    answer = load(tmp_path / "case").sensitivity(range=(1e-2, 0.1))
    assert "over 2 values from 0.01 to 0.1" in answer.lines()[0]
    assert (answer.axis, answer.low, answer.high, answer.num_values) == ("lr", 0.01, 0.1, 2)
    assert answer.settings == [
        {"setting": {}, "sensitivity": 0.0, "best": 0.01, "seeds": {"0": 0.0, "1": 0.0, "2": 0.0}}
    ]


def test_over_a_range_of_scattered_cells_their_loss_is_interpolated(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        sampled = sweep_of("axes: {lr: {log: [1e-3, 1]}}\nsample: {method: sobol, num: 16}\n")
        record(ledger, sampled, ["stable"] * 16)
    answer = load(tmp_path / "case").sensitivity(range=(1e-2, 0.1))
    assert "lr sensitivity from 0.01 to 0.1" in answer.lines()[0]
    assert (answer.axis, answer.low, answer.high, answer.num_cells) == ("lr", 0.01, 0.1, 16)
    assert [set(setting) for setting in answer.settings] == [{"setting", "sensitivity", "best"}]
