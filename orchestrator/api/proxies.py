"""`sweep init NAME --for ...`: the sweep of small models that predicts the edge of a large one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import conditions
from orchestrator.maps.planned_ladder import PlannedLadder, plan_ladder
from orchestrator.sweepfile.overrides import Overrides

NUM_TRIALS = 60
_SHORTER = 4  # proxies than the target
_RATES = "lr=log:1e-5,1"
_LENGTH = "steps"


def proxies_for(target: str, num_trials: int, changes: Overrides) -> tuple[Overrides, list[str]]:
    """Return the changes of a starter file that make it a sweep of proxies for ``target``, and what to say of it.

    ``target`` is width=4096,depth=32,steps=100000. Raises InputError.
    """
    sizes = _sizes(target)
    steps = sizes.pop(_LENGTH, None)
    if not sizes:
        raise InputError(Problem("--for", target, "names no size besides steps", "write e.g. width=4096,steps=100000"))
    plan = plan_ladder(sizes, num_trials)
    if plan is None:
        remedy = f"name fewer or larger sizes, or raise --trials (now {num_trials})"
        raise InputError(Problem("--for", target, "is too small, or has too many sizes, for a ladder below it", remedy))
    if changes.steps is None and steps is not None:
        changes = replace(changes, steps=max(1, steps // _SHORTER))
    has_rate = any(axis.startswith("lr=") for axis in changes.axes)
    axes = [f"{name}=values:{','.join(map(str, values))}" for name, values in plan.values.items()]
    search = ("search.method=edge", "search.along=lr", f"search.trials={num_trials}")
    changes = replace(
        changes,
        axes=(*([] if has_rate else [_RATES]), *changes.axes, *axes),
        sets=(*search, *changes.sets),
        seeds=changes.seeds or "0",
    )
    return changes, _said(sizes, steps, plan, num_trials, changes)


def _sizes(target: str) -> dict[str, int]:
    sizes = {}
    for name, text in conditions(target.split(","), "--for").items():
        try:
            sizes[name] = int(float(text))
        except (ValueError, OverflowError):
            sizes[name] = 0
        if sizes[name] < 1:
            raise InputError(Problem("--for", f"{name}={text}", "is not a size", "give a positive number"))
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
        f"{num_trials} trials{length}: {per_size}",
        f"cost: about {share:.2g} runs at the target, if a step costs width^2 times the other sizes",
        f"the interval at the target will be a factor {width.at:.2g} wide ({width.low:.2g} to {width.high:.2g} in half "
        "of the laws that were simulated)",
        *notes,
        f"then: `sweep predict NAME {at} --confirm 4`",
    ]
