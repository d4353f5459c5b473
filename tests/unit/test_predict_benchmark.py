"""The benchmark of predictions reads a table of runs, and leaves its largest width out."""

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import predict
from orchestrator.maps.optimum import Optimum


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose edge is 4 / width, in two batches, with rates rounded two ways."""
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["width", "depth", "tokens", "batch", "lr", "smooth_loss"])
        for width in (64, 128, 256, 512):
            for batch in (32, 64):
                for i, lr in enumerate(np.geomspace(5e-4, 0.25, 14)):
                    loss = 2 + 0.05 * math.log(lr * width) ** 2 if lr * width < 4 else 6.5
                    writer.writerow([width, 2, 1e9, batch, f"{lr:.3g}" if i % 2 else f"{lr:.6g}", loss])
    return path


@pytest.mark.slow
def test_the_largest_width_is_predicted_and_naive_rules_stand_next_to_it(table: Path, tmp_path: Path) -> None:
    ladder = predict.imported(table, tmp_path)
    assert len(ladder.sizes) == 8
    rows = predict.predicted(ladder, 512)
    assert len(rows) == 2
    assert all(row.meets for row in rows)
    law, copied, constant = (predict.factors(rows, rule) for rule in ("at", "copied", "constant"))
    assert max(law) < 1.4 < min(copied) < min(constant)
    assert all(row.regret is not None and row.regret < 0.05 for row in rows)
    assert len(predict.report(rows)) == 7


def test_the_luck_of_one_run_is_no_regret_on_a_smooth_curve() -> None:
    rates = tuple(np.linspace(-2, 2, 15))
    costs = [2 + 0.01 * rate**2 for rate in rates]
    lucky = Optimum(-1, 1, 0, rates, (*costs[:10], costs[10] - 0.02, *costs[11:]))
    assert lucky.regret(0.0) == pytest.approx(0.02 - 0.01 * rates[10] ** 2)
    assert predict.smooth_regret(lucky, 0.0) < 0.003
    assert predict.smooth_regret(lucky, -2.0) > 0.03
    assert predict.smooth_regret(lucky, 3.0) is None


@pytest.mark.slow
def test_an_exponent_that_too_few_sizes_show_is_assumed_unless_it_is_free(table: Path, tmp_path: Path) -> None:
    ladder = predict.imported(table, tmp_path)
    few = replace(ladder, sizes=tuple(size for size in ladder.sizes if size.setting["width"] > 64))
    free, assumed = (predict.predicted(few, 512, is_free=is_free)[0] for is_free in (True, False))
    assert assumed.high - assumed.low < free.high - free.low
    whole = [predict.predicted(ladder, 512, is_free=is_free)[0] for is_free in (True, False)]
    assert whole[0] == whole[1]


@pytest.mark.slow
def test_a_surface_is_further_off_beyond_its_trials_than_the_law(table: Path, tmp_path: Path) -> None:
    whole = predict.imported_table(table, tmp_path)
    rows = predict.predicted(predict.read_ladder(whole, predict.SIZES, "lr"), 512)
    assert min(predict.surface_factors(whole, rows)) > max(predict.factors(rows, "at"))


@pytest.mark.slow
def test_each_grid_is_predicted_from_all_others(table: Path, tmp_path: Path) -> None:
    ladder = predict.imported(table, tmp_path)
    rows = predict.each_grid(ladder)
    assert [row.size.setting for row in rows] == [size.setting for size in ladder.sizes]
    assert all(row.meets for row in rows)
    assert rows[-1] == predict.predicted(ladder, 512)[-1]


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("width,lr\n1,2\n")
    with pytest.raises(SystemExit, match="no column"):
        predict.rounded(tmp_path / "runs.csv", tmp_path)


@pytest.mark.slow
def test_the_batch_at_which_the_best_rate_saturates_goes_as_the_tokens_do(tmp_path: Path) -> None:
    """Planted: batch^0.7 up to a batch of 128 at 1e9 tokens, which goes as tokens^0.6; above it tokens^0.2."""
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["width", "depth", "tokens", "batch", "lr", "smooth_loss"])
        for tokens in (1e9, 3e9, 9e9, 27e9):
            critical = 128 * (tokens / 1e9) ** 0.6
            for batch in (16, 32, 64, 128, 256, 512, 1024, 2048):
                best = 2e-3 * (tokens / 1e9) ** 0.2 * min(1, batch / critical) ** 0.7
                for lr in np.geomspace(1e-4, 1e-2, 20):
                    writer.writerow([64, 2, tokens, batch, f"{lr:.6g}", 2 + 0.05 * math.log(lr / best) ** 2])
                writer.writerow([64, 2, tokens, batch, 0.1, 6.5])
    found = predict.best_rate(predict.imported(path, tmp_path))
    assert found is not None
    assert found.at_least == pytest.approx((0.7, 0.2 - 0.6 * 0.7), abs=0.1)
    assert found.at_most == pytest.approx((0, 0.2), abs=0.1)
    assert found.saturates == pytest.approx((128, 128 * 27**0.6), rel=0.2)
    assert found.power == pytest.approx(0.6, abs=0.1)
    assert len(found.lines()) == 3
