"""Do the rules of packages that judge logs warn of instabilities? Each by its own code and at its defaults.

    python -m benchmarks.warning_peers RESULTS

RESULTS holds the sweeps of sweeps/warning. It writes peers.csv of results/reference/warning; packages that are not
installed are left out. runmedic reads a whole log at once, so it knows more than a monitor could.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.detection_peers import Peer, available
from benchmarks.warning import REFERENCE, Run, Scorer, across, fixed, numbers, read, write

ASKED = ("runmedic", "trainscope")
FLAGGED = 0.5  # between a point that a package flags and one that it does not


def flags_of(peer: Peer) -> Scorer:
    """Return the points that ``peer`` flags, 1, and the others, 0, as a score."""

    def score(run: Run) -> tuple[np.ndarray, np.ndarray]:
        norms = run.trace.get("grad_norm")
        flags, _ = peer(run.trace["loss"].tolist(), None if norms is None else norms.tolist())
        return run.trace["step"], np.array(flags, dtype=float)

    return score


def main() -> None:
    """Print and write the table, of the same runs as the comparison with forward passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    runs = [run for run in read(parser.parse_args().results) if "lambda_max" in run.telemetry]
    rows = []
    for name, peer in available()[0].items():
        if name.startswith(ASKED):
            rows.append({"score": name, **numbers(across(runs, "objective", fixed(flags_of(peer), FLAGGED))["all"])})
            print(*rows[-1].values(), sep="\t", flush=True)
    write(REFERENCE / "peers.csv", rows)


if __name__ == "__main__":
    main()
