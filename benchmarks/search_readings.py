"""What else a trial tells of the edge beside its side of it, and what that saves a search.

    python benchmarks/search_readings.py TABLE.csv --along AXIS [--log AXIS ...] [--searches N] [--read READING ...]

The table has a row for each trial of a trained grid: its axes, ``seed``, ``outcome`` and readings; ``--of FOLDER``
writes it from the ledger of a sweep first. The first answer is each reading's rank correlation with the place of a
trial relative to the edge of the other seeds, among trials of one side of it. The second is the error of searches that
see the first two seeds, in cells from the edge of the others. A reading is taken as a normal observation of the latent
value of P(stable), whose slope and noise are fitted to what the outcomes so far say.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.search_arms import Cell, edges_of
from benchmarks.search_tables import READINGS
from benchmarks.search_told import FEWEST, OF_STABLE, SEEN, Grid, ToldSearch, read_grid, told
from orchestrator.base.errors import SweepError
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.trend import Trend
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.curve_metrics import edge_crossings, spike_score
from orchestrator.surface.fitting import fit_surface

BUDGETS = (48, 64, 96, 128)
ARMS = (*((name,) for name in READINGS), ("peak_factor", "largest_rise"))
NEAR = 6  # cells from the edge


def main(arguments: Sequence[str] | None = None) -> int:
    """Show both answers for a table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--along", required=True, help="the axis along which training turns unstable")
    parser.add_argument("--log", nargs="*", default=[], metavar="AXIS", help="axes on a log scale")
    parser.add_argument("--searches", type=int, default=20, metavar="N", help="searches of each kind; 0 for none")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first search")
    parser.add_argument("--read", nargs="+", choices=READINGS, help="only searches that read these, all of them")
    parser.add_argument("--of", type=Path, metavar="FOLDER", help="results of the sweep whose table is written first")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.of is not None:
            write_table(chosen.of, chosen.table)
        grid = read_grid(chosen.table, chosen.along, chosen.log)
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show_correlations(grid)
    if chosen.searches:
        show_errors(
            grid, range(chosen.first, chosen.first + chosen.searches), ARMS if chosen.read is None else [chosen.read]
        )
    return 0


def write_table(folder: Path, path: Path) -> None:
    """The table of a sweep's finished trials, packed where the name ends in .gz."""
    with LedgerReader(folder / "ledger.db") as ledger:
        rules = StoppingConfig(**json.loads(ledger.facts()["stopping"]))
        trials = [trial for trial in ledger.trials() if trial.outcome is not None]
        rows = [
            {**trial.cell, "seed": trial.seed, "outcome": trial.outcome}
            | {name: "" if value is None else f"{value:.5g}" for name, value in _readings(ledger, trial, rules).items()}
            for trial in trials
        ]
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file,
            [name for name in rows[0] if any(row[name] != "" for row in rows)],
            extrasaction="ignore",
            lineterminator="\n",
        )
        writer.writeheader()
        writer.writerows(rows)


def _readings(ledger: LedgerReader, trial: TrialResult, rules: StoppingConfig) -> dict[str, float | None]:
    trace, telemetry = ledger.trace(trial.trial_id, ("loss", "grad_norm")), ledger.telemetry(trial.trial_id)
    found = {name: getattr(trial, name) for name in ("onset_step", "peak_factor", "off_share")}
    found["spike_score"] = spike_score([trace["loss"], trace["grad_norm"]])
    found["largest_rise"] = _largest_rise(trace["loss"], rules) if trial.outcome == "stable" else None
    if "lambda_max" in telemetry:
        curves = [telemetry[name] for name in ("step", "lambda_max", "curvature_threshold")]
        ratio_N = curves[1] / curves[2]
        late_N = ratio_N[(curves[0] > trial.steps / 2) & np.isfinite(ratio_N)]
        found["curvature"] = float(np.median(late_N)) if len(late_N) else None
        found["edge_crossings"] = edge_crossings(*curves)
    return found


def _largest_rise(loss_N: np.ndarray, rules: StoppingConfig) -> float:
    """The highest loss above its trend, in rises that leave it, after as many losses as the detector needs."""
    trend, largest = Trend(rules), 0.0
    for loss in loss_N.tolist():
        if trend.num_accepted > rules.min_history:
            largest = max(largest, (loss - trend.level) / trend.rise(0.0, 0.0))
        trend.accept(loss)
    return largest


def error(grid: Grid, names: Sequence[str], trials: Sequence[Cell]) -> float:
    """The mean distance in cells of the edge by these trials from that of the seeds that no search sees."""
    counts = Counter(trials)
    cells_ND = np.array(list(counts)) / (np.array(grid.sizes) - 1)
    stable_N = np.array([float(grid.is_stable_CS[cell][:num].sum()) for cell, num in counts.items()])
    num_N = np.array(list(counts.values()), dtype=float)
    search = ToldSearch(grid, (), max(BUDGETS), 0).lattice
    surface = fit_surface(cells_ND, stable_N, num_N, search.layout, search.resolution, has_one_edge=True)
    edge_R = edges_of(told(surface, grid, names, counts), grid.sizes)
    return float(np.abs(edge_R - grid.edge_of(range(SEEN, grid.num_seeds))).mean())


def correlations(grid: Grid, name: str, within: float) -> tuple[list[float], list[float]]:
    """Of each seed, and of each row of each seed: of the reading with the place relative to the other seeds' edge."""
    of_seeds, of_rows = [], []
    for seed in range(grid.num_seeds):
        edge_R = grid.edge_of([other for other in range(grid.num_seeds) if other != seed])
        away_RL = np.arange(grid.sizes[-1]) - edge_R[:, None]
        values_RL, has_RL = (x[..., seed].reshape(away_RL.shape) for x in (grid.readings[name], grid.has(name)))
        has_RL = has_RL & (np.abs(away_RL) <= within)
        rows = [*zip(values_RL, has_RL, away_RL, strict=True)]
        of_rows += [c for row in rows if (c := _correlation(*row)) is not None]
        of_seeds += [c for c in [_correlation(values_RL, has_RL, away_RL)] if c is not None]
    return of_seeds, of_rows


def _correlation(values: np.ndarray, has: np.ndarray, away: np.ndarray) -> float | None:
    if has.sum() < FEWEST or np.ptp(values[has]) == 0:
        return None
    return float(spearmanr(values[has], away[has]).statistic)


def show_correlations(grid: Grid) -> None:
    """Lowest, median and highest of the seeds, and the median row."""
    title = f"Rank correlation with the place relative to the edge; in brackets within {NEAR} cells of it"
    table = Table("reading", "side", "trials", "seeds: lowest", "median", "highest", "median row", title=title)
    for name in grid.readings:
        (all_seeds, all_rows), (near_seeds, near_rows) = (correlations(grid, name, most) for most in (np.inf, NEAR))
        if not all_seeds:
            continue
        cells = [(of(all_seeds), of(near_seeds) if near_seeds else np.nan) for of in (min, median, max)]
        cells.append(tuple(median(rows) if rows else np.nan for rows in (all_rows, near_rows)))
        side = "stable" if name in OF_STABLE else "over"
        table.add_row(name, side, str(int(grid.has(name).sum())), *(f"{a:+.2f} ({b:+.2f})" for a, b in cells))
    Console().print(table)


def show_errors(grid: Grid, seeds: Sequence[int], arms: Sequence[Sequence[str]]) -> None:
    """Medians over searches, and the mean change against outcomes alone with its standard error."""
    plain = [ToldSearch(grid, (), max(BUDGETS), seed).trials() for seed in seeds]
    alone = np.array([[error(grid, (), order[:most]) for most in BUDGETS] for order in track(plain, "Outcomes alone")])
    floor = np.abs(grid.edge_of(range(SEEN)) - grid.edge_of(range(SEEN, grid.num_seeds))).mean()
    table = Table(
        "read", "by", *map(str, BUDGETS), title=f"Median error in cells; the grid of the same seeds: {floor:.2f}"
    )
    table.add_row("outcomes", "", *(f"{value:.2f}" for value in np.median(alone, axis=0)))
    for names in arms:
        if not set(names) <= set(grid.readings):
            continue
        orders = [ToldSearch(grid, names, max(BUDGETS), seed).trials() for seed in track(seeds, ", ".join(names))]
        for by, of in (("the fit", plain), ("the search", orders)):
            errors = np.array([[error(grid, names, order[:most]) for most in BUDGETS] for order in of])
            change = errors - alone
            deviation = (
                change.std(axis=0, ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else np.full(len(BUDGETS), np.nan)
            )
            figures = zip(np.median(errors, axis=0), change.mean(axis=0), deviation, strict=True)
            table.add_row(", ".join(names), by, *(f"{a:.2f} ({b:+.2f} ± {c:.2f})" for a, b, c in figures))
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
