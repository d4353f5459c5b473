"""The recipes of docs/clusters.md for SkyPilot and dstack: their packages read them, and their commands train."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml
from fault_kit import need

from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader

ROOT = Path(__file__).parents[2]
RECIPES = Path("sweeps/trainers/recipes")
TINY = """
name: beta2_eps
objective: quadratic
steps: 50
axes: {lr: {values: [0.1, 0.5]}}
tracking: {enabled: false}
"""
# What each package says of its own node: here there is one.
ENVIRONMENTS = {
    "sky": {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_IPS": "127.0.0.1\n"},
    "dstack": {"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "1", "DSTACK_MASTER_NODE_IP": "127.0.0.1"},
}
READERS = {
    "sky": ("skypilot==0.14.1", "import sky; print(sky.Task.from_yaml('{path}').num_nodes)"),
    "dstack": (
        "dstack==0.22.5",
        "import yaml; from dstack._internal.core.models.configurations import parse_run_configuration as read; "
        "print(read(yaml.safe_load(open('{path}'))).nodes)",
    ),
}


def commands(name: str) -> str:
    """What the recipe runs on each node once sweep is installed."""
    recipe = yaml.safe_load((ROOT / RECIPES / f"{name}.yaml").read_text())
    return recipe["run"] if "run" in recipe else recipe["commands"][-1]


@pytest.mark.services
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_commands_of_a_recipe_train_the_sweep_by_one_ray(name: str, tmp_path: Path) -> None:
    need("unshare", "ip")
    shutil.copytree(ROOT / RECIPES, tmp_path / RECIPES)
    (tmp_path / "sweeps/beta2_eps.yaml").write_text(TINY)
    script = f"ip link set lo up\n{commands(name)}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount-proc", "bash", "-euc", script],
        cwd=tmp_path, env={**os.environ, **ENVIRONMENTS[name], "PATH": path, "RAY_AUTH_TOKEN": "0" * 64},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with LedgerReader(tmp_path / "results/beta2_eps" / LEDGER) as ledger:
        assert [row.status for row in ledger.trials()] == ["finished"] * 2
        assert {pack.executor for pack in ledger.packs()} == {"ray"}


@pytest.mark.recipes
@pytest.mark.parametrize("name", READERS)
def test_the_package_reads_its_recipe(name: str, tmp_path: Path) -> None:
    package, program = READERS[name]
    venv.create(tmp_path / "own", with_pip=True)  # it does not fit beside the others
    python = str(tmp_path / "own/bin/python")
    own = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True, env=own)
    program = program.format(path=ROOT / RECIPES / f"{name}.yaml")
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, env=own)
    assert done.stdout.split()[-1] == "4"
