import sys
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import ledger_at, map_ledger, record, sweep_of

import orchestrator
from orchestrator.base.errors import InputError

GRID = "seeds: [0, 1]\naxes:\n  lr: {values: [0.1, 0.2]}\n  clip: {values: [1.0, null]}\n"


def results(folder: Path, body: str = GRID, unstable: float = 0.15) -> orchestrator.SweepResults:
    sweep = sweep_of(body)
    with ledger_at(folder / "case") as ledger:
        record(ledger, sweep, ["diverged" if trial.cell["lr"] > unstable else "stable" for trial in sweep.trials])
    return orchestrator.load(folder / "case")


def test_arrays_and_tables_of_a_sweep_hold_the_same(tmp_path: Path) -> None:
    found = results(tmp_path)
    arrays = found.to_xarray()
    assert arrays.stable_fraction.dims == ("lr", "clip")
    assert arrays.final_loss.dims == ("lr", "clip", "seed")
    for row in found.map("lr", "clip").itertuples():
        cell = arrays.sel(lr=row.lr, clip="none" if np.isnan(row.clip) else row.clip)
        assert (float(cell.stable_fraction), str(cell.state.values)) == (row.fraction_stable, row.state)
    for row in found.trials.itertuples():
        trial = arrays.sel(lr=row.lr, clip="none" if np.isnan(row.clip) else row.clip, seed=row.seed)
        assert (str(trial.outcome.values), float(trial.final_loss)) == (row.outcome, row.final_loss)


def test_what_was_not_trained_is_missing_and_one_axis_is_enough(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n")
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep, ["stable", "planned"])
    arrays = orchestrator.load(tmp_path / "case").to_xarray()
    assert arrays.stable_fraction.values[0] == 1
    assert np.isnan(arrays.stable_fraction.values[1])


def test_scattered_cells_and_a_missing_library_are_told(tmp_path: Path, monkeypatch) -> None:
    sampled = "axes: {lr: {log: [0.01, 1]}}\nsample: {method: sobol, num: 8}\n"
    with pytest.raises(InputError, match=r"(?s)scattered.*use \.trials or \.map\(\)"):
        results(tmp_path / "a", sampled).to_xarray()
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InputError, match="pip install xarray"):
        results(tmp_path / "b").to_xarray()
