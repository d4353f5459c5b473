"""Commands in a process of their own: what they import, what a shell completes, and what another process answers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_cases import QUADRATIC, ledger_at, map_ledger, record, sweep_of
from tiers import thinned

ROOT = Path(__file__).parents[3]


QUICK = [["--help"], ["plan", "sweeps/beta2_eps.yaml", "--results", "EMPTY"], ["objectives"]]


@pytest.mark.parametrize(
    ("commands", "heavy"),
    [(QUICK, {"torch", "ray", "mlflow", "pandas", "matplotlib", "numpy"}),
     ([["replay", "LOG", "--no-figures"]], {"torch", "ray", "mlflow", "pandas", "matplotlib"})],
    ids=["without a ledger", "replay"],
)  # fmt: skip
def test_quick_commands_import_no_heavy_library(tmp_path: Path, commands: list[list[str]], heavy: set[str]) -> None:
    log = tmp_path / "run.csv"
    log.write_text("step,loss\n0,2.0\n1,1.5\n")
    paths = {"LOG": str(log), "EMPTY": str(tmp_path / "results")}
    lines = [[paths.get(argument, argument) for argument in arguments] for arguments in commands]
    code = (
        "import json, sys\nfrom orchestrator.cli import app\nfor line in json.loads(sys.argv[1]):\n"
        f"    app(line, standalone_mode=False)\n    print(line, found := {heavy} & set(sys.modules))\n"
        "    assert not found"
    )
    command = [sys.executable, "-c", code, json.dumps(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert ("within a factor of" in done.stdout) == (commands is QUICK), "a process of its own measures the speed"


def test_the_status_of_a_grid_loads_nothing_that_fits_surfaces(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    code = (
        "import sys; from orchestrator.cli import app; app(sys.argv[1:], standalone_mode=False);"
        "sys.exit('scipy' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "status", "case", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert "stable up to lr " in done.stdout.lower()


@pytest.mark.parametrize(
    ("address", "words"),
    thinned(
        [("127.0.0.1:1", "nothing answers at 127.0.0.1:1"), ("nowhere", "is not HOST:PORT")],
        lambda case: case[0] == "nowhere",
    ),
)
def test_an_address_without_a_cluster_ends_with_exit_code_2_and_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: Callable[..., tuple[int, str]], address, words
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge.yaml").write_text(QUADRATIC)
    code, text = command_line("run", "edge.yaml", "--address", address)
    assert code == 2
    assert words in text
    assert "Traceback" not in text


# How each shell hands over the words `sweep status fi`.
ASKED = {
    "bash": {"_SWEEP_COMPLETE": "complete_bash", "COMP_WORDS": "sweep status fi", "COMP_CWORD": "2"},
    "zsh": {"_SWEEP_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "sweep status fi"},
    "fish": {
        "_SWEEP_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": "sweep status fi",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    },
}
CODE = "import sys; from orchestrator.cli import main; sys.argv[0] = 'sweep'; main()"


@pytest.mark.parametrize("shell", thinned(ASKED, "bash".__eq__))
def test_a_shell_gets_the_names_of_sweeps(shell: str, tmp_path: Path) -> None:
    for name in ("fit", "other"):
        with ledger_at(tmp_path / "results" / name) as ledger:
            record(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, env={**os.environ, **ASKED[shell]}, capture_output=True, text=True
    )
    assert "fit" in done.stdout, done.stderr
    assert "other" not in done.stdout
