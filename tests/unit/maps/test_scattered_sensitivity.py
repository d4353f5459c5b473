"""Learning-rate sensitivity of scattered cells: beside that of a grid, and of known losses."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.answers.sensitivity import SensitivityQuery
from orchestrator.base.errors import InputError
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.sensitivity import Sensitivities, lr_sensitivity
from orchestrator.maps.table import read_table

LR = "lr: {log: [0.001, 1.0], num: 65}"
SAMPLED = "sample: {method: sobol, num: 96}\naxes:\n  lr: {log: [0.001, 1.0]}\n"


def valley(cell: dict) -> float:
    """A loss that is lowest, 2, in the middle of the range of lr."""
    return 2 + (math.log10(cell["lr"]) + 1.5) ** 2


def ledger_with(path: Path, body: str, loss: Callable[[dict], float] = valley) -> LedgerReader:
    sweep = sweep_of(body)
    with ledger_at(path) as ledger:
        map_ledger(ledger, sweep, ["stable"] * len(sweep.trials), [loss(trial.cell) for trial in sweep.trials])
    return LedgerReader(ledger.path)


def fitted(path: Path, body: str, loss: Callable[[dict], float] = valley) -> Sensitivities:
    with ledger_with(path, body, loss) as ledger:
        return lr_sensitivity(read_table(ledger))


def test_it_is_that_of_a_dense_grid(tmp_path: Path) -> None:
    with ledger_with(tmp_path / "grid", f"axes: {{{LR}}}\n") as ledger:
        (of_grid,) = lr_sensitivity(read_table(ledger)).settings
    (of_sample,) = fitted(tmp_path / "few", SAMPLED).settings
    assert of_sample.value == pytest.approx(of_grid.value, rel=0.05)
    assert math.log10(of_sample.best) == pytest.approx(-1.5, abs=0.1)


def test_the_nearest_cells_say_what_all_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = SAMPLED + "  beta1: {linear: [0.0, 0.9]}\n"
    nearest = []
    for num in (96, 48):
        monkeypatch.setattr("orchestrator.maps.sensitivity._NEAREST", num)
        nearest.append([each.value for each in fitted(tmp_path / str(num), body).settings])
    assert nearest[1] == pytest.approx(nearest[0], rel=0.02)


def test_other_axes_are_told_apart_whether_words_or_ranges(tmp_path: Path) -> None:
    words = SAMPLED + "  optimizer: {values: [adamw, lion]}\n"
    found = fitted(tmp_path / "words", words, lambda cell: valley(cell) * (1 + (cell["optimizer"] == "lion")))
    value = {each.setting["optimizer"]: each.value for each in found.settings}
    assert value["lion"] == pytest.approx(2 * value["adamw"], rel=0.15)
    ranges = SAMPLED + "  beta1: {linear: [0.0, 0.9]}\n"
    found = fitted(tmp_path / "ranges", ranges, lambda cell: 2 + (valley(cell) - 2) * (1 + cell["beta1"]))
    by_beta1 = [each.value for each in sorted(found.settings, key=lambda each: each.setting["beta1"])]
    assert by_beta1[0] < by_beta1[len(by_beta1) // 2] < by_beta1[-1]
    assert by_beta1[-1] / by_beta1[0] == pytest.approx(1.9, rel=0.2)


def test_a_loss_above_the_initial_one_counts_as_the_initial_one(tmp_path: Path) -> None:
    (of_sample,) = fitted(tmp_path / "few", SAMPLED, lambda cell: 1e9 if cell["lr"] > 0.0316 else 10.0).settings
    assert of_sample.value == pytest.approx((1000 - 10) / 2, rel=0.05)


def test_the_words_say_from_how_many_cells(tmp_path: Path) -> None:
    with ledger_with(tmp_path / "few", SAMPLED) as ledger:
        first, second = SensitivityQuery().ask(read_table(ledger)).lines()
    assert first.startswith("lr sensitivity from 0.001 to 1 ")
    assert first.endswith("interpolated between 96 cells):")
    assert second.startswith("  all cells: 0.7")


def test_parts_of_the_range_with_few_cells_are_named(tmp_path: Path) -> None:
    with ledger_with(tmp_path / "few", SAMPLED.replace("96", "16")) as ledger:
        assert SensitivityQuery().ask(read_table(ledger)).lines()[2:] == [
            "a guess for lr from 0.001 to 1: 16 of 16 cells are there"
        ]
    with ledger_with(tmp_path / "many", SAMPLED) as ledger:
        assert len(SensitivityQuery().ask(read_table(ledger)).lines()) == 2


def test_a_part_of_the_range_is_that_of_a_grid_over_it(tmp_path: Path) -> None:
    with ledger_with(tmp_path / "grid", f"axes: {{{LR}}}\n") as ledger:
        (of_grid,) = lr_sensitivity(read_table(ledger), "lr", (0.003, 0.1)).settings
    with ledger_with(tmp_path / "few", SAMPLED) as ledger:
        part, beyond = (lr_sensitivity(read_table(ledger), "lr", ends) for ends in ((0.003, 0.1), (1e-9, 0.1)))
        whole = lr_sensitivity(read_table(ledger))
    assert (part.low, part.high) == (0.003, 0.1)
    assert (beyond.low, beyond.high, whole.low, whole.high) == (0.001, 0.1, 0.001, 1.0)
    assert part.settings[0].value == pytest.approx(of_grid.value, rel=0.1)
    assert part.settings[0].value < whole.settings[0].value / 2


def test_a_part_beyond_the_range_is_refused(tmp_path: Path) -> None:
    with (
        ledger_with(tmp_path / "few", SAMPLED) as ledger,
        pytest.raises(InputError, match=r"--range 2:3: lr was trained from 0\.001 to 1"),
    ):
        lr_sensitivity(read_table(ledger), "lr", (2.0, 3.0))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sample: {method: sobol, num: 4}\naxes: {lr: {log: [0.001, 1]}}\n", "too few"),
        ("sample: {method: sobol, num: 16}\naxes: {beta2: {log1m: [0.9, 0.999]}}\n", "not a range of numbers"),
    ],
)
def test_what_cannot_be_told_is_refused(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        fitted(tmp_path / "few", body, lambda cell: 1.0)
