"""docs/warning.md: its loop and its commands run as shown; the sweep with fewer steps."""

import json
import re
import shutil
from pathlib import Path

import pytest
from page_cases import run_commands, section, write_files

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "warning.md").read_text()


@pytest.mark.slow
def test_the_loop_warns_and_the_sweep_is_judged(tmp_path: Path) -> None:
    use = section(PAGE, "Use it")
    write_files(use, tmp_path)
    shutil.copytree(ROOT / "sweeps" / "warning", tmp_path / "sweeps" / "warning")
    file = "warning_fit_adamw.yaml"
    printed = run_commands(use.replace(file, f"{file} --steps 120 --seeds 0"), tmp_path)
    # Where the spikes are depends on the processor.
    assert re.search(
        r"^risk \d+% of an instability within 50 steps of step \d+: a recent high curv", printed, re.MULTILINE
    )
    assert re.search(r"^(spiked|stable) \[[\d, ]*\]$", printed, re.MULTILINE)
    assert re.search(r"^warning_fit_adamw: 12 runs, \d+ instabilit", printed, re.MULTILINE)
    assert json.loads((tmp_path / "warned.json").read_text())["num_with_curvature"] == 12
