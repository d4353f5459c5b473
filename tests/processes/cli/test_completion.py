"""What a shell gets when it asks for completions, by the protocol of each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_cases import ledger_at, record, sweep_of

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


@pytest.mark.parametrize("shell", ASKED)
def test_a_shell_gets_the_names_of_sweeps(shell: str, tmp_path: Path) -> None:
    for name in ("fit", "other"):
        with ledger_at(tmp_path / "results" / name) as ledger:
            record(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, env={**os.environ, **ASKED[shell]}, capture_output=True, text=True
    )
    assert "fit" in done.stdout, done.stderr
    assert "other" not in done.stdout
