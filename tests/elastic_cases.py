"""A trainer whose number of processes may change: the recipe, made to wait where a test has something to do."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from fault_kit import assert_sound, losses_and_resizes, run, wait_until, write_sweep

from orchestrator.base.resizes import Resize

ROUNDING = 1e-5  # relative: sums of eight rows in another order, over 400 steps of SGD; 6e-7 was seen
_RECIPES = Path(__file__).parents[1] / "sweeps/trainers/recipes"
_LOOP = "    for step in range(first, steps):\n"
_PACED = """        while os.path.exists("limit") and step >= int(open("limit").read()):
            time.sleep(0.01)
"""


def write_elastic_trainer(folder: Path) -> None:
    """The recipe of an elastic trainer in ``folder``; it waits at the step in the file ``limit``, if there is one."""
    recipe = (_RECIPES / "elastic.py").read_text()
    assert recipe.count(_LOOP) == 1
    paced = recipe.replace(_LOOP, _LOOP + _PACED).replace("import sys\n", "import sys\nimport time\n")
    (folder / "elastic.py").write_text(paced)
    text = (_RECIPES / "elastic.yaml").read_text()
    changes = {"name: elastic": "name: edge", "steps: 80": "steps: 400", "[0.01, 3.0]": "[0.01]"}
    for before, after in changes.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    write_sweep(folder, f"{text}tracking: {{enabled: false}}\n")


def set_limit(folder: Path, step: int) -> None:
    """Let the trainer in ``folder`` train up to ``step``."""
    (folder / "limit.new").write_text(str(step))
    (folder / "limit.new").replace(folder / "limit")


def processes_of(driver: psutil.Process) -> dict[str, psutil.Process]:
    """The trainer's processes below the driver, by rank."""
    found = {}
    for process in driver.children(recursive=True):
        try:
            if "elastic.py" in process.cmdline():
                found[process.environ()["RANK"]] = process
        except (psutil.Error, KeyError):
            continue
    return found


def has_checkpoint(folder: Path) -> bool:
    return bool(list(folder.glob("results/edge/trials/*/checkpoint.pt")))


def advance_until(folder: Path, step: int, is_over: Callable[[], bool]) -> None:
    """Let the trainer go on from ``step``, a step in half a second, so that ``is_over`` comes long before its end."""
    began = time.monotonic()

    def goes_on() -> bool:
        set_limit(folder, step + int(2 * (time.monotonic() - began)))
        return is_over()

    wait_until(goes_on, "change of the number of processes", 120)


def at_its_end(driver: subprocess.Popen, folder: Path) -> tuple[np.ndarray, list[Resize]]:
    """Let the trainer in ``folder`` go on to its end; return its losses and the changes of its processes."""
    (folder / "limit").unlink()
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert_sound(folder)
    return losses_and_resizes(folder)


def undisturbed_losses(folder: Path) -> np.ndarray:
    folder.mkdir()
    write_elastic_trainer(folder)
    code, output = run(folder, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    losses, resizes = losses_and_resizes(folder)
    assert not resizes
    return losses
