"""Finished sweeps and logs are read where the libraries that train are not installed."""

import subprocess
import sys
from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of
from tiers import thinned

from orchestrator.base.environment import EXTRAS

# The finder of installed modules finds none of those of an extra.
WITHOUT = f"""
import sys
from importlib.machinery import PathFinder

found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name in {list(EXTRAS)} else found(name, *rest)

from orchestrator.cli import app

for line in sys.argv[1].splitlines():
    app(line.split(), standalone_mode=False)
"""
SWEEP = """\
name: case
objective: quadratic
steps: 20
seeds: [0, 1]
axes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5, 0.9]}}
"""
QUICK = """\
list
status case
boundary case --json edge.json
recommend case
plan case.yaml
replay log.csv --no-figures
export heatmap case
"""
READING = """\
explain case
diagnose case
compare case case
map case --output map.csv
edge case --output edge.png
report case
audit case
front case
survival case
doctor case
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep = sweep_of(SWEEP, "")
    with ledger_at(tmp_path / "results" / "case") as ledger:
        record(ledger, sweep, ["diverged" if trial.cell["lr"] > 0.5 else "stable" for trial in sweep.trials])
    for path in (tmp_path / "case.yaml", tmp_path / "results" / "case" / "sweep.yaml"):
        path.write_text(SWEEP)
    (tmp_path / "log.csv").write_text("step,loss\n0,2.0\n1,1.5\n")
    return tmp_path


@pytest.mark.parametrize("commands", thinned([QUICK, READING], QUICK.__eq__), ids=["quick", "others"])
def test_commands_that_read_work(folder: Path, commands: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, commands], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    assert (folder / "results" / "case" / ("heatmap.png" if commands == QUICK else "report.html")).exists()
