"""Train one trial with a Python function: `python -m orchestrator.worker.function module:name`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any

from objectives.action import Action
from orchestrator.base.environment import clash_remedy
from orchestrator.detection.watch import TrainingLost, Watch


class Reporter:
    """The ``report`` of a function: call it with a step, its loss and other numbers. Raises TrainingLost.

    ``watch`` has more, such as ``report.watch.telemetry(model, optimizer, closure)``.
    """

    __slots__ = ("watch",)

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def __call__(self, step: int, loss: Any, grad_norm: Any = None, **metrics: Any) -> Action:
        """Call ``Watch.report``."""
        return self.watch.report(step, loss, grad_norm, **metrics)


def main() -> None:
    """Call the function with the trial's values and its ``report``."""
    module_name, _, name = sys.argv[1].partition(":")
    sys.path.insert(0, os.getcwd())
    watch = Watch(raises=True)
    try:
        function = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        if (remedy := clash_remedy(error)) is None:
            raise
        raise ImportError(f"{error}: {remedy}") from None
    # The worker sees the same losses and reaches the same verdict.
    with contextlib.suppress(TrainingLost):
        function(dict(watch.config), Reporter(watch))


if __name__ == "__main__":
    # Processes that the function spawns import the main module by name, which a package of the user may have.
    del sys.modules["__main__"].__file__
    sys.modules["__main__"].__spec__ = None
    main()
