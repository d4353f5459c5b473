"""Does telemetry warn of instabilities? Trained on some objectives or optimizers, tested on others.

    python -m benchmarks.warning RESULTS [--fit] [--forwards RESULTS]

RESULTS holds the sweeps of sweeps/warning, run with `sweep run`. It writes the tables of results/reference/warning.
With --fit the models of the package are fitted on all runs and written to orchestrator/detection/warning/risk.json.
With --forwards only forwards.csv is written, from the same sweeps with `--set telemetry.by=forwards` in other results.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.warning_fit import Intervals, best_threshold, fitted, intervals, models_as_text, risk_at_edge
from benchmarks.warning_scores import OF_CURVES
from orchestrator.base.files import LEDGER
from orchestrator.base.packs import Trace
from orchestrator.detection.warning.alarms import (
    HORIZON,
    Quality,
    RunWarnings,
    ScoredRun,
    UnstableSpan,
    is_calm,
    quality,
    run_warnings,
)
from orchestrator.detection.warning.risk import (
    FEATURES,
    NAMES,
    TREND_NAME,
    RiskModel,
    Telemetry,
    features,
)
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.warning import watched_runs
from orchestrator.sweepfile.sections import TelemetryConfig

# Shapes: N readings, F features.

ROOT = Path(__file__).parents[1]
SWEEPS = ROOT / "sweeps" / "warning"
MODELS = ROOT / "orchestrator" / "detection" / "warning" / "risk.json"
REFERENCE = ROOT / "results" / "reference" / "warning"
MOST_FALSE = 1.0  # alarms per 1,000 calm steps
PENALTY = 1e-3

CHEAP = tuple(feature.name for feature in FEATURES if not feature.needs_curvature)
GRADIENT = tuple(name for name in NAMES if name.startswith("gradient_"))
SETS: Mapping[str, tuple[str, ...]] = {
    # The best of some ten small sets on objectives and optimizers left out: more readings transfer worse.
    "curvature": ("edge_ahead", "incoherent"),
    "one product": (*GRADIENT, "incoherent"),
    "cheap": CHEAP,
    "all readings": NAMES,
}
# Readings every so many steps, curvature every so many, and the set: what a warning costs.
COSTS = (
    (5, 5, "curvature"), (5, 10, "curvature"), (5, 25, "curvature"), (5, 50, "curvature"), (10, 50, "curvature"),
    (5, 5, "one product"), (5, 25, "one product"), (5, None, "cheap"), (10, None, "cheap"), (20, None, "cheap"),
)  # fmt: skip


# The models of the package: their set, and the readings that they are fitted to.
FITTED: Mapping[str, tuple[str, int, int | None]] = {
    "trend": ("curvature", 5, 5),
    "gradient": ("one product", 5, 25),
    "cheap": ("cheap", 5, None),
}


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A trial: what it is of, its readings and their features, its curves and its instabilities."""

    sweep: str
    cell: str
    objective: str
    optimizer: str
    telemetry: Telemetry
    feature_NF: np.ndarray
    trace: Trace
    unstable: tuple[UnstableSpan, ...]
    num_steps: int
    seed: int = 0

    @property
    def step_N(self) -> np.ndarray:
        """The steps of the readings."""
        return self.telemetry["step"]


Scorer = Callable[[Run], tuple[np.ndarray, np.ndarray]]  # steps and scores


@dataclass(frozen=True, slots=True)
class Warner:
    """A score, and the threshold from which it is an alarm; None where that is to be chosen on the training folds."""

    scorer: Scorer
    threshold: float | None = None


Trained = Callable[[Sequence[Run]], Warner]  # from the training folds


@dataclass(frozen=True, slots=True)
class Found:
    """What a warning does on left-out runs, with intervals over them."""

    quality: Quality
    intervals: Intervals


# Of runs that are read by products, and of the same runs read by forward passes.
FORWARD_SCORES = ("edge at the edge", "gradient_edge at the edge", "edge_ahead at the edge", "risk, one product")


def by_forwards(run: Run, read: Telemetry) -> Run:
    """The run as if the curvature by forward passes, from the readings ``read``, were both curvatures by products."""
    value_N = np.full(len(run.step_N), np.nan)
    _, own, others = np.intersect1d(run.step_N, read["step"], return_indices=True)
    value_N[own] = read.get("lambda_crit", np.full(len(read["step"]), np.nan))[others]
    telemetry = {**run.telemetry, "lambda_max": value_N, "lambda_grad": value_N}
    return replace(run, telemetry=telemetry, feature_NF=features(telemetry))


def forward_rows(runs: Sequence[Run], folder: Path) -> list[dict[str, str]]:
    """What the curvature by forward passes warns of, and that by products on the same runs, an objective left out."""
    readings = {(run.sweep, run.cell, run.seed): run.telemetry for run in read(folder)}
    curved = [run for run in runs if "lambda_max" in run.telemetry]
    others = [by_forwards(run, readings[run.sweep, run.cell, run.seed]) for run in curved]
    rows = []
    for by, read_runs in (("products", curved), ("forwards", others)):
        for name in FORWARD_SCORES:
            rows.append({"by": by, "score": name, **numbers(across(read_runs, "objective", SCORES[name])["all"])})
            print(*rows[-1].values(), sep="\t", flush=True)
    norms = across(curved, "objective", fixed(weight_norm_jerk))["all"]
    return [*rows, {"by": "none", "score": "weights' norm, second difference", **numbers(norms)}]


def weight_norm_jerk(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """The size of the second difference of the weights' norm between readings, relative to the norm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        norm_N = run.telemetry["update_rms/all"] / run.telemetry["update_to_weight/all"]  # up to a constant
        score_N = np.abs(np.diff(norm_N, 2, prepend=[np.nan, np.nan])) / norm_N
    return run.step_N, score_N


def read(folder: Path) -> list[Run]:
    """The runs of every sweep below ``folder``."""
    found: list[Run] = []
    for path in sorted(folder.glob(f"*/{LEDGER}")):
        with LedgerReader(path) as ledger:
            for run in watched_runs(ledger):
                found.append(
                    Run(
                        path.parent.name,
                        repr(dict(run.trial.cell)),
                        run.trial.objective,
                        run.trial.config.get("optimizer", "adamw"),
                        run.telemetry,
                        features(run.telemetry),
                        ledger.trace(run.trial.trial_id, ("loss", "grad_norm")),
                        run.unstable,
                        run.num_steps,
                        run.trial.seed,
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
        # Of the last readings nobody knows what would have followed.
        is_told_N = (run.step_N <= run.num_steps - HORIZON) | soon(run)
        calm_N = is_calm(run.step_N, run.unstable) & is_told_N
        parts.append((run.feature_NF[calm_N], soon(run)[calm_N], np.full(calm_N.sum(), run.objective)))
    objective_N = np.concatenate([part[2] for part in parts])
    weight_N = np.zeros(len(objective_N))
    for objective in np.unique(objective_N):
        weight_N[objective_N == objective] = 1 / (objective_N == objective).sum()
    feature_NF, is_soon_N = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    return fitted(names, feature_NF, is_soon_N, weight_N, PENALTY)


def trained_on(names: Sequence[str], *, at_edge: bool = False) -> Trained:
    """The risk by a model that is fitted on the training folds; ``at_edge`` takes its threshold from theory."""

    def train(runs: Sequence[Run]) -> Warner:
        model = fit(runs, names)
        threshold = risk_at_edge(model) if at_edge else None
        return Warner(lambda run: (run.step_N, model.risks(run.feature_NF)), threshold)

    return train


def fixed(scorer: Scorer, threshold: float | None = None) -> Trained:
    """A score that is not fitted."""
    return lambda runs: Warner(scorer, threshold)


def _reading(name: str) -> Scorer:
    return lambda run: (run.step_N, run.feature_NF[:, NAMES.index(name)])


def _curve(name: str) -> Scorer:
    return lambda run: (run.trace["step"], OF_CURVES[name](run.trace))


# Readings of which theory says from where on they are dangerous: a ratio of 1, whose logarithm is 0.
AT_EDGE = (TREND_NAME, "edge", "gradient_edge")
SCORES: Mapping[str, Trained] = {
    "risk, curvature at the edge": trained_on(SETS["curvature"], at_edge=True),
    **{f"risk, {name}": trained_on(names) for name, names in SETS.items()},
    **{f"{name} at the edge": fixed(_reading(name), 0.0) for name in AT_EDGE},
    **{f"{name} alone": fixed(_reading(name)) for name in NAMES},
    **{name: fixed(_curve(name)) for name in OF_CURVES},
}


def scored(runs: Iterable[Run], scorer: Scorer) -> list[ScoredRun]:
    """Each run with its score."""
    return [ScoredRun(*scorer(run), run.unstable, run.num_steps) for run in runs]


# What is left out of the training: an objective, an optimizer, or a fifth of the settings of each sweep.
SPLITS: Mapping[str, Callable[[Run], str]] = {
    "objective": lambda run: run.objective,
    "optimizer": lambda run: run.optimizer,
    "setting": lambda run: str(zlib.crc32(f"{run.sweep} {run.cell}".encode()) % 5),
}


OWN = "objective, own threshold"


def across(runs: Sequence[Run], split: str, train: Trained, most_false: float = MOST_FALSE) -> dict[str, Found]:
    """The quality on each fold of ``split``, with everything chosen on the others; ``all`` is of all together.

    With ``OWN`` the model is fitted on the other objectives, and the threshold chosen on other settings of the same.
    """
    key, results, of_fold = SPLITS["objective" if split == OWN else split], [], {}
    for held_out in sorted({key(run) for run in runs}):
        rest, tested = [run for run in runs if key(run) != held_out], [run for run in runs if key(run) == held_out]
        warner = train(rest)
        if split == OWN:
            found = _by_setting(scored(tested, warner.scorer), [SPLITS["setting"](run) for run in tested], most_false)
        else:
            threshold = warner.threshold
            if threshold is None:
                threshold = best_threshold(scored(rest, warner.scorer), most_false)
            found = [run_warnings(run, threshold) for run in scored(tested, warner.scorer)]
        of_fold[held_out] = Found(quality(found), intervals(found))
        results += found
    return {"all": Found(quality(results), intervals(results)), **of_fold}


def _by_setting(runs: Sequence[ScoredRun], settings: Sequence[str], most_false: float) -> list[RunWarnings]:
    """Each run with the threshold of the runs of other settings."""
    found = []
    for setting in sorted(set(settings)):
        others = [run for run, own in zip(runs, settings, strict=True) if own != setting]
        threshold = best_threshold(others, most_false)
        found += [run_warnings(run, threshold) for run, own in zip(runs, settings, strict=True) if own == setting]
    return found


def numbers(found: Found) -> dict[str, str]:
    """The columns of every table."""
    told, of = found.quality, found.intervals
    return {
        "onsets": str(told.num_onsets),
        "lead_20": _share(told.good_share),
        "lead_20_interval": _interval(of.good_share),
        "recall": _share(told.recall),
        "recall_interval": _interval(of.recall),
        "precision": _share(told.precision),
        "precision_interval": _interval(of.precision),
        "median_lead": "-" if told.median_lead is None else f"{told.median_lead:.0f}",
        "false_per_1000": f"{told.false_per_1000:.2f}",
        "false_interval": _interval(of.false_per_1000),
        "false_per_1000_stable": f"{told.stable_false_per_1000:.2f}",
    }


def _share(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"


def _interval(bounds: tuple[float, float]) -> str:
    return "-" if bounds[0] != bounds[0] else f"{bounds[0]:.2f}-{bounds[1]:.2f}"


def score_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Each score on each split, and the folds of the risks."""
    rows = []
    for split in (*SPLITS, OWN):
        for name, train in SCORES.items():
            if split == OWN and (not name.startswith("risk") or "at the edge" in name):
                continue
            for fold, found in across(runs, split, train).items():
                if fold == "all" or (name.startswith("risk") and split != "setting"):
                    rows.append({"left_out": split, "fold": fold, "score": name, **numbers(found)})
                    print(*rows[-1].values(), sep="\t", flush=True)
    return rows


def cost_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """The risks with readings that are more or less frequent, and what they cost in time, on left-out settings."""
    rows = []
    for every, curvature, name in COSTS:
        sparse = [thinned(run, every, curvature) for run in runs]
        cost = TelemetryConfig(every=every, curvature=curvature, products=1 if name == "one product" else 4)
        row = {
            "score": f"risk, {name}",
            "every": str(every),
            "curvature": "-" if curvature is None else str(curvature),
            "time": f"{cost.time_factor(native=False):.2f}",
        }
        train = trained_on(SETS[name], at_edge=name == "curvature")
        rows.append({**row, **numbers(across(sparse, "setting", train)["all"])})
        print(*rows[-1].values(), sep="\t", flush=True)
    return rows


def calibration_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Of left-out readings by their risk: how many an onset followed within the horizon."""
    rows = []
    for split, key in SPLITS.items():
        risks, was_soon = [], []
        for held_out in sorted({key(run) for run in runs}):
            model = fit([run for run in runs if key(run) != held_out], SETS["curvature"])
            for run in runs:
                if key(run) == held_out:
                    calm_N = is_calm(run.step_N, run.unstable)
                    risks.append(model.risks(run.feature_NF)[calm_N])
                    was_soon.append(soon(run)[calm_N])
        risk_N, soon_N = np.concatenate(risks), np.concatenate(was_soon)
        for low, high in itertools.pairwise((0.0, 0.01, 0.03, 0.1, 0.3, 1.0)):
            in_N = (risk_N >= low) & (risk_N < high)
            if in_N.any():
                told, came = f"{risk_N[in_N].mean():.3f}", f"{soon_N[in_N].mean():.3f}"
                rows.append({"left_out": split, "risk": told, "came_true": came, "readings": str(in_N.sum())})
    return rows


def write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """A table as comma-separated values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def fit_models(runs: Sequence[Run]) -> None:
    """Fit the package's models on all runs, and write them."""
    models = {}
    for name, (of, every, curvature) in FITTED.items():
        sparse = [thinned(run, every, curvature) for run in runs]
        model = fit(sparse, SETS[of])
        if of == "curvature":
            threshold = risk_at_edge(model)
        else:
            risks = scored(sparse, lambda run, model=model: (run.step_N, model.risks(run.feature_NF)))
            threshold = best_threshold(risks, MOST_FALSE)
        models[name] = replace(model, threshold=threshold)
    made = {
        "by": "python -m benchmarks.warning RESULTS --fit",
        "sweeps": sorted({run.sweep for run in runs}),
        "runs": len(runs),
        "instabilities": sum(len(run.unstable) for run in runs),
        "most_false_per_1000": MOST_FALSE,
        "read": {name: list(how) for name, how in FITTED.items()},
    }
    MODELS.write_text(models_as_text(models, made) + "\n")


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--fit", action="store_true", help="only fit the package's models")
    parser.add_argument("--forwards", type=Path, help="results of the same sweeps by forward passes")
    arguments = parser.parse_args()
    runs = read(arguments.results)
    if arguments.forwards:
        write(REFERENCE / "forwards.csv", forward_rows(runs, arguments.forwards))
        return
    if arguments.fit:
        fit_models(runs)
        return
    write(REFERENCE / "calibration.csv", calibration_rows(runs))
    write(REFERENCE / "scores.csv", score_rows(runs))
    write(REFERENCE / "costs.csv", cost_rows(runs))


if __name__ == "__main__":
    main()
