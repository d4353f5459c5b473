"""Training at the target of a prediction, in sweeps of its own: a short run first, then runs near the edge."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.answers._forks import ProgressLines
from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.query import Say
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.driver.planning import check_runnable
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.ledger.facts import imported_of, trainer_facts
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.confirmation import SHORT
from orchestrator.maps.edges import StableRule
from orchestrator.maps.lengths import STEPS
from orchestrator.maps.prediction import Prediction, confirmed
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.sweepfile.custom_trainer import takes_steps
from orchestrator.sweepfile.overrides import at_cell
from orchestrator.sweepfile.sections import NAME_PATTERN
from orchestrator.sweepfile.spec import build_sweep, check_import, load_sections
from orchestrator.sweepfile.strict_yaml import read_document

_NEXT_RATE = 1.03  # from a rate that was tried to the next, if the median has not moved


@dataclass(frozen=True, slots=True)
class Confirming:
    """The sweeps at the target of a prediction from ``table``, and how they are trained."""

    table: SweepTable
    rule: StableRule
    executor: str = "inline"
    allow_import: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the sweep that predicts."""
        return self.table.ledger.path.parent

    def updated(self, found: Prediction) -> Prediction:
        """Return the prediction with what the runs at the target say, if there are any."""
        trials = [*self._trials(self._folder(found, is_short=True), found)]
        trials += self._trials(self._folder(found), found)
        return confirmed(found, trials, self.rule) if trials else found

    def folders(self, found: Prediction) -> tuple[Path, ...]:
        """The folders of the runs at the target."""
        both = self._folder(found, is_short=True), self._folder(found)
        return tuple(folder for folder in both if (folder / LEDGER).is_file())

    def train(self, found: Prediction, num: int, say: Say) -> tuple[Prediction, int]:
        """Train a short run, and ``num`` whole ones, each where the edge is as likely below as above.

        Ends as soon as the target is not as on the ladder. Returns the prediction after them, and the exit code. Runs
        that were trained before are not trained again. Raises InputError for what cannot be trained.
        """
        cell = self._cell(found)
        short, code = self._short_steps(found), EXIT_OK
        if short is not None:
            folder = self._folder(found, is_short=True)
            rates = self._rates(folder, found) or [_rounded(found.law_target().quantile(0.025))]
            code = self._run(folder, found, cell, rates, short, say)
        after, folder = self.updated(found), self._folder(found)
        whole = int(found.target[STEPS]) if STEPS in found.target else None
        num_before = -1
        while code == EXIT_OK and not after.is_void and num_before < (num_done := self._num_done(folder, found)) < num:
            num_before, rates = num_done, self._rates(folder, found)
            if len(rates) <= num_done:
                rates = [*rates, _untried(after.target_edge().quantile(0.5), rates)]
            code = self._run(folder, found, cell, rates, whole, say)
            after = self.updated(found)
        return after, code

    def _run(
        self, folder: Path, found: Prediction, cell: Mapping[str, Any], rates: list[float], steps: int | None, say: Say
    ) -> int:
        document = read_document(self.folder / FROZEN_SWEEP)
        seed = min(trial.seed for trial in self.table.trials)
        document = at_cell(document, folder.name, cell, found.along, rates, seed, steps)
        document.comment = f"# Does what {found.sweep} predicts hold at {found.target_name}?\n"
        sweep = build_sweep(document, allow_import=self.allow_import)
        check_import(sweep, self.allow_import)
        check_runnable(sweep, folder)
        make = executor_loader(self.executor, ExecutorOptions(folder, sweep.resources))()
        what = f"{folder.name}, {sweep.steps} steps at {found.along} {format_value(rates[-1])}: "
        summary = run_sweep(sweep, folder, make, [ProgressLines(say, what)], retry_errored=True)
        return summary.exit_code

    def _cell(self, found: Prediction) -> dict[str, Any]:
        """The values of all axes but the rate at the target. Raises InputError where one is not known."""
        if imported_of(self.table.facts) is not None:
            message = "the results are imported: no sweep file says how to train"
            remedy = "train runs at the target yourself, and import them with `sweep import`"
            raise InputError(Problem("--confirm", self.table.name, message, remedy))
        cell: dict[str, Any] = {}
        for axis in self.table.axes:
            if axis.name in (found.along, STEPS):
                continue
            values = list(dict.fromkeys(trial.cell.get(axis.name) for trial in self.table.trials))
            if axis.name in found.target:
                cell[axis.name] = found.target[axis.name]
            elif len(values) > 1:
                remedy = f"give the target's value: --at {axis.name}=VALUE"
                message = "advances with another axis, and its value at the target is not known"
                raise InputError(Problem("--confirm", axis.name, message, remedy))
            elif values and (values[0] is not None or not axis.when):
                cell[axis.name] = values[0]
        return cell

    def _short_steps(self, found: Prediction) -> int | None:
        """The length of the first run; None if the trainer cannot be shortened, or its runs are as short."""
        trial = found.ladder.sizes[0].runs[0]
        warmup = {**trainer_facts(self.table.facts), **trial.config}.get("warmup") or 0
        steps = SHORT + (warmup if isinstance(warmup, int) else 0)
        return steps if takes_steps(trial.config) and steps < trial.steps else None

    def _folder(self, found: Prediction, *, is_short: bool = False) -> Path:
        """A sweep for each target: NAME_confirm_width128, and NAME_confirm_width128_start for its short run."""
        settings = {**self.table.fixed, **found.target}
        texts = (f"{axis}{format_value(value)}" for axis, value in settings.items())
        target = "_".join(re.sub(r"[^a-z0-9_-]", "", text.lower().replace(".", "p")) for text in texts)
        name, end = f"{self.folder.name}_confirm_{target}", "_start" if is_short else ""
        if not re.match(NAME_PATTERN, name + "_start"):
            name = f"{self.folder.name[:32]}_confirm_{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        return self.folder.parent / (name + end)

    def _trials(self, folder: Path, found: Prediction) -> list[TrialResult]:
        """The trials there that have an outcome, by ascending rate."""
        if not (folder / LEDGER).is_file():
            return []
        with LedgerReader(folder / LEDGER) as ledger:
            trials = read_table(ledger).runs
        sizes = {name: value for name, value in found.target.items() if name in self._axes}
        here = [trial for trial in trials if trial.outcome is not None and sizes.items() <= trial.cell.items()]
        return sorted(here, key=lambda trial: trial.cell[found.along])

    @property
    def _axes(self) -> set[str]:
        return {axis.name for axis in self.table.axes}

    def _num_done(self, folder: Path, found: Prediction) -> int:
        return len(self._trials(folder, found))

    def _rates(self, folder: Path, found: Prediction) -> list[float]:
        """The rates that are planned there."""
        if not (folder / FROZEN_SWEEP).is_file():
            return []
        return list(load_sections(folder / FROZEN_SWEEP).axes[found.along].values or ())


def _rounded(log_rate: float) -> float:
    return float(f"{math.exp(log_rate):.3g}")


def _untried(log_rate: float, rates: list[float]) -> float:
    rate = _rounded(log_rate)
    while rate in rates:
        rate = _rounded(math.log(rate * _NEXT_RATE))
    return rate
