"""A user's own packages `objectives` and `orchestrator`, in the current folder and on PYTHONPATH."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import thinned

import orchestrator
import sweep_stability

QUADRATIC = "objective: quadratic\n"
TRAIN = """
import sys
import objectives.mine, orchestrator.mine
lr, x = float(sys.argv[1]), objectives.mine.START
for step in range(20):
    print(f"step {step} | loss {x * x / 2 + 1:.9g}")
    x -= lr * x
"""
COMMAND = 'objective: {command: [python, train.py, "{lr}"], preload: auto}\n'
FUNCTION = """
def run(config, report):
    x = 2.0
    for step in range(config["steps"]):
        report(step, x * x / 2 + 1)
        x -= config["lr"] * x
"""
SPAWNING = """
import multiprocessing
import function

def run(config, report):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
    function.run(config, report)
"""
PACKED = """
from dataclasses import replace
from objectives.base import OBJECTIVES

OBJECTIVE = replace(OBJECTIVES["quadratic"], name="mine")
"""
OUTCOMES = "1 stable, 1 diverged"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for package in ("objectives", "orchestrator"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "mine.py").write_text("START = 2.0\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "function.py").write_text(FUNCTION)
    (tmp_path / "spawning.py").write_text(SPAWNING)
    (tmp_path / "clash.py").write_text("import objectives.mine\n")
    (tmp_path / "packed.py").write_text(PACKED)
    return tmp_path


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def sweep(folder: Path, *arguments: str, code: int = 0) -> str:
    return run(folder, "-c", "import sweep_stability; sweep_stability.main()", *arguments, code=code)


def trained(folder: Path, objective: str, *options: str, executor: str = "inline", code: int = 0) -> str:
    rest = "name: case\nsteps: 20\naxes: {lr: {values: [0.1, 3.0]}}\ntracking: {enabled: false}\n"
    (folder / "case.yaml").write_text(objective + rest)
    return sweep(folder, "run", "case.yaml", "--allow-import", "--executor", executor, *options, code=code)


def test_the_entry_point_is_beside_the_packages() -> None:
    assert Path(sweep_stability.__file__).parent == Path(orchestrator.__file__).parent.parent


def test_the_entry_point_runs_as_a_module(folder: Path) -> None:
    assert "sweep list" in run(folder, "-m", "sweep_stability", "list", "--help")


@pytest.mark.slow
def test_commands_and_the_server_of_a_run_are_of_sweep(folder: Path) -> None:
    assert OUTCOMES in trained(folder, QUADRATIC, "--page")
    assert OUTCOMES in sweep(folder, "list")


@pytest.mark.services
@pytest.mark.parametrize("objective", [QUADRATIC, 'objective: {packed: "packed:OBJECTIVE"}\n'])
def test_workers_of_ray_are_of_sweep(folder: Path, objective: str) -> None:
    assert OUTCOMES in trained(folder, objective, executor="ray")


@pytest.mark.services
def test_jobs_of_slurm_are_of_sweep(folder: Path) -> None:
    assert OUTCOMES in trained(folder, COMMAND, "--slurm", "cluster=local", executor="slurm")


def test_a_trainer_has_the_modules_of_its_user(folder: Path) -> None:
    assert OUTCOMES in trained(folder, COMMAND)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ['{python: "spawning:run"}', '{packed: "packed:OBJECTIVE"}'])
def test_a_function_and_an_objective_of_a_user_are_found(folder: Path, objective: str) -> None:
    assert OUTCOMES in trained(folder, f"objective: {objective}\n")


@pytest.mark.parametrize(
    "objective",
    thinned(['{python: "clash:run"}', '{packed: "objectives.mine:OBJECTIVE"}'], lambda case: "packed" in case),
)
def test_a_module_that_sweep_hides_is_named_with_what_to_do(folder: Path, objective: str) -> None:
    clash = f"sweep's package {Path(sweep_stability.__file__).parent / 'objectives'} has this name too: rename yours"
    text = trained(folder, f"objective: {objective}\n", code=3 if "python" in objective else 2)
    assert "No module named 'objectives.mine'" in text
    assert clash in " ".join(text.split())


def test_a_module_that_hides_a_package_of_sweep_is_named_with_what_to_do(folder: Path) -> None:
    (folder / "orchestrator" / "__init__.py").unlink()
    (folder / "orchestrator" / "mine.py").unlink()
    last = run(folder, "-c", "import orchestrator", code=1).splitlines()[-1]
    assert last == f"ImportError: {folder}/objectives/__init__.py hides sweep's package of this name: rename yours"
