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
