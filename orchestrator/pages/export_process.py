"""The exports at the end of a run, in a process that imports what they need while workers train.

It has a core of its own, and begins when the last result is in the ledger, while workers end and the driver writes the
last trials to trackers. It also finds what trackers show of causes, which takes the same libraries.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.answers import names
from orchestrator.base.environment import OWN_PYTHON, collect_rarely
from orchestrator.base.files import check_in_place
from orchestrator.mirrors.tracker import SweepAnswer, TrialAnswer

_IMPORTED = (
    "orchestrator.render.maps",
    "orchestrator.render.small_maps",
    "orchestrator.pages.report",
    "orchestrator.causes.advice",
    "orchestrator.causes.proofs.training",
    "objectives.models.origins",
    "matplotlib.backends.backend_agg",
    "scipy.stats",
    "sklearn.ensemble",
    "optuna.importance",
    "orchestrator.answers._tracked",
    # What answers import when they are asked.
    "orchestrator.answers._rows",
    "orchestrator.maps.audit",
    "orchestrator.maps.energy",
    "orchestrator.maps.lifetimes",
    "orchestrator.maps.prediction",
    "orchestrator.maps.sensitivity",
    "orchestrator.search.ped_anova",
)
_WITH_ANSWERS = "export and answer"


class ExportProcess:
    """The files of the sweep in ``folder``: its map, trials, picture and report. An observer of the run."""

    def __init__(self, folder: Path, *, with_answers: bool = False) -> None:
        """``with_answers`` finds answers for trackers after training."""
        self._folder, self._with_answers = folder, with_answers
        self._process: subprocess.Popen[str] | None = None
        self._is_asked = False

    def start(self) -> None:
        """Start the process, which ends with this one."""
        command = [*OWN_PYTHON, "-m", "orchestrator.pages.export_process", str(self._folder)]
        with contextlib.suppress(OSError):  # short of memory or processes: the driver then does it itself
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C in the terminal goes to the driver
            )

    def began(self, progress: Any) -> None:
        """Do nothing: workers still start."""

    def changed(self, progress: Any, finished: Sequence[Any]) -> None:
        """Do nothing: the files need all results."""

    def ended(self, progress: Any) -> None:
        """Let the process begin, unless the run ends with an error."""
        if progress.error is None:
            self._ask(with_answers=self._with_answers)

    def finish(self, *, with_answers: bool = False) -> tuple[list[Path], list[TrialAnswer | SweepAnswer]]:
        """Write the files unless they are current; return their paths and, if asked, the answers for trackers."""
        self._ask(with_answers=with_answers)
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError):
                written, _ = self._process.communicate()
                if self._process.returncode == 0:
                    paths, answers = json.loads(written)
                    return [Path(path) for path in paths], pickle.loads(bytes.fromhex(answers))
        written_here = _exported(self._folder)  # raises its errors here
        return written_here, _answers(self._folder) if with_answers else []

    def _ask(self, *, with_answers: bool) -> None:
        """Ask the process, if there is one, the first time."""
        if self._process is None or self._process.stdin is None or self._is_asked:
            return
        self._is_asked = True
        with contextlib.suppress(OSError):  # it has died
            self._process.stdin.write(f"{_WITH_ANSWERS if with_answers else 'export'}\n")
            self._process.stdin.flush()


def import_all() -> None:
    """Import what the exports need; an error is left to whoever imports for use."""
    for name in (*_IMPORTED, *(f"orchestrator.answers.{name}" for name in names())):
        with contextlib.suppress(Exception):  # an extra may be missing: the report then leaves something out
            importlib.import_module(name)


def _exported(folder: Path, *, in_parallel: bool = False) -> list[Path]:
    from orchestrator.pages.report import are_current, existing_exports, export_all

    check_in_place(folder)
    return existing_exports(folder) if are_current(folder) else export_all(folder, in_parallel=in_parallel)


def _answers(folder: Path) -> list[TrialAnswer | SweepAnswer]:
    from orchestrator.answers._tracked import tracked_answers

    return tracked_answers(folder)


def main() -> None:
    """Import, wait for a line, write files, and print their paths and the answers; do nothing without a line."""
    collect_rarely()
    import_all()
    if line := sys.stdin.readline():
        folder = Path(sys.argv[1])
        paths = [str(path) for path in _exported(folder, in_parallel=True)]
        answers = _answers(folder) if line.strip() == _WITH_ANSWERS else []
        print(json.dumps([paths, pickle.dumps(answers).hex()]))


if __name__ == "__main__":
    main()
