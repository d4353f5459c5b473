"""sweep compared to a user's alternatives, in one run on this machine: `python benchmarks/throughput.py`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

# From a checkout, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml

from benchmarks import arms, end_to_end, figures, sizes, sweep_files
from benchmarks.crew import WORKERS, CrewFailed, interleaved, rotated
from benchmarks.machine import MALLOC, machine_facts, measured_peak
from orchestrator.base.files import atomic_write
from orchestrator.sweepfile.spec import load_sweep

_MAIN_SWEEP = end_to_end.ROOT / "sweeps" / "short_memory.yaml"
_CURVE_ARMS = (end_to_end.OURS, "ray reuse_actors")
_CURVE_SIZE = sizes.SIZES[1]
_CURVE_STEPS = 300
# Learning rates and beta2 of the cost curve, by number of trials.
_CURVE_CELLS = {16: (4, 4), 64: (8, 8), 256: (16, 16), 1024: (32, 32)}
_SIZE_NAMES = tuple(size.name for size in sizes.COMPARED)
_PARTS = (*_SIZE_NAMES, "main", "curve")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Measure sweep beside what a user would pick instead, in one run, interleaved.",
        epilog="Every arm has two single-threaded processes and the same settings of malloc. Exit code 1 when an"
        " arm failed or its first losses are not those of sweep.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--quick", action="store_true", help="short windows, one round, few trials: to try it out")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="NAME", help=", ".join(_PARTS))
    parser.add_argument("--arms", nargs="+", choices=arms.ARMS, default=arms.ARMS, metavar="ARM",
                        help=f"arms of the models: {', '.join(arms.ARMS)}")  # fmt: skip
    parser.add_argument("--sweep-arms", nargs="+", choices=end_to_end.ARMS, default=end_to_end.ARMS, metavar="ARM",
                        help=f"arms of the whole sweeps: {', '.join(end_to_end.ARMS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, help="rounds over the arms of a size; 3, or 1 with --quick")
    parser.add_argument("--seconds", type=float, help="length of one measurement; 4, or 1 with --quick")
    parser.add_argument("--main-trials", type=int, metavar="N", help="at most N trials of the main sweep, of all arms")
    parser.add_argument("--main-rounds", type=int, default=1, metavar="N", help="rounds of the main sweep; default 1")
    parser.add_argument("--long", action="store_true", help="the cost curve up to 1,024 trials")
    chosen = parser.parse_args(words)
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 3)
    chosen.seconds = chosen.seconds or (1.0 if chosen.quick else 4.0)
    if chosen.main_trials is None and chosen.quick:
        chosen.main_trials = 6
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    chosen = parse(words)
    os.environ.update(MALLOC)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        # No earlier run helps: probing and compiling count in the column `start`.
        os.environ.update(SWEEP_CACHE=folder, TORCHINDUCTOR_CACHE_DIR=str(Path(folder) / "inductor"))
        result = measure(chosen, Path(folder))
    from rich.console import Console

    figures.show(result, Console(width=None if sys.stdout.isatty() else 150))
    if chosen.json:
        atomic_write(chosen.json, json.dumps(result, indent=1) + "\n")
        say(f"wrote {chosen.json}")
    for line in result["failures"]:
        say(f"FAILED: {line}")
    return 1 if result["failures"] else 0


def measure(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All measurements requested on the command line, raw and as ratios."""
    failures: list[str] = []
    began, machine = time.time(), machine_facts()
    chosen_sizes = [size for size in sizes.COMPARED if size.name in chosen.only]
    peak = {}
    if chosen_sizes:
        say("measuring the peak of matrix products")
        peak = measured_peak(chosen.seconds)
    throughput = {size.name: compare_steps(size, chosen, failures) for size in chosen_sizes}
    main_sweep, curve = {}, {}
    if "main" in chosen.only:
        main_sweep = compare_sweeps(main_file(chosen, folder), chosen.sweep_arms, chosen.main_rounds, failures)
    if "curve" in chosen.only:
        curve = cost_curve(chosen, folder, failures)
    speeds = {
        size: {name: arm["speed"]["median"] for name, arm in found.items() if "speed" in arm}
        for size, found in throughput.items()
    }
    main_s = {name: arm["wall_s"]["median"] for name, arm in main_sweep.items() if "runs" in arm}
    best_peak = max((value for value in peak.values() if value), default=None)
    return {
        "machine": machine,
        "settings": {
            "quick": chosen.quick,
            "rounds": chosen.rounds,
            "seconds": chosen.seconds,
            "main_trials": chosen.main_trials,
            "main_rounds": chosen.main_rounds,
            "workers": WORKERS,
            "vmap_members": arms.VMAP_MEMBERS,
            "malloc": MALLOC,
            "sizes": {size.name: asdict(size) for size in sizes.COMPARED},
            "flops_per_member_step": {size.name: sizes.flops_per_member_step(size) for size in sizes.COMPARED},
            "took_s": round(time.time() - began),
        },
        "peak_flops_per_second": peak,
        "throughput": throughput,
        "share_of_peak": figures.shares_of_peak(speeds, best_peak) if best_peak else {},
        "main": main_sweep,
        "cost_curve": curve,
        "ratios": figures.ratios(speeds, main_s),
        "failures": failures,
    }


def compare_steps(size: sizes.Size, chosen: argparse.Namespace, failures: list[str]) -> dict[str, Any]:
    """Member-steps per second of each arm at one size, in interleaved rounds."""
    crews, found = {}, {}
    say(f"{size.name}: starting {len(chosen.arms)} arms")
    try:
        for name in chosen.arms:
            try:
                crews[name] = arms.start_arm(name, size)
            except CrewFailed as error:
                found[name] = {"error": str(error)}
                failures.append(f"{size.name}, {name}: {error}")
                continue
            say(f"  {name}: started in {crews[name].start_seconds:.1f} s")
        windows = interleaved(crews, chosen.rounds, chosen.seconds, say)
    finally:
        for crew in crews.values():
            crew.close()
    for name, crew in crews.items():
        speeds = [window["member_steps_per_second"] for window in windows[name]]
        found[name] = {
            "speed": figures.spread(speeds),
            "start_s": crew.start_seconds,
            "notes": [note for note in crew.notes if note],
            "windows": windows[name],
        }
    return {name: found[name] for name in chosen.arms}


def compare_sweeps(path: Path, names: Sequence[str], rounds: int, failures: list[str]) -> dict[str, Any]:
    """Wall time of one sweep in each arm, and the difference of its first losses from ours."""
    num_trials = len(load_sweep(path).trials)
    say(f"{path.stem}: {num_trials} trials from start to end")
    runs: dict[str, list[end_to_end.Run]] = {name: [] for name in names}
    errors: dict[str, str] = {}
    for i in range(rounds):
        for name in rotated(list(names), i):
            try:
                runs[name].append(end_to_end.run_arm(name, path))
            except end_to_end.RunFailed as error:
                say(f"  {name}: {error}")
                errors[name] = str(error).splitlines()[0]  # the rest has this machine's paths
                continue
            say(f"  round {i + 1}/{rounds}  {name:<42} {runs[name][-1].wall_s:8.1f} s")
    reference = runs.get(end_to_end.OURS)
    found: dict[str, Any] = {}
    for name in names:
        if name in errors:
            failures.append(f"{path.stem}, {name}: {errors[name]}")
            found[name] = {"error": errors[name]}
            continue
        wall_s = figures.spread([run.wall_s for run in runs[name]])
        found[name] = {"wall_s": wall_s, "runs": [run.summary() for run in runs[name]]}
        if any(len(run.curves) != num_trials for run in runs[name]):
            failures.append(f"{path.stem}, {name}: it did not train all {num_trials} trials")
        if reference and name != end_to_end.OURS:
            differ = max(end_to_end.largest_difference(reference[0], run) for run in runs[name])
            found[name]["largest_difference"] = differ if math.isfinite(differ) else None  # JSON has no infinity
            if differ > end_to_end.LOSS_TOLERANCE:
                failures.append(f"{path.stem}, {name}: its first losses differ from ours by {differ:.1e}")
    return found


def main_file(chosen: argparse.Namespace, folder: Path) -> Path:
    """The shipped sweep whose trials all run on alike, or a thinned copy of it."""
    sweep = load_sweep(_MAIN_SWEEP)
    if chosen.main_trials is None or chosen.main_trials >= len(sweep.trials):
        return _MAIN_SWEEP
    document = yaml.safe_load(sweep.text)
    values = {axis.name: axis.values for axis in sweep.axes}
    path = folder / "main_thinned.yaml"
    path.write_text(sweep_files.thinned_text(document, values, chosen.main_trials))
    return path


def cost_curve(chosen: argparse.Namespace, folder: Path, failures: list[str]) -> dict[str, Any]:
    """Wall time over the number of trials, for sweep and Ray Tune's faster mode."""
    largest = 16 if chosen.quick else 1024 if chosen.long else 256
    found = {}
    for num_trials, cells in _CURVE_CELLS.items():
        if num_trials <= largest:
            path = folder / f"curve_{num_trials}.yaml"
            steps = 50 if chosen.quick else _CURVE_STEPS
            path.write_text(sweep_files.grid_text(path.stem, _CURVE_SIZE.fields, steps, cells, seeds=[0]))
            found[f"{num_trials} trials"] = compare_sweeps(path, _CURVE_ARMS, 1, failures)
    return found


def say(text: str) -> None:
    """Print a progress message immediately."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
