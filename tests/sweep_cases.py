"""Small ledgers and curves that several tests build on."""

import contextlib
import json
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from orchestrator.base.errors import InputError
from orchestrator.base.packs import Completed, Report
from orchestrator.base.space import Axis, Cell, Trial
from orchestrator.base.trial_result import MemberResult, TrialResult
from orchestrator.base.vocabulary import OUTCOMES, PRUNED
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.maps.table import SweepTable
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

QUADRATIC = """
name: edge
objective: quadratic
steps: 60
seeds: [0, 1]
axes:
  lr: {values: [0.1, 1.0, 3.0]}
  beta1: {values: [0.0, 0.5]}
fixed: {optimizer: sgd}
tracking: {enabled: false}
"""
SEARCH = """
name: sought
objective: quadratic
steps: 40
axes:
  lr: {log: [0.01, 10.0]}
  beta1: {linear: [0.0, 0.9]}
fixed: {optimizer: sgd}
search: {method: tpe, trials: 24, batch: 4}
resources: {pack: 4}
tracking: {enabled: false}
"""
BASE = "name: case\nobjective: quadratic\nsteps: 20\n"


def sweep_of(body: str = "", base: str = BASE) -> Sweep:
    """A sweep from the lines that matter."""
    return build_sweep(parse_document(base + body, "case.yaml"))


def refusal(body: str = "", base: str = BASE, overrides: Overrides = Overrides()) -> str:
    """The message with which such a sweep is refused."""
    with pytest.raises(InputError) as refused:
        build_sweep(parse_document(base + body, "case.yaml"), overrides)
    assert refused.value.__context__ is None or refused.value.__suppress_context__
    return str(refused.value)


def sweep_with_keys(**keys: Any) -> Sweep:
    """A sweep of a quadratic over 200 steps with these keys."""
    data = {"name": "s", "objective": "quadratic", "steps": 200, **json.loads(json.dumps(keys))}  # without YAML aliases
    return build_sweep(parse_document(yaml.safe_dump(data, sort_keys=False), "s.yaml"))


def ids(of: Sweep | Iterable[Trial]) -> list[str]:
    """The ids of a sweep's trials, or of some trials, in order."""
    return [trial.trial_id for trial in (of.trials if isinstance(of, Sweep) else of)]


def finished(trial_id: str, outcome: str, **changes) -> MemberResult:
    """A result with unremarkable numbers."""
    numbers = {
        "onset_step": 7 if outcome in ("diverged", "spiked") else None,
        "num_spikes": int(outcome == "spiked"),
        "steps_done": 20,
        "initial_loss": 100.0,
        "best_loss": 1.0,
        "final_loss": 1.0,
        "peak_loss": None,
        "validation_loss": 1.5,
        "reason": "because",
    }
    return MemberResult(trial_id=trial_id, outcome=outcome, **(numbers | changes))


def record(
    ledger: LedgerWriter, sweep: Sweep, labels: Sequence[str], losses: Sequence[float | None] | None = None
) -> None:
    """Give every trial an outcome; ``errored`` and ``planned`` stay without one, ``degraded`` hardly learned."""
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    for i, (trial, label) in enumerate(zip(sweep.trials, labels, strict=True)):
        if label == "planned":
            continue
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        results: tuple[MemberResult, ...] = ()
        if label == "degraded":
            results = (finished(trial.trial_id, "stable", final_loss=90.0),)
        elif label != "errored":
            results = (finished(trial.trial_id, label, final_loss=losses[i] if losses else 1.0),)
        curve = {"step": np.arange(20), "loss": np.linspace(2, 1, 20)}
        ledger.record(Report(pack.pack_id, 20, 0, 0.5, {trial.trial_id: curve}, results, Completed()))
        ledger.end_pack(pack.pack_id, "done", "errored", "a bug")


def map_ledger(
    ledger: LedgerWriter, sweep: Sweep, labels: Sequence[str], losses: Sequence[float | None] | None = None
) -> None:
    """Give every trial an outcome or a status at once, without packs and curves; for tests of many maps.

    A ``degraded`` one is stable and hardly learned.
    """
    outcomes = {**{outcome: outcome for outcome in (*OUTCOMES, PRUNED)}, "degraded": "stable"}
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    rows = [
        (
            "finished" if label in outcomes else label,
            outcomes.get(label),
            900.0 if label == "degraded" else loss,
            int(label == "spiked") if label in outcomes else None,
            trial.trial_id,
        )
        for trial, label, loss in zip(sweep.trials, labels, losses or [1.0] * len(labels), strict=True)
    ]
    with contextlib.closing(sqlite3.connect(ledger.path)) as db, db:
        db.executemany(
            "UPDATE trials SET status = ?, outcome = ?, final_loss = ?, num_spikes = ?, initial_loss = 1000,"
            " steps_done = 20 WHERE trial_id = ?",
            rows,
        )


def ledger_at(folder: Path) -> LedgerWriter:
    """A new ledger in ``folder``."""
    return LedgerWriter(folder / "ledger.db")


def trained_ladder(results: Path, tracking: dict[str, Any] | None = None) -> Path:
    """The folder of a sweep of quadratics, whose edge is 2 / curvature."""
    from orchestrator import run

    sweep = {
        "name": "trained",
        "objective": "quadratic",
        "steps": 80,
        "seeds": [3],
        "axes": {"lr": {"log": [0.02, 5.0], "num": 17}, "curvature": {"values": [1.0, 4.0, 16.0]}},
        "fixed": {"optimizer": "sgd", "beta1": 0.0, "noise": 1.0, "dimension": 1000},
        "tracking": tracking or {"enabled": False},
    }
    run(sweep, results=results, executor="inline")
    return results / "trained"


def noise(num_steps: int, seed: int = 0, level: float = 2.0, spread: float = 0.05) -> np.ndarray:
    """A loss that stays where it is, with normal noise."""
    return level + spread * np.random.default_rng(seed).standard_normal(num_steps)


def learning(num_steps: int, seed: int = 0, changes: Sequence[tuple[int, int, float]] = ()) -> np.ndarray:
    """A loss that falls from 5 towards 2, with noise; each of ``changes`` is (from, to, rise)."""
    curve = 2 + 3 * np.exp(-np.arange(num_steps) / (num_steps / 8)) + noise(num_steps, seed, 0.0)
    for first, end, rise in changes:
        curve[first:end] += rise
    return curve


def peak_bytes(action: Callable[[], Any]) -> int:
    """The most memory that Python and NumPy held in ``action`` beyond what they held before it."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def sweep_with(*sets: str) -> Sweep:
    """The small quadratic sweep with settings of `--set`."""
    return build_sweep(parse_document(QUADRATIC, "edge.yaml"), Overrides(sets=sets))


def search_with(*sets: str) -> Sweep:
    """A small search over the quadratic's learning rate and momentum, in batches, with settings of `--set`."""
    return build_sweep(parse_document(SEARCH, "search.yaml"), Overrides(sets=sets))


def trial_row(**fields: Any) -> TrialResult:
    """A planned trial's row, with other fields as given."""
    plain = {"trial_id": "t", "cell": {}, "seed": 0, "config": {}, "objective": "quadratic", "status": "planned"}
    return TrialResult(**{**plain, "steps": 20, **fields, "cell": Cell(fields.get("cell", {}))})


def table_with(trials: Sequence[TrialResult], axes: Iterable[Axis] = ()) -> SweepTable:
    """A table of ``trials`` without a ledger."""
    return SweepTable(None, {}, tuple(axes), tuple(trials))


def numbers(rows: Sequence[TrialResult]) -> list[tuple]:
    """What a row says about training, without times and attempts."""
    keys = ("trial_id", "status", "outcome", "onset_step", "steps_done", "final_loss", "num_spikes", "verdict_step")
    return [attrgetter(*keys)(row) for row in rows]
