"""`--executor auto`: train in this process what would be over before Ray has started."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from orchestrator.driver.planning import Plan, plan_of
from orchestrator.executors import INLINE
from orchestrator.sweepfile.spec import Sweep

AUTO = "auto"
RAY_START_S = 4.0  # beyond the start of a run in this process, with its workers; `python benchmarks/starts.py`


def chosen_executor(sweep: Sweep, results: Path, address: str | None) -> tuple[str, str]:
    """Return the executor that ends ``sweep`` sooner, inline or Ray, and one line that says why.

    ``address`` is a running Ray cluster, which needs no start. Raises InputError for a sweep that cannot run here.
    """
    if address is not None:
        return "ray", "executor: ray, which runs already"
    if sweep.resources.most_workers > 1:
        return "ray", "executor: ray, since a trial has several processes"
    if importlib.util.find_spec("ray") is None:
        return INLINE, "executor: inline, since Ray is not installed"
    seconds = seconds_in_one_process(plan_of(sweep, results))
    if seconds is None:
        return "ray", "executor: ray, since the speed of this sweep is not measured here yet"
    if seconds < RAY_START_S:
        return INLINE, f"executor: inline, since {seconds:.1f} s of training are over before Ray has started"
    return "ray", f"executor: ray, since training takes up to {seconds:.0f} s in one process"


def seconds_in_one_process(plan: Plan) -> float | None:
    """Return how long a plan takes at most, one pack after the other; None if its speed is unknown."""
    if not plan.member_steps:
        return 0.0
    return None if plan.member_steps_per_second is None else plan.member_steps / plan.member_steps_per_second
