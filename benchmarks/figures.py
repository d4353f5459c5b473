"""From raw measurements to medians, ratios and tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.arms import OURS, best_eager
from benchmarks.sizes import COMPARED, flops_per_member_step

RATIOS = (
    "main_vs_ray_default",
    "main_vs_ray_reuse_actors",
    *(f"{size.name}_vs_best_eager" for size in COMPARED),
)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(speeds: Mapping[str, Mapping[str, float]], main_s: Mapping[str, float]) -> dict[str, float | None]:
    """Ours over theirs, more is better; None where one of the two was not measured.

    ``speeds`` are median member-steps per second by size and arm, ``main_s`` median seconds of the main
    sweep by arm.
    """
    found: dict[str, float | None] = dict.fromkeys(RATIOS)
    for arm in ("ray default", "ray reuse_actors"):
        if OURS in main_s and arm in main_s:
            found[f"main_vs_{arm.replace(' ', '_')}"] = main_s[arm] / main_s[OURS]
    for size, medians in speeds.items():
        theirs = best_eager(medians)
        if OURS in medians and theirs:
            found[f"{size}_vs_best_eager"] = medians[OURS] / theirs
    return found


def shares_of_peak(speeds: Mapping[str, Mapping[str, float]], peak: float) -> dict[str, dict[str, float]]:
    """Fraction of the measured peak that the matrix products of each arm reach, by size."""
    flops = {size.name: flops_per_member_step(size) for size in COMPARED}
    return {
        size: {arm: speed * flops[size] / peak for arm, speed in medians.items()} for size, medians in speeds.items()
    }


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print all measurements as tables."""
    for size, arms in result["throughput"].items():
        table = Table("arm", "median", "min", "max", "to best eager", "of peak", "start, s", title=f"{size}: {_UNIT}")
        theirs = best_eager({name: arm["speed"]["median"] for name, arm in arms.items() if "speed" in arm})
        for name, arm in arms.items():
            if "error" in arm:
                table.add_row(name, arm["error"])
                continue
            speed, share = arm["speed"], result["share_of_peak"].get(size, {}).get(name)
            table.add_row(
                name,
                *(f"{speed[key]:,.1f}" for key in ("median", "min", "max")),
                f"{speed['median'] / theirs:.2f}" if theirs else "",
                f"{share:.1%}" if share else "",
                f"{arm['start_s']:.1f}",
            )
        console.print(table)
    for title, sweeps in (("main sweep", result["main"]), *result["cost_curve"].items()):
        if sweeps:
            console.print(_sweep_table(title, sweeps))
    table = Table("ratio, ours over theirs", "", title="more is better")
    for name, value in result["ratios"].items():
        table.add_row(name, "not run" if value is None else f"{value:.2f}")
    console.print(table)


_UNIT = "member-steps per second of both processes"


def _sweep_table(title: str, arms: Mapping[str, Any]) -> Table:
    times = ("wall, s", "min", "max", "CPU, s", "first step, s", "first cell, s")
    table = Table("arm", *times, "trials", "member-steps", "losses differ by", title=title)
    for name, arm in arms.items():
        if "error" in arm:
            table.add_row(name, arm["error"])
            continue
        last, wall = arm["runs"][-1], arm["wall_s"]
        first_step = last["first_step_s"]
        differ = arm.get("largest_difference")
        table.add_row(
            name,
            *(f"{wall[key]:.1f}" for key in ("median", "min", "max")),
            f"{last['cpu_s']:.1f}",
            "" if first_step is None else f"{first_step:.1f}",
            f"{last['first_cell_s']:.1f}",
            str(last["trials"]),
            f"{last['member_steps']:,}",
            "" if differ is None else f"{differ:.1e}",
        )
    return table
