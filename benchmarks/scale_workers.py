"""What each trial costs the driver, the ledger, the page and MLflow, as sweeps grow: 100 workers, trials of no length.

    python benchmarks/scale_workers.py [--trials 100 1000 10000] [--workers 100] [--mlflow]

The workers are simulated: curve and result of a trial come at once, in a report of their own, so that everything
measured is the project's own. Each size is a process of its own. Seconds are of the CPU, so that other programs on the
machine matter less; a slope of 1 says that twice the trials cost twice as much.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

# From a checkout, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

from orchestrator.base.files import LEDGER
from orchestrator.base.packs import Completed, Event, Pack, PackStarted, Report
from orchestrator.base.trial_result import MemberResult
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

SWEEP = """
name: scale
objective: quadratic
steps: 20
seeds: [0]
axes:
  lr: {{log: [0.01, 1.0], num: {wide}}}
  beta1: {{linear: [0.0, 0.9], num: {high}}}
fixed: {{optimizer: sgd}}
tracking: {{enabled: false}}
"""


class SimulatedWorkers:
    """An executor whose packs end at once."""

    name = "simulated"

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._events: deque[Event] = deque()

    def submit(self, pack: Pack) -> None:
        """Note the start of ``pack``, and a report for the result of each of its trials."""
        self._events.append(PackStarted(pack.pack_id))
        steps = np.arange(pack.steps)
        for number, member in enumerate(pack.members, 1):
            is_stable = float(member.config["lr"]) < 0.3 + 0.2 * float(member.config["beta1"])
            loss = np.exp(-steps / pack.steps) if is_stable else np.exp(steps / pack.steps)
            result = MemberResult(
                trial_id=member.trial_id, outcome="stable" if is_stable else "diverged", num_spikes=0,
                steps_done=pack.steps, initial_loss=1.0, best_loss=float(loss.min()), final_loss=float(loss[-1]),
                reason="",
            )  # fmt: skip
            curve = {member.trial_id: {"step": steps, "loss": loss, "grad_norm": loss}}
            ending = Completed() if number == len(pack.members) else None
            self._events.append(Report(pack.pack_id, number * pack.steps, 0, 1e-3, curve, (result,), ending=ending))

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the next event of each worker."""
        return [self._events.popleft() for _ in range(min(self.slots, len(self._events)))]

    def pause(self) -> None:
        """Do nothing: packs have ended."""

    def kill(self, pack_id: str) -> None:
        """Do nothing: packs do not hang."""

    def close(self) -> None:
        """Do nothing."""


def sweep_of(num_trials: int) -> Sweep:
    """A grid of about so many trials."""
    high = max(1, round(num_trials**0.5 / 2))
    return build_sweep(parse_document(SWEEP.format(wide=num_trials // high, high=high), "scale.yaml"))


def measure(num_trials: int, workers: int, tracked: bool) -> dict[str, float]:
    """Trials, CPU seconds by phase, bytes of the ledger and MiB of memory of one sweep, in this process."""
    from orchestrator.api.upkeep import report
    from orchestrator.driver.runner import run_sweep

    sweep = sweep_of(num_trials)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "scale"
        found: dict[str, float] = {"trials": len(sweep.trials)}
        found["run"] = _cpu(lambda: run_sweep(sweep, folder, lambda: SimulatedWorkers(workers)))
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found["ledger"] = float((folder / LEDGER).stat().st_size)
        found["report"] = _cpu(lambda: list(report(folder)))
        found["page"] = float((folder / "report.html").stat().st_size)
        if tracked:
            found["mlflow"] = _cpu(lambda: _sync(folder))
        return found


def _sync(folder: Path) -> None:
    """Write all trials to a new store of MLflow."""
    from orchestrator.mirrors.mirror import Mirror
    from orchestrator.sweepfile.sections import TrackingConfig

    with Mirror(folder, TrackingConfig()) as mirror:
        mirror.mirror_sweep([])


def _cpu(action: Callable[[], object]) -> float:
    """CPU seconds of an action, in all threads of this process."""
    began = time.process_time()
    action()
    return time.process_time() - began


def slope(before: dict[str, float], after: dict[str, float], name: str) -> float:
    """The power of the number of trials with which a quantity grows between two sizes."""
    return math.log(after[name] / before[name]) / math.log(after["trials"] / before["trials"])


def main(words: Sequence[str] | None = None) -> None:
    """Print a row for each size, and one of slopes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--mlflow", action="store_true", help="write all trials to a store of MLflow, too")
    parser.add_argument("--one", action="store_true", help="measure the first size in this process, and print JSON")
    options = parser.parse_args(words)
    if options.one:
        print(json.dumps(measure(options.trials[0], options.workers, options.mlflow)))
        return
    names = ["run", "memory", "ledger", "report", "page", *(["mlflow"] if options.mlflow else [])]
    print("| trials | driver, CPU s | memory, MiB | ledger, MB | report, CPU s | page, MB |", end="")
    print(" MLflow, CPU s |" if options.mlflow else "", "\n|" + " --- |" * (1 + len(names)), sep="")
    rows = []
    for num_trials in options.trials:
        command = [sys.executable, __file__, "--one", "--trials", str(num_trials), "--workers", str(options.workers)]
        command += ["--mlflow"] if options.mlflow else []
        rows.append(
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        )
        print(_row(rows[-1], names), flush=True)
    if len(rows) > 1:
        slopes = (f"{slope(rows[-2], rows[-1], name):.2f}" for name in names)
        print(f"| slope of the last two | {' | '.join(slopes)} |")


def _row(found: dict[str, float], names: Sequence[str]) -> str:
    per = {"ledger": 1e6, "page": 1e6}
    values = (f"{found[name] / per.get(name, 1):.{0 if name == 'memory' else 1}f}" for name in names)
    return f"| {found['trials']:,.0f} | {' | '.join(values)} |"


if __name__ == "__main__":
    main()
