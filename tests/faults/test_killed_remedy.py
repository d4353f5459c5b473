"""SIGKILL while forks train: the same command goes on, and gives the answer of a run that nobody disturbed."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path

import pytest
from fault_kit import DRIVERS, LONGER, command, run, write_sweep

KILLS = 4
LR, AS_JSON = ("--try", "lr=x0.5,x0.25"), ("--json", "answer.json")
ASKED = ("remedy", "edge", "--fork", "0", *LR, "--try", "skip=5", "--replicates", "4", *AS_JSON)
OF_EACH_CELL = ("remedies", "edge", "--fork", "onset", *LR, "--replicates", "2", *AS_JSON)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [ASKED, OF_EACH_CELL], ids=["one trial", "each cell"])
def test_forks_that_are_killed_at_random_moments_give_the_same_answer(folder: Path, asked: tuple[str, ...]) -> None:
    write_sweep(folder, LONGER)
    code, output = run(folder, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    moments, killed = random.Random(0), 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            command(*asked), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        DRIVERS.append(process)
        time.sleep(moments.uniform(1.0, 5.0))
        process.kill()
        process.communicate()
        killed += process.returncode < 0
    code, output = run(folder, *asked)
    assert code == 0, output
    assert killed > 0, "no kill came before the end"
    disturbed = json.loads((folder / "answer.json").read_text())
    (folder / "results" / "edge" / "remedies").rename(folder / "elsewhere")
    code, output = run(folder, *asked)
    assert code == 0, output
    assert json.loads((folder / "answer.json").read_text()) == disturbed
    for answer in disturbed.get("cells", [disturbed]):
        assert answer["control_repeats"] is True
        assert answer["num_missing"] == 0
