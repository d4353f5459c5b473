"""What the package's models warn of on runs with seeds that chose nothing: a row for each sweep, and for each run.

    python -m benchmarks.warning_fresh RESULTS

RESULTS holds sweeps of sweeps/warning, run with `sweep run FILE --seeds 2,3` (warning_fit_adamw with 3,4,5). Rows of
these sweeps in results/reference/warning/fresh.csv and fresh_runs.csv are replaced, and others stay.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.warning import REFERENCE, write
from orchestrator.base.files import LEDGER
from orchestrator.detection.warning.alarms import GOOD_LEAD
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.warning import WarnedSweep, warn, watched_runs

Row = dict[str, str]


def sweep_row(name: str, seeds: Sequence[int], found: WarnedSweep) -> Row:
    """Return the counts of a sweep."""
    of = found.quality
    numbers = {
        "runs": found.num_runs,
        "onsets": of.num_onsets,
        "onsets_warned_by_20": of.num_good,
        "onsets_warned": of.num_warned,
        "alarms": of.num_alarms,
        "true_alarms": of.num_alarms - of.num_false,
        "calm_steps": of.calm_steps,
        "false_alarms": of.num_false,
        "stable_steps": of.stable_steps,
        "false_alarms_stable": of.num_false_stable,
    }
    return {"sweep": name, "seeds": " ".join(map(str, seeds)), **{key: str(number) for key, number in numbers.items()}}


def run_rows(name: str, ledger: LedgerReader, found: WarnedSweep) -> list[Row]:
    """Return the onsets and false alarms of each run, but not onsets in the first 50 steps, too early for an alarm."""
    false = Counter(alarm.trial.trial_id for alarm in found.false_alarms)
    rows = []
    for run in watched_runs(ledger):
        trial = run.trial
        own = [one for one in found.instabilities if one.trial.trial_id == trial.trial_id]
        leads = [one.lead for one in own if one.lead is not None]
        numbers = [len(own), sum(lead >= GOOD_LEAD for lead in leads), len(leads), false[trial.trial_id]]
        columns = ("onsets", "onsets_warned_by_20", "onsets_warned", "false_alarms")
        rows.append(
            {"sweep": name, "cell": trial.cell.name, "seed": str(trial.seed), "outcome": str(trial.outcome)}
            | {column: str(number) for column, number in zip(columns, numbers, strict=True)}
        )
    return rows


def merged(path: Path, new: Sequence[Row]) -> list[Mapping[str, str]]:
    """Return the rows of the table at ``path``, with those of the sweeps in ``new`` replaced."""
    old = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    replaced = {row["sweep"] for row in new}
    return [*(row for row in old if row["sweep"] not in replaced), *new]


def main(folder: Path, reference: Path = REFERENCE) -> None:
    """Write both tables, sweeps in the order of their names."""
    sweeps: list[Row] = []
    runs: list[Row] = []
    for path in sorted(folder.glob(f"*/{LEDGER}")):
        with LedgerReader(path) as ledger:
            found, name = warn(ledger), path.parent.name
            seeds = sorted({trial.seed for trial in ledger.trials()})
            sweeps.append(sweep_row(name, seeds, found))
            runs += run_rows(name, ledger, found)
    for table, rows in (("fresh.csv", sweeps), ("fresh_runs.csv", runs)):
        write(reference / table, sorted(merged(reference / table, rows), key=lambda row: row["sweep"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    main(parser.parse_args().results)
