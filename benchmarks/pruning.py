"""What pruning slow trials saves, and what it costs: finished sweeps, trained without it, are pruned in replay.

    python benchmarks/pruning.py RESULTS/NAME ... [--pack N] [--workers N] [--json FILE]

The trials come in their order in the sweep, in packs of one round, and each is compared with those whose packs had
ended before. The code that decides is that of training. Pruned trials are ranked by the loss at which they were.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.packs import ReferenceTrial, RungThreshold, Trace
from orchestrator.base.trial_result import MemberResult, TrialResult
from orchestrator.base.vocabulary import PRUNED
from orchestrator.detection.config import SlowConfig, StoppingConfig
from orchestrator.detection.outcomes import member_result
from orchestrator.detection.run_monitor import JUDGED, RunMonitor
from orchestrator.detection.slow import rung_thresholds
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import load_sections

# Shares of the steps before the first comparison.
_RULES = {
    "median from a tenth": (SlowConfig(method="median"), 0.1),
    "median from a quarter": (SlowConfig(method="median"), 0.25),
    "median from half": (SlowConfig(method="median"), 0.5),
    "halving, 1 in 4, from a tenth": (SlowConfig(method="halving"), 0.1),
    "halving, 1 in 2, from a quarter": (SlowConfig(method="halving", reduction=2), 0.25),
    "halving, 1 in 2, from half": (SlowConfig(method="halving", reduction=2), 0.5),
}
RAN_ON = ("stable", "spiked")


@dataclass(frozen=True, slots=True)
class Balance:
    """What one rule did to one sweep.

    ``saved`` is a share of the steps that were trained without it. ``correlation`` is Spearman's, between the losses
    at which trials ended with and without pruning, over those that were neither lost nor stalled; ``of_best_quarter``
    is the share of the best quarter of them that was pruned. ``kept_best`` says whether no seed of the stable cell with
    the lowest loss was pruned. ``hidden`` counts the trials that were pruned and would not have been stable.
    """

    num_trials: int
    num_pruned: int
    saved: float
    correlation: float
    of_best_quarter: float
    kept_best: bool
    hidden: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A finished sweep: its trials in order, their curves, and how they were judged."""

    rows: Sequence[TrialResult]
    traces: Mapping[str, Trace]
    stopping: StoppingConfig


def stored(folder: Path) -> Stored:
    """The finished trials of the sweep in ``folder``, which must have been trained without pruning."""
    with LedgerReader(folder / LEDGER) as ledger:
        rows = [row for row in ledger.trials() if row.outcome is not None]
        traces = {row.trial_id: ledger.trace(row.trial_id, JUDGED) for row in rows}
        stopping = StoppingConfig(**json.loads(ledger.facts()["stopping"]))
    assert load_sections(folder / FROZEN_SWEEP).stopping.slow is None, f"{folder} was pruned in training"
    return Stored(rows, traces, stopping)


def pruned(sweep: Stored, slow: SlowConfig, width: int, workers: int) -> dict[str, MemberResult]:
    """The results of all trials if slow ones had been pruned, in packs of ``width``, ``workers`` of them at a time."""
    config = sweep.stopping.model_copy(update={"slow": slow})
    packs = [sweep.rows[first : first + width] for first in range(0, len(sweep.rows), width)]
    found: dict[str, MemberResult] = {}
    for place, pack in enumerate(packs):
        over = [row.trial_id for earlier in packs[: max(0, place - workers + 1)] for row in earlier]
        thresholds = rung_thresholds(slow, pack[0].steps, list(_references(found[trial_id] for trial_id in over)))
        found |= {row.trial_id: _judged(row, sweep.traces[row.trial_id], config, thresholds) for row in pack}
    return found


def _references(results: Iterator[MemberResult]) -> Iterator[ReferenceTrial]:
    for one in results:
        if one.outcome in (*RAN_ON, PRUNED):
            yield ReferenceTrial(one.rung_losses, one.outcome != PRUNED)


def _judged(
    row: TrialResult, trace: Trace, config: StoppingConfig, thresholds: Sequence[RungThreshold]
) -> MemberResult:
    monitor = RunMonitor(config, rung_thresholds=thresholds, all_steps=row.steps)
    columns = {name: trace[name][:, None] for name in JUDGED if name in trace}
    steps_done = int(monitor.update(columns, trace["step"][:, None]).num_steps_K[0])
    return member_result(row.trial_id, monitor.record(), config, steps_done, np.nan, monitor.rung_progress())


def balance(rows: Sequence[TrialResult], results: Mapping[str, MemberResult]) -> Balance:
    """What was saved and lost, against the trials as they were trained."""
    pairs = [(row, results[row.trial_id]) for row in rows]
    ranked = [
        (row.final_loss, result.final_loss, result.outcome == PRUNED)
        for row, result in pairs
        if row.outcome in RAN_ON and row.final_loss is not None and result.final_loss is not None
    ]
    losses = np.array([[before, after] for before, after, _ in ranked])
    quarter = sorted(ranked)[: max(1, len(ranked) // 4)]
    trained = sum(row.steps_done or 0 for row in rows)
    cells: dict[tuple[object, ...], list[tuple[TrialResult, MemberResult]]] = {}
    for row, result in pairs:
        cells.setdefault(tuple(row.cell.values()), []).append((row, result))
    stable = [seeds for seeds in cells.values() if all(row.outcome == "stable" for row, _ in seeds)]
    best = min(stable, key=lambda seeds: median(row.final_loss or np.inf for row, _ in seeds), default=[])
    return Balance(
        num_trials=len(rows),
        num_pruned=sum(result.outcome == PRUNED for result in results.values()),
        saved=1 - sum(result.steps_done for result in results.values()) / trained,
        correlation=spearman(losses[:, 0], losses[:, 1]),
        of_best_quarter=sum(is_pruned for *_, is_pruned in quarter) / len(quarter),
        kept_best=all(result.outcome != PRUNED for _, result in best),
        hidden=sum(row.outcome != "stable" and result.outcome == PRUNED for row, result in pairs),
    )


def spearman(a_N: np.ndarray, b_N: np.ndarray) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, equal values sharing their mean rank."""
    return float(np.corrcoef(_ranks(a_N), _ranks(b_N))[0, 1])


def _ranks(value_N: np.ndarray) -> np.ndarray:
    _, inverse_N, count_M = np.unique(value_N, return_inverse=True, return_counts=True)
    last_M = np.cumsum(count_M)
    return (last_M - (count_M - 1) / 2)[inverse_N]


def main() -> None:
    """Print a line for each sweep and rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--pack", type=int, default=8, help="trials of a pack")
    parser.add_argument("--workers", type=int, default=2, help="packs at a time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    print("| sweep | rule | pruned | steps saved | rank correlation | of the best quarter | best cell | not stable |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for folder in options.folders:
        sweep = stored(folder)
        for name, (slow, share) in _RULES.items():
            steps = max(1, round(share * sweep.rows[0].steps))
            rule = slow.model_copy(update={"warmup_steps": steps})
            one = balance(sweep.rows, pruned(sweep, rule, options.pack, options.workers))
            found.setdefault(folder.name, {})[name] = asdict(one)
            print(
                f"| {folder.name} | {name} | {one.num_pruned} of {one.num_trials} | {one.saved:.0%} | "
                f"{one.correlation:.2f} | {one.of_best_quarter:.0%} | {'kept' if one.kept_best else 'pruned'} | "
                f"{one.hidden} |"
            )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
