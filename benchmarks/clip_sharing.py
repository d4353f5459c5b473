"""What sharing saves on sweeps/lr_clip.yaml: members that differ in clip alone are one run until they part.

Counts the rows that are trained for the members' steps, which is exact, and times both on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from objectives.models import gpt
from orchestrator.driver.packing import make_packs
from orchestrator.messages import Pack
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import load_sweep
from orchestrator.worker.roster import Roster
from orchestrator.worker.run import run_pack

SWEEP = Path(__file__).parents[1] / "sweeps" / "lr_clip.yaml"


def train(packs: list[Pack]) -> dict[str, float]:
    """Member-steps, rows trained for them and CPU seconds of ``packs``; the losses add up to a checksum."""
    rows, checksum = 0, 0.0
    step = gpt.GptTrainer.step

    def counted(trainer: gpt.GptTrainer) -> object:
        nonlocal rows
        rows += trainer.num_members
        return step(trainer)

    gpt.GptTrainer.step = counted
    try:
        began, member_steps = time.process_time(), 0
        for pack in packs:
            for report in run_pack(pack):
                last = report
                if report.error:
                    raise RuntimeError(report.error)
                checksum += sum(float(np.nansum(trace["loss"])) for trace in report.traces.values())
            member_steps += last.member_steps
        seconds = time.process_time() - began
    finally:
        gpt.GptTrainer.step = step
    return {"member_steps": member_steps, "row_steps": rows, "cpu_s": seconds, "checksum": checksum}


def main() -> None:
    """Train the sweep's packs with sharing and without."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=None, help="steps per trial (default: the sweep file's)")
    parser.add_argument("--width", type=int, default=16, help="members trained at a time (default: 16)")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file")
    options = parser.parse_args()
    changes = [f"resources.pack={options.width}"] + ([f"steps={options.steps}"] if options.steps else [])
    sweep = load_sweep(SWEEP, Overrides(sets=changes))
    train(make_packs(sweep, sweep.trials[:1], workers=1))  # imports and the corpus are nobody's time
    shared = train(make_packs(sweep, sweep.trials, workers=1))
    part = Roster._run
    Roster._run = lambda roster, member: member
    try:
        apart = train(make_packs(sweep, sweep.trials, workers=1))
    finally:
        Roster._run = part
    for name, found in (("shared", shared), ("apart", apart)):
        print(f"{name:>7}: {found['row_steps']:>7,} rows for {found['member_steps']:,} member-steps, "
              f"{found['cpu_s']:.1f} s of one core, checksum {found['checksum']!r}")  # fmt: skip
    print(f"sharing trains {1 - shared['row_steps'] / apart['row_steps']:.1%} fewer rows, "
          f"in {1 - shared['cpu_s'] / apart['cpu_s']:.1%} less time")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps({"shared": shared, "apart": apart}, indent=1))


if __name__ == "__main__":
    main()
