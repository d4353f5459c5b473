"""Packs compared to one-member trainers on one GPU: `python benchmarks/gpu.py`. Needs torch and no Ray."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# From a checkout, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.sizes import SIZES

_PRECISIONS = ("float32", "tf32", "bfloat16")
_MEMBERS = tuple(2**i for i in range(10))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    names = [size.name for size in SIZES]
    parser = argparse.ArgumentParser(
        description="Measure stacks of 1 to 512 members on one GPU beside one-member trainers, one after the other"
        " (eager, and compiled with CUDA graphs) and several processes at a time.",
        epilog="Exit code 2 without a GPU, 1 when an arm other than a stack failed.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything; again after every size")
    parser.add_argument("--quick", action="store_true", help="short windows, one round, few members: to try it out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only tries the program out")
    parser.add_argument("--sizes", nargs="+", choices=names, metavar="SIZE", help=f"of {', '.join(names)}; default all")
    parser.add_argument("--precisions", nargs="+", choices=_PRECISIONS, metavar="P",
                        help=f"of {', '.join(_PRECISIONS)}; default all, with --quick float32")  # fmt: skip
    parser.add_argument("--members", nargs="+", type=int, metavar="K", help="members of a stack; 1, 2, 4 ... 512")
    parser.add_argument("--processes", nargs="*", type=int, metavar="N", help="processes on one GPU; 2 4 8, quick 2")
    parser.add_argument("--eager-only", action="store_true", help="compile nothing")
    parser.add_argument("--rounds", type=int, help="rounds over the arms; 3, or 1 with --quick")
    parser.add_argument("--seconds", type=float, help="length of one measurement; 0.5, or 0.2 with --quick")
    chosen = parser.parse_args(words)
    quick = chosen.quick
    chosen.sizes = chosen.sizes or (names[:1] if quick else names)
    chosen.precisions = chosen.precisions or (_PRECISIONS[:1] if quick else _PRECISIONS)
    chosen.members = chosen.members or ((1, 4) if quick else _MEMBERS)
    chosen.processes = ((2,) if quick else (2, 4, 8)) if chosen.processes is None else chosen.processes
    chosen.rounds = chosen.rounds or (1 if quick else 3)
    chosen.seconds = chosen.seconds or (0.2 if quick else 0.5)
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    chosen = parse(words)
    import torch

    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: torch sees none; --device cpu tries the program out without one", file=sys.stderr)
        return 2
    from benchmarks import gpu_arms, gpu_rounds

    torch.set_num_threads(1)
    facts = gpu_arms.device_facts(chosen.device)
    note = "" if chosen.device == "cuda" else "  THIS IS A CPU: the figures say nothing about GPUs"
    say(f"{facts['name']}, torch {facts['torch']}{note}")
    settings = {name: value for name, value in vars(chosen).items() if name != "json"}
    result: dict[str, Any] = {"machine": facts, "settings": settings, "peak": {}, "groups": []}
    for precision in chosen.precisions:
        peak = gpu_arms.measured_peak(chosen.device, precision, chosen.seconds)
        result["peak"][precision] = peak
        say(f"{precision}: large matrix products run at {peak / 1e12:.2f} TFLOP/s")
        for size in SIZES:
            if size.name in chosen.sizes:
                result["groups"].append(gpu_rounds.compare(size, precision, peak, chosen, say))
                show(result["groups"][-1])
                if chosen.json:
                    chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    if note:
        say(note.strip())
    failed = [arm for found in result["groups"] for arm in found["arms"] if "error" in arm]
    # Large stacks may not fit; everything else must run.
    return 1 if any(not arm["arm"].startswith("stack") for arm in failed) else 0


def show(found: dict[str, Any]) -> None:
    """Print one size and precision as a table."""
    say(f"\n{found['size']} {found['precision']}")
    say(f"  {'arm':<28}{'tokens/s':>14}{'min':>14}{'max':>14}{'of peak':>9}{'start, s':>10}")
    for arm in found["arms"]:
        if "error" in arm:
            say(f"  {arm['arm']:<28}{arm['error']}")
            continue
        speeds = arm["member_steps_per_second"]
        per_step = arm["tokens_per_second"] / speeds["median"]
        columns = "".join(f"{speeds[key] * per_step:14,.0f}" for key in ("median", "min", "max"))
        say(f"  {arm['arm']:<28}{columns}{arm['share_of_peak']:9.1%}{arm['start_s']:10.1f}")
    for name, value in found["ratios"].items():
        say(f"  best stack {name.replace('_', ' ')}: {'not run' if value is None else f'{value:.2f}'}")
    say("")


def say(text: str) -> None:
    """Print a progress message immediately."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
