from __future__ import annotations

from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.maps.permutation import permutation_shares
from orchestrator.maps.table import read_table

LR = "lr: {log: [1e-3, 1], num: 9}"


def shares(path: Path, body: str, is_stable) -> dict[str, float] | None:
    sweep = sweep_of(body)
    with ledger_at(path) as ledger:
        labels = ["stable" if is_stable(trial.cell) else "diverged" for trial in sweep.trials]
        map_ledger(ledger, sweep, labels, [1.0] * len(labels))
        return permutation_shares(read_table(ledger))


def test_an_axis_that_does_nothing_has_no_share(tmp_path: Path) -> None:
    found = shares(tmp_path, f"axes: {{{LR}, clip: {{values: [1.0, 2.0, null]}}}}\n", lambda cell: cell["lr"] < 0.03)
    assert found == pytest.approx({"lr": 1.0, "clip": 0.0}, abs=0.05)


def test_axes_that_move_the_edge_only_together_share_it(tmp_path: Path) -> None:
    axes = "axes: {lr: {log: [0.01, 1], num: 9}, eps: {log: [0.01, 1], num: 9}}\n"
    found = shares(tmp_path, axes, lambda cell: cell["lr"] * cell["eps"] < 0.01)
    assert found == pytest.approx({"lr": 0.5, "eps": 0.5}, abs=0.1)


def test_words_alone_have_no_surface_and_too_few_trials_neither(tmp_path: Path) -> None:
    words = "axes: {optimizer: {values: [sgd, adamw, lion]}}\n"
    assert shares(tmp_path / "words", words, lambda cell: cell["optimizer"] == "sgd") is None
    few = "axes: {lr: {log: [1e-3, 1], num: 4}}\n"
    assert shares(tmp_path / "few", few, lambda cell: cell["lr"] < 0.1) is None
