"""docs/weights.md: its commands run as shown, and its numbers are those of the map that ships."""

import csv
import re
from pathlib import Path

import pytest
from page_cases import run_commands, section, write_files

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "weights.md").read_text()


@pytest.mark.slow
def test_weights_are_kept_exported_and_merged(tmp_path: Path) -> None:
    use = section(PAGE, "Keep them, and take them elsewhere")
    write_files(use, tmp_path)
    printed = run_commands(use, tmp_path)
    plain, own = map(float, re.search(r"^(\d\.\d+) (\d\.\d+)$", printed, re.MULTILINE).groups())
    assert plain == pytest.approx(own, rel=2e-6)
    assert "soup: greedy mean of " in printed
    assert (tmp_path / "path.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_of_averages_is_that_of_the_map() -> None:
    with (ROOT / "results/reference/merge_decay/map.csv").open() as file:
        cells = list(csv.DictReader(file))
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert [row[0] for row in rows] == ["constant", "linear", "wsd"]
    for schedule, *losses, edge in rows:
        own = [cell for cell in cells if cell["schedule"] == schedule]
        columns = ("median_validation_loss", "median_merged_loss", "median_ema_loss")
        best = [min(float(cell[column]) for cell in own if cell[column]) for column in columns]
        assert [f"{loss:.3f}" for loss in best] == losses
        stable = [float(cell["lr"]) for cell in own if cell["state"] == "stable"]
        assert max(stable) == pytest.approx(float(edge), rel=0.02)


def test_what_merges_gain_is_in_the_table() -> None:
    with (ROOT / "results/reference/merge_forks/merges.csv").open() as file:
        rows = list(csv.DictReader(file))

    def numbers(column: str, **of: str) -> list[float]:
        return sorted(float(row[column]) for row in rows if of.items() <= row.items())

    changes = numbers("change", differ_in="batches", experts="0")
    assert shown(r"for 100 steps is ([\d.]+) to ([\d.]+) lower") == [f"{-changes[-1]:.3f}", f"{-changes[0]:.3f}"]
    with_experts = numbers("change", differ_in="batches", experts="4")
    lower = [change for change in with_experts if change < 0]
    expected = [f"{len(lower)}", f"{len(with_experts)}", f"{-lower[0]:.3f}"]
    assert shown(r"mean is lower in (\d) of (\d) cases, by up to ([\d.]+);") == expected
    assert numbers("barrier", differ_in="batches")[-1] == 0
    changes = numbers("change", differ_in="lr")
    assert shown(r"mean of three rates is ([\d.]+) to ([\d.]+) above") == [f"{changes[0]:.2f}", f"{changes[-1]:.2f}"]
    barriers = numbers("barrier", differ_in="seed")
    assert shown(r"the barrier is ([\d.]+) to ([\d.]+) \(") == [f"{barriers[0]:.2f}", f"{barriers[-1]:.2f}"]


def shown(pattern: str) -> list[str]:
    return list(re.search(pattern, " ".join(PAGE.split())).groups())
