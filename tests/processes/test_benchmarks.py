"""Benchmarks, as one runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_gpu_benchmark_without_a_gpu_says_so_in_one_line() -> None:
    command = [sys.executable, "benchmarks/gpu.py"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "no GPU" in done.stderr


@pytest.mark.slow
def test_what_telemetry_costs_is_measured_in_steps(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/telemetry.py", "--rounds", "1", "--members", "2"]
    done = subprocess.run([*command, "--json", tmp_path / "cost.json"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "cost.json").read_text())
    assert list(found) == [
        "reading",
        *(f"{number} products" for number in (2, 3, 4, 6)),
        "forward passes",
        "validation",
    ]
    assert found["6 products"] > found["2 products"] > found["forward passes"] > 0
