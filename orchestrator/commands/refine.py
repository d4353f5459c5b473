"""`sweep refine`: find the edge of a sweep that has been trained more precisely, by a search."""

from __future__ import annotations

from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.commands.run import run
from orchestrator.driver.proposing import refining_sweep
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import check_import


def refine(
    folder: Path,
    along: str | None,
    num_more: int,
    factor: float,
    overrides: Overrides,
    executor: str,
    allow_import: bool,
) -> Answer:
    """Train at most ``num_more`` trials beside those in ``folder``, until the edge is known within ``factor``.

    Raises SweepError.
    """
    sweep = refining_sweep(folder, along, num_more, factor, overrides, allow_import)
    check_import(sweep, allow_import)
    load = executor_loader(executor, ExecutorOptions(folder, sweep.resources, None, ()))
    return (yield from run(sweep, folder.parent, load, False))
