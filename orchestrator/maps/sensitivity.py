"""Learning-rate sensitivity: what a wrong learning rate costs, per setting of the other axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Cell, format_value, is_ordered
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.axes import existing
from orchestrator.maps.table import SweepTable, usual_loss


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Learning-rate sensitivity of one setting, one number per seed, in units of the loss.

    ``best`` is the learning rate of lowest median loss. ``loss`` names the loss that was used: the validation loss, or
    the final training loss where a sweep has none. Seeds without a result, or without any finite loss, at some learning
    rate are left out.
    """

    setting: Cell
    of_seed: Mapping[int, float]
    best: float | None
    num_values: int
    low: float
    high: float
    loss: str

    @property
    def value(self) -> float | None:
        """The median over seeds, None without a complete seed."""
        return median(self.of_seed.values()) if self.of_seed else None


def lr_sensitivity(
    table: SweepTable, axis: str = "lr", between: tuple[float, float] | None = None
) -> list[Sensitivity]:
    """E over the tried learning rates of min(l(lr), l0) - l*, for every setting of the other axes.

    l is the final loss, l* its minimum over the learning rates and l0 the loss at initialisation, so that a diverged
    run costs as much as one that never trained (Wortsman et al. 2023, arXiv 2309.14322, section 2). The expectation is
    the mean over the tried values: on a log axis, uniform in log lr. ``between`` are the ends of a range outside of
    which no value counts, also for the minimum. Raises InputError when the sweep has no such axis with two numbers, or
    the range has fewer.
    """
    axes = {each.name: each for each in table.axes}
    values = existing(axes[axis], axes[axis].values) if axis in axes else ()
    if len(values) < 2 or not is_ordered(values) or None in values:
        remedy = f"axes: {', '.join(axes) or 'none'}"
        raise InputError(Problem(table.name, "", f"{axis!r} is no axis of two numbers or more", remedy))
    values = _within(values, between, axis)
    finished = [trial for trial in table.trials if trial.is_judged and trial.cell[axis] in values]
    along = {axis, *axes[axis].zipped}
    loss = usual_loss(finished)
    settings: dict[Cell, dict[int, dict[Any, TrialResult]]] = {}
    for trial in finished:
        of_setting = settings.setdefault(trial.cell.without(along), {})
        of_setting.setdefault(trial.seed, {})[trial.cell[axis]] = trial
    return [_of_setting(setting, by_seed, values, loss) for setting, by_seed in settings.items()]


def _within(values: Sequence[float], between: tuple[float, float] | None, axis: str) -> tuple[float, ...]:
    """The values in the range; all without one."""
    if between is None:
        return tuple(values)
    found = tuple(value for value in values if between[0] <= value <= between[1])
    if len(found) < 2:
        what = f"{len(found)} of the tried values of {axis} lie in it, and two are needed"
        tried = f"tried: {format_value(values[0])} to {format_value(values[-1])}"
        raise InputError(Problem(f"--range {range_text(between)}", "", what, tried))
    return found


def range_text(between: tuple[float, float]) -> str:
    """A range as it is written on the command line."""
    return ":".join(map(format_value, between))


def _of_setting(
    setting: Cell,
    by_seed: Mapping[int, Mapping[Any, TrialResult]],
    values: Sequence[float],
    loss: str,
) -> Sensitivity:
    losses_of = {
        seed: [capped_loss(by_value[value], loss) if value in by_value else None for value in values]
        for seed, by_value in sorted(by_seed.items())
    }
    known_of = {seed: [loss for loss in losses if loss is not None] for seed, losses in losses_of.items()}
    complete = {seed: losses for seed, losses in known_of.items() if len(losses) == len(values)}
    of_seed = {seed: math.fsum(losses) / len(losses) - min(losses) for seed, losses in complete.items()}
    middle = [median(losses) for losses in zip(*complete.values(), strict=True)]
    best = values[middle.index(min(middle))] if middle else None
    return Sensitivity(setting, of_seed, best, len(values), min(values), max(values), loss)


def capped_loss(trial: TrialResult, loss: str) -> float | None:
    """The final loss, at most the loss at initialisation, which also replaces a loss that is not finite.

    None if neither is finite: such a run has no loss to compare.
    """
    found = getattr(trial, loss) if getattr(trial, loss) is not None else trial.final_loss
    known = [one for one in (found, trial.initial_loss) if one is not None]
    return min(known, default=None)
