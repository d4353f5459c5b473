"""The process that trains one trial with a Python function: `python -m orchestrator.worker.function module:name`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

from orchestrator.detection.watch import TrainingLost, Watch


def main() -> None:
    """Call the function with the trial's values and a ``report`` that raises TrainingLost."""
    module_name, _, name = sys.argv[1].partition(":")
    sys.path.insert(0, os.getcwd())
    watch = Watch(raises=True)
    # The driver sees the same losses and reaches the same verdict.
    with contextlib.suppress(TrainingLost):
        getattr(importlib.import_module(module_name), name)(dict(watch.config), watch.report)


if __name__ == "__main__":
    main()
