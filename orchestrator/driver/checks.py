"""Checks before a sweep is planned or run: it can be trained on this machine, and its folder belongs to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.libraries import problem_with
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER
from orchestrator.base.space import Trial
from orchestrator.ledger.reader import LedgerReader, check_not_imported
from orchestrator.sweepfile.custom_trainer import CustomTrainer, check_files_exist
from orchestrator.sweepfile.spec import Sweep


def check_runnable(sweep: Sweep, folder: Path) -> None:
    """Raise InputError if ``sweep`` cannot be trained on this machine, or if ``folder`` belongs to another sweep."""
    check_not_imported(folder)
    check_files_exist(sweep.objective)
    check_optimizers(sweep)
    check_same_axes(sweep, folder)


def library_optimizers(sweep: Sweep, trials: Sequence[Trial]) -> list[str]:
    """Return the library optimizers that ``trials`` name, in order."""
    if isinstance(sweep.objective, CustomTrainer):
        return []
    return [n for n in dict.fromkeys(trial.config["optimizer"] for trial in trials) if n not in OPTIMIZERS]


def check_optimizers(sweep: Sweep) -> None:
    """Raise InputError if a library is not installed, or if its optimizer needs more than gradients."""
    problems = [problem for name in library_optimizers(sweep, sweep.trials) if (problem := problem_with(name))]
    if problems:
        raise InputError(*(Problem("", "optimizer", *problem) for problem in problems))


def check_same_axes(sweep: Sweep, folder: Path) -> None:
    """Raise InputError if ``folder`` holds results over an axis that ``sweep`` lacks.

    The map, report and frozen file of ``sweep`` would replace the other sweep's. A new axis, or other values of
    an axis, extend the existing results.
    """
    if not (folder / LEDGER).is_file():
        return
    with LedgerReader(folder / LEDGER) as ledger:
        if not ledger.version:
            return  # another driver has just created the file
        axes = [axis["name"] for axis in json.loads(ledger.facts().get("axes", "[]"))]
        has_results = any(status == "finished" for status, _ in ledger.statuses().values())
    if has_results and (gone := [name for name in axes if name not in sweep.axis_names]):
        message = f"existing results are over {' and '.join(axes)}, but this sweep has no axis {gone[0]}"
        remedy = f"set --name NEW_NAME, or keep the axis with one value: --axis {gone[0]}=values:VALUE"
        raise InputError(Problem(str(folder), f"axes.{gone[0]}", message, remedy))
