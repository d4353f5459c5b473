"""`sweep init NAME --for ...`: the sweep of small models that predicts the edge of a large one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import conditions
from orchestrator.base.words import count
from orchestrator.detection.relative import is_learning_rate, lr_axis
from orchestrator.maps.law import LARGEST
from orchestrator.maps.planned_ladder import PlannedLadder, plan_ladder
from orchestrator.sweepfile.overrides import Overrides

NUM_TRIALS = 60
_SHORTER = 4  # proxies than the target
_RATE, _RATES = "lr", "log:1e-5,1"
_LENGTH = "steps"


def proxies_for(target: str, num_trials: int, changes: Overrides) -> tuple[Overrides, list[str]]:
    """Return the changes of a starter file that make it a sweep of proxies for ``target``, and what to say about it.

    ``target`` is width=4096,depth=32,steps=100000. Raises InputError.
    """
    sizes = _sizes(target)
    steps = sizes.pop(_LENGTH, None)
    given = dict(axis.split("=", 1) for axis in changes.axes if "=" in axis)
    rate = lr_axis(given) or _RATE
    _check_axes(sizes, given, rate)
    if not sizes:
        raise InputError(Problem("--for", target, "names no size besides steps", "write e.g. width=4096,steps=100000"))
    plan = plan_ladder(sizes, num_trials)
    if plan is None:
        remedy = f"name fewer or larger sizes, or raise --trials (now {num_trials})"
        raise InputError(Problem("--for", target, "is too small, or has too many sizes, for a ladder below it", remedy))
    if changes.steps is None and steps is not None:
        changes = replace(changes, steps=max(1, steps // _SHORTER))
    axes = [f"{name}=values:{','.join(map(str, values))}" for name, values in plan.values.items()]
    search = ("search.method=edge", f"search.along={rate}", f"search.trials={num_trials}")
    changes = replace(
        changes,
        axes=(*([] if rate in given else [f"{rate}={_RATES}"]), *changes.axes, *axes),
        sets=(*search, *changes.sets),
        seeds=changes.seeds or "0",
    )
    return changes, _said(sizes, steps, plan, num_trials, changes)


def _check_axes(sizes: Mapping[str, int], given: Mapping[str, str], rate: str) -> None:
    """Refuse a rate as a size, axes that are sizes already, and rates that leave nothing to search."""
    for name in sizes:
        if is_learning_rate(name):
            raise InputError(Problem("--for", name, "is a rate, not a size", "name sizes: width=4096,depth=32"))
        if name in given:
            raise InputError(Problem("--axis", name, "is a size of --for, which chooses its values", "leave it out"))
    scale, _, ends = given.get(rate, _RATES).partition(":")
    if scale == "values" or ends.count(",") != 1:
        raise InputError(Problem("--axis", rate, "is searched, so it needs a range", f"write {rate}={_RATES}"))


def _sizes(target: str) -> dict[str, int]:
    sizes = {}
    for name, text in conditions(target.split(","), "--for").items():
        try:
            size = float(text)
        except ValueError:
            size = 0.0
        if not (1 <= size <= LARGEST and size.is_integer()):
            raise InputError(Problem("--for", f"{name}={text}", "is not a size", "give a whole number from 1 to 1e15"))
        sizes[name] = int(size)
    return sizes


def _said(
    sizes: Mapping[str, int], steps: int | None, plan: PlannedLadder, num_trials: int, changes: Overrides
) -> list[str]:
    """What the proxies cost, how wide the interval will be, and what asks for the prediction."""
    per_size = ", ".join(f"{name} {' '.join(map(str, values))}" for name, values in plan.values.items())
    length = "" if changes.steps is None else f" of {changes.steps:,} steps"
    share = plan.cost if steps is None or changes.steps is None else plan.cost * changes.steps / steps
    at = " ".join(f"--at {name}={value}" for name, value in sizes.items())
    width = plan.width
    notes = []
    if steps is not None and changes.steps is not None and changes.steps < steps:
        notes = [
            f"the edge will be that of {changes.steps:,} steps; at a constant rate it falls with more, and `--at "
            f"steps={steps}` says how far"
        ]
    return [
        f"{count(num_trials, 'trial')}{length}: {per_size}",
        f"cost: about {share:.2g} runs at the target, if a step costs width^2 times the other sizes",
        f"the interval at the target will be a factor {width.at:.2g} wide ({width.low:.2g} to {width.high:.2g} in half "
        "of the laws that were simulated)",
        *notes,
        f"then: `sweep predict NAME {at} --confirm 4`",
    ]
