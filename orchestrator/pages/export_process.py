"""The exports at the end of a run, in a process that imports what they need while workers train.

It has a core of its own, while the driver writes the last trials to trackers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path

from orchestrator.base.environment import OWN_PYTHON
from orchestrator.base.files import check_in_place

_IMPORTED = (
    "orchestrator.render.maps",
    "orchestrator.pages.report",
    "matplotlib.backends.backend_agg",
    "scipy.stats",
    "sklearn.ensemble",
    "optuna.importance",
)


class ExportProcess:
    """The files of the sweep in ``folder``: its map, trials, picture and report."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

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

    def finish(self) -> list[Path]:
        """Write the files unless they are current, and return their paths."""
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError):
                written, _ = self._process.communicate("export\n")
                if self._process.returncode == 0:
                    return [Path(path) for path in json.loads(written)]
        return _exported(self._folder)  # raises its errors here


def import_all() -> None:
    """Import what the exports need; an error is left to whoever imports for use."""
    for name in _IMPORTED:
        with contextlib.suppress(Exception):  # an extra may be missing: the report then leaves something out
            importlib.import_module(name)


def _exported(folder: Path) -> list[Path]:
    from orchestrator.pages.report import are_current, existing_exports, export_all

    check_in_place(folder)
    return existing_exports(folder) if are_current(folder) else export_all(folder)


def main() -> None:
    """Import, wait for a line, and print the paths of the files that were written; do nothing without a line."""
    import_all()
    if sys.stdin.readline():
        print(json.dumps([str(path) for path in _exported(Path(sys.argv[1]))]))


if __name__ == "__main__":
    main()
