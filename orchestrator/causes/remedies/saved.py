"""What became of the runs of a sweep that left their trend: how many came back, and what saved the others."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from orchestrator.base.files import REMEDY_TABLE
from orchestrator.base.words import count
from orchestrator.maps.table import SweepTable


@dataclass(frozen=True, slots=True)
class SavedRuns:
    """Of the runs of a sweep ``num_off`` left their trend, and ``num_back`` came back by themselves.

    A remedy saves ``num_saved`` of ``num_cells`` unstable cells that were tried; ``remedy`` does so in the most, in
    ``num_by_remedy``, from a median of ``steps_before`` steps before the onset. ``alone_lower`` of ``num_spiked``
    saved cells whose run spiked end lower if left alone.
    """

    sweep: str
    num_off: int
    num_back: int
    num_cells: int = 0
    num_saved: int = 0
    remedy: str | None = None
    num_by_remedy: int = 0
    steps_before: int = 0
    num_spiked: int = 0
    alone_lower: int = 0

    def returns(self) -> str:
        """Return how many came back by themselves, as a sentence."""
        if not self.num_off:
            return f"no run of {self.sweep} left its trend"
        runs = count(self.num_off, "run")
        return f"{self.num_back} of {runs} of {self.sweep} that left the trend came back without help"

    def lines(self, checkpoint: int | None) -> Iterator[str]:
        """Yield what became of such runs, and what saves one from a ``checkpoint`` of this step."""
        yield self.returns()
        if not self.num_cells:
            yield f"what saved the others is not known: `sweep remedies {self.sweep}` tries it"
            return
        yield f"a remedy saves {self.num_saved} of {count(self.num_cells, 'unstable cell')} of {self.sweep}"
        if self.remedy is not None:
            best = f"most often {self.remedy} ({count(self.num_by_remedy, 'cell')})"
            before = f"from a median of {count(self.steps_before, 'step')} before the onset"
            where = "" if checkpoint is None else f": go back to a checkpoint of step {checkpoint:,} or before"
            yield f"{best}, {before}{where}"
        if self.num_spiked:
            yield f"of {count(self.num_spiked, 'spiked cell')} saved, {self.alone_lower} end lower if left alone"


def saved_runs(table: SweepTable) -> SavedRuns:
    """Read what became of the runs of a sweep, with the table that `sweep remedies` wrote, if it did."""
    off = [trial for trial in table.trials if trial.episodes and trial.outcome in ("spiked", "diverged", "stalled")]
    num_back = sum(trial.outcome == "spiked" for trial in off)
    rows = _rows(table.ledger.path.parent / REMEDY_TABLE)
    saved = [row for row in rows if row["cheapest"]]
    names = Counter(row["cheapest"] for row in saved)
    remedy, num = names.most_common(1)[0] if names else (None, 0)
    starts = [-float(row["from_onset"]) for row in saved if row["cheapest"] == remedy and row["from_onset"]]
    spiked = [row for row in saved if row["outcome"] == "spiked" and row["final_loss"] and row["alone_loss"]]
    return SavedRuns(
        sweep=table.name,
        num_off=len(off),
        num_back=num_back,
        num_cells=len(rows),
        num_saved=len(saved),
        remedy=remedy,
        num_by_remedy=num,
        steps_before=max(0, round(median(starts))) if starts else 0,
        num_spiked=len(spiked),
        alone_lower=sum(float(row["alone_loss"]) < float(row["final_loss"]) for row in spiked),
    )


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with open(path, newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []
