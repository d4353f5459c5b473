"""The wheel, built and installed as a user would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, folder: Path) -> str:
    settings = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    settings.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_by_itself_plans_shipped_sweeps_and_reads_logs_without_what_trains(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", tmp_path, ROOT, folder=tmp_path)
    run(sys.executable, "-m", "venv", tmp_path / "environment", folder=tmp_path)
    programs = tmp_path / "environment" / "bin"
    (wheel,) = tmp_path.glob("*.whl")
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel, folder=tmp_path)
    installed = run(programs / "python", "-m", "pip", "list", folder=tmp_path).split()
    assert not {"torch", "ray", "mlflow", "optuna", "scikit-learn"} & set(installed)
    assert "gpt" in run(programs / "sweep", "plan", "lr_warmup", folder=tmp_path)
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(100)))
    assert "stable" in run(programs / "sweep", "replay", "log.csv", folder=tmp_path)
    watching = "from orchestrator import Watch, load; print(Watch)"
    assert "Watch" in run(programs / "python", "-c", watching, folder=tmp_path)
