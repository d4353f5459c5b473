"""Whole sweeps from the command to the end: sweep and its peers, each in its own process and folder."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cpu_parts import used_by
from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader

ROOT = Path(__file__).parents[1]
OURS = "ours"
_OURS = {OURS: (), "ours, telemetry off": ("--set", "telemetry.every=null")}  # options of `sweep run`
_PEERS = {
    "ray default": ("benchmarks.peer_ray", "--logging", "batched"),
    "ray reuse_actors": ("benchmarks.peer_ray", "--reuse-actors", "--logging", "batched"),
    "ray reuse_actors, stock MLflow callback": ("benchmarks.peer_ray", "--reuse-actors", "--logging", "callback"),
    "optuna": ("benchmarks.peer_optuna",),
    "two processes": ("benchmarks.peer_processes",),
}
ARMS = (*_OURS, *_PEERS)
CHECKED_STEPS = 5
LOSS_TOLERANCE = 1e-4
_POLL_S = 0.1

# Values of a cell, and a seed, e.g. ((("beta2", 0.9), ("eps", 1e-8)), 0).
TrialKey = tuple[tuple[tuple[str, Any], ...], int]


@dataclass(frozen=True, slots=True)
class Run:
    """One sweep from start to end. Seconds count from the start of the command, CPU seconds in all of its processes."""

    wall_s: float
    cpu_s: float
    first_step_s: float | None
    first_cell_s: float
    member_steps: int
    curves: Mapping[TrialKey, Sequence[float]]

    def summary(self) -> dict[str, Any]:
        """The part for the JSON file: everything but the curves."""
        not_finite = sum(not math.isfinite(curve[-1]) for curve in self.curves.values())
        return {
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "first_step_s": self.first_step_s,
            "first_cell_s": self.first_cell_s,
            "trials": len(self.curves),
            "member_steps": self.member_steps,
            "trials_that_ended_not_finite": not_finite,
        }


class RunFailed(RuntimeError):
    """A command of the comparison failed; the message is the end of its output."""


def run_arm(name: str, sweep_file: Path) -> Run:
    """Run the sweep with the peer ``name``, without leftovers of earlier runs."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = Path(scratch)
        command = [sys.executable, *_command(name, sweep_file, folder)]
        began = time.time()
        wall_s, cpu_s, first_step_at = _timed(command, folder)
        if name in _OURS:
            (ledger_file,) = folder.glob(f"results/*/{LEDGER}")
            return _run_of_ledger(ledger_file, began, (wall_s, cpu_s), first_step_at)
        records = [json.loads(path.read_text()) for path in folder.glob("trial_*.json")]
        return _run_of_records(records, began, (wall_s, cpu_s))


def _command(name: str, sweep_file: Path, folder: Path) -> list[str]:
    if name in _OURS:
        # The same as the installed command, but also found from this checkout.
        entry = "import sys; from orchestrator.cli import main; sys.exit(main())"
        options = ["--results", str(folder / "results"), "--parallel", "2", *_OURS[name]]
        return ["-c", entry, "run", str(sweep_file), *options]
    module, *options = _PEERS[name]
    return ["-m", module, str(sweep_file), str(folder), *options]


def _timed(command: Sequence[str], folder: Path) -> tuple[float, float, float | None]:
    """Seconds that the command took, its CPU seconds, and the time of the first losses in the ledger, if it has one."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        # Compiling and probing count here; no earlier run helps.
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "SWEEP_CACHE": str(folder / "cache"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    environment.pop("RAY_ADDRESS", None)
    first_step_at, used = None, dict[tuple[int, float], float]()
    with (folder / "output.txt").open("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                if first_step_at is None and any(map(_has_losses, folder.glob(f"results/*/{LEDGER}"))):
                    first_step_at = time.time()
                with contextlib.suppress(psutil.NoSuchProcess):
                    used |= {one: seconds for one, _, seconds in used_by(psutil.Process(process.pid))}
                time.sleep(_POLL_S)
            seconds = time.perf_counter() - started
        finally:
            process.terminate()
            process.wait()
        if process.returncode != 0:
            output.seek(0)
            raise RunFailed(f"exit code {process.returncode}:\n" + "".join(output.readlines()[-20:]))
    return seconds, sum(used.values()), first_step_at


def _has_losses(ledger_file: Path) -> bool:
    try:
        database = sqlite3.connect(f"{ledger_file.absolute().as_uri()}?mode=ro", uri=True)
        try:
            return database.execute("SELECT 1 FROM traces LIMIT 1").fetchone() is not None
        finally:
            database.close()
    except sqlite3.Error:
        return False  # the driver is still creating it


def _run_of_ledger(ledger_file: Path, began: float, spent: tuple[float, float], first_step_at: float | None) -> Run:
    with LedgerReader(ledger_file) as ledger:
        rows = ledger.trials()
        curves = {trial_key(row.cell, row.seed): ledger.trace(row.trial_id)["loss"].tolist() for row in rows}
    finished = [(row.cell, row.finished_at) for row in rows]
    member_steps = sum(row.steps_done for row in rows)
    first_step_s = None if first_step_at is None else first_step_at - began
    return Run(*spent, first_step_s, first_cell(finished) - began, member_steps, curves)


def _run_of_records(records: Sequence[Mapping[str, Any]], began: float, spent: tuple[float, float]) -> Run:
    if not records:
        raise RunFailed("it trained nothing")
    curves = {trial_key(record["cell"], record["seed"]): record["losses"] for record in records}
    return Run(
        *spent,
        min(record["first_step_at"] for record in records) - began,
        first_cell([(record["cell"], record["finished_at"]) for record in records]) - began,
        sum(len(curve) for curve in curves.values()),
        curves,
    )


def trial_key(cell: Mapping[str, Any], seed: int) -> TrialKey:
    """The identity of a trial, whichever peer trained it."""
    return tuple(sorted(cell.items())), seed


def first_cell(finished: Sequence[tuple[Mapping[str, Any], float]]) -> float:
    """The time at which the first cell had all its seeds; ``finished`` has a cell and a time for each trial."""
    last_of_cell: dict[Any, float] = {}
    for cell, at in finished:
        key = trial_key(cell, 0)
        last_of_cell[key] = max(last_of_cell.get(key, at), at)
    return min(last_of_cell.values())


def largest_difference(ours: Run, theirs: Run) -> float:
    """Largest relative difference of the first losses over all trials; infinite when trials differ."""
    if ours.curves.keys() != theirs.curves.keys():
        return math.inf
    return max(curve_difference(curve, theirs.curves[key]) for key, curve in ours.curves.items())


def curve_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Largest relative difference of the first steps of one trial."""
    pairs = list(zip(ours[:CHECKED_STEPS], theirs[:CHECKED_STEPS], strict=True))
    if not pairs or not all(math.isfinite(a) and math.isfinite(b) for a, b in pairs):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in pairs)
