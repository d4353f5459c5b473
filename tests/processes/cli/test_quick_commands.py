"""Commands that answer at once import no heavy library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plan", "sweeps/beta2_eps.yaml", "--results", "EMPTY"],
        ["objectives"],
        ["replay", "LOG", "--no-figures"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_quick_commands_import_no_heavy_library(tmp_path: Path, arguments: list[str]) -> None:
    log = tmp_path / "run.csv"
    log.write_text("step,loss\n0,2.0\n1,1.5\n")
    paths = {"LOG": str(log), "EMPTY": str(tmp_path / "results")}
    arguments = [paths.get(argument, argument) for argument in arguments]
    heavy = {"torch", "ray", "mlflow", "pandas", "matplotlib"} | ({"numpy"} if arguments[0] != "replay" else set())
    code = (
        "import sys; from orchestrator.cli import app; app(sys.argv[1:], standalone_mode=False);"
        f"loaded = {heavy} & set(sys.modules);"
        "print(loaded); sys.exit(len(loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
