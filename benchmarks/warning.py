"""Does telemetry warn of instabilities? Trained on some objectives or optimizers, tested on others.

    python benchmarks/warning.py RESULTS [--json FILE] [--fit]

RESULTS holds the sweeps of sweeps/warning, run with `sweep run`. With --fit the models of the package are fitted on all
of them and written to orchestrator/warning/risk.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.warning_scores import OF_CURVES
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.messages import Trace
from orchestrator.replay.warning import watched_runs
from orchestrator.warning.alarms import HORIZON, Bout, is_calm
from orchestrator.warning.evaluation import Quality, Scored, best_threshold, quality, warned
from orchestrator.warning.features import FEATURES, NAMES, Telemetry, features
from orchestrator.warning.risk import RiskModel, fitted

# Shapes: N readings, F features.

ROOT = Path(__file__).parents[1]
SWEEPS = ROOT / "sweeps" / "warning"
MODELS = ROOT / "orchestrator" / "warning" / "risk.json"
MOST_FALSE = 1.0  # alarms per 1,000 calm steps
PENALTY = 1e-3

CHEAP = tuple(feature.name for feature in FEATURES if not feature.needs_curvature)
GRADIENT = tuple(name for name in NAMES if name.startswith("gradient_")) + CHEAP
SETS: Mapping[str, tuple[str, ...]] = {
    "risk, with curvature": NAMES,
    "risk, cheap": CHEAP,
    "risk, one product": GRADIENT,
}


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A trial: what it is of, its readings and their features, its curves and its instabilities."""

    sweep: str
    objective: str
    optimizer: str
    telemetry: Telemetry
    feature_NF: np.ndarray
    trace: Trace
    unstable: tuple[Bout, ...]
    num_steps: int

    @property
    def step_N(self) -> np.ndarray:
        """The steps of the readings."""
        return self.telemetry["step"]


Scorer = Callable[[Run], tuple[np.ndarray, np.ndarray]]  # steps and scores
Trained = Callable[[Sequence[Run]], Scorer]  # from the training folds


def read(folder: Path) -> list[Run]:
    """The runs of every sweep below ``folder``."""
    found: list[Run] = []
    for path in sorted(folder.glob(f"*/{LEDGER}")):
        with LedgerReader(path) as ledger:
            for run in watched_runs(ledger):
                found.append(
                    Run(
                        path.parent.name,
                        run.trial.objective,
                        run.trial.config.get("optimizer", "adamw"),
                        run.telemetry,
                        features(run.telemetry),
                        ledger.trace(run.trial.trial_id, ("loss", "grad_norm")),
                        run.unstable,
                        run.num_steps,
                    )
                )
    return found


def thinned(run: Run, every: int, curvature: int | None) -> Run:
    """The run as if it had been read every ``every`` steps, with the curvature every ``curvature``."""
    step_N = run.step_N
    is_curved_N = np.zeros(len(step_N), dtype=bool) if curvature is None else step_N % curvature == 0
    kept_N = (step_N % every == 0) | is_curved_N
    telemetry = {}
    for name, value_N in run.telemetry.items():
        is_curvature = name in ("lambda_max", "lambda_grad")
        telemetry[name] = (np.where(is_curved_N, value_N, np.nan) if is_curvature else value_N)[kept_N]
    return replace(run, telemetry=telemetry, feature_NF=features(telemetry))


def soon(run: Run) -> np.ndarray:
    """Whether an onset follows each reading within the horizon, (N,)."""
    onsets = [bout.onset for bout in run.unstable]
    return np.array([any(step < onset <= step + HORIZON for onset in onsets) for step in run.step_N.tolist()])


def fit(runs: Sequence[Run], names: Sequence[str]) -> RiskModel:
    """A model of the calm readings of ``runs``; each objective counts the same, and each of its readings."""
    parts = []
    for run in runs:
        calm_N = is_calm(run.step_N, run.unstable) & (run.step_N <= run.num_steps - HORIZON) | soon(run)
        calm_N &= is_calm(run.step_N, run.unstable)
        parts.append((run.feature_NF[calm_N], soon(run)[calm_N], np.full(calm_N.sum(), run.objective)))
    objective_N = np.concatenate([part[2] for part in parts])
    weight_N = np.zeros(len(objective_N))
    for objective in np.unique(objective_N):
        weight_N[objective_N == objective] = 1 / (objective_N == objective).sum()
    feature_NF, is_soon_N = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    return fitted(names, feature_NF, is_soon_N, weight_N, PENALTY)


def trained_on(names: Sequence[str]) -> Trained:
    """The score of a model that is fitted on the training folds."""

    def train(runs: Sequence[Run]) -> Scorer:
        model = fit(runs, names)
        return lambda run: (run.step_N, model.risks(run.feature_NF))

    return train


def fixed(scorer: Scorer) -> Trained:
    """A score that is not fitted."""
    return lambda runs: scorer


def _reading(name: str) -> Scorer:
    return lambda run: (run.step_N, run.feature_NF[:, NAMES.index(name)])


def _curve(name: str) -> Scorer:
    return lambda run: (run.trace["step"], OF_CURVES[name](run.trace))


SCORES: Mapping[str, Trained] = {
    **{name: trained_on(names) for name, names in SETS.items()},
    **{f"reading, {name}": fixed(_reading(name)) for name in NAMES},
    **{name: fixed(_curve(name)) for name in OF_CURVES},
}


def scored(runs: Iterable[Run], scorer: Scorer) -> list[Scored]:
    """Each run with its score."""
    return [Scored(*scorer(run), run.unstable, run.num_steps) for run in runs]


def across(runs: Sequence[Run], key: Callable[[Run], str], train: Trained, most_false: float) -> dict[str, Quality]:
    """The quality on each fold by ``key``, with everything chosen on the other folds; ``all`` is of all together."""
    results, of_fold = [], {}
    for held_out in sorted({key(run) for run in runs}):
        rest = [run for run in runs if key(run) != held_out]
        scorer = train(rest)
        threshold = best_threshold(scored(rest, scorer), most_false)
        tested = [warned(run, threshold) for run in scored([run for run in runs if key(run) == held_out], scorer)]
        of_fold[held_out] = quality(tested)
        results += tested
    return {"all": quality(results), **of_fold}


def row(name: str, found: Quality) -> str:
    """One line of the table."""
    lead = "-" if found.median_lead is None else f"{found.median_lead:.0f}"
    return (
        f"{name:34} {found.num_onsets:5} {found.good_share:7.0%} {found.recall:7.0%} {found.precision:9.0%} "
        f"{lead:>6} {found.false_per_1000:8.2f}"
    )


HEADER = f"{'':34} {'onset':>5} {'lead>20':>7} {'recall':>7} {'precision':>9} {'median':>6} {'false/k':>8}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args()
    runs = read(arguments.results)
    found: dict[str, dict[str, dict[str, Quality]]] = {}
    for title, key in (("objective", lambda run: run.objective), ("optimizer", lambda run: run.optimizer)):
        print(f"\nleave one {title} out\n{HEADER}")
        for name, train in SCORES.items():
            of_folds = across(runs, key, train, MOST_FALSE)
            found.setdefault(title, {})[name] = of_folds
            print(row(name, of_folds["all"]), flush=True)
            if name.startswith("risk"):
                for fold, of_fold in of_folds.items():
                    if fold != "all":
                        print(row(f"    {fold}", of_fold))
    for name, names in SETS.items():
        model = fit(runs, names)
        print(name, {n: round(c, 2) for n, c in zip(model.names, model.coefficient, strict=True)}, round(model.bias, 2))


if __name__ == "__main__":
    main()
