"""The sweeps of a results folder, each with what a list shows."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.base.errors import InputError, SweepError
from orchestrator.base.files import FROZEN_SWEEP, LEDGER, frozen_text, is_locked
from orchestrator.base.query import hidden, reported
from orchestrator.ledger.facts import IMPORTED_FACT
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cells import stable_share
from orchestrator.maps.edges import Edge, Row
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.sweepfile.strict_yaml import question_of


@dataclass(frozen=True, slots=True)
class EdgeRange:
    """Where the edge along ``axis`` lies: from the lowest to the highest row with one edge, or of all rows."""

    axis: str
    low: float
    high: float

    @property
    def text(self) -> str:
        """In words, with three digits."""
        low, high = f"{self.low:.3g}", f"{self.high:.3g}"
        return f"{self.axis} {low}" if low == high else f"{self.axis} {low} .. {high}"


@dataclass(frozen=True, slots=True)
class ListedSweep:
    """One sweep: ``axes`` have their numbers of values, 0 if cells are scattered.

    ``changed_at`` is the time of its last change in seconds since 1970. ``question`` is what its file asks, and
    ``edge`` where the edge lies on a grid. ``num_over`` of its trials are finished or errored. ``stable_share`` is None
    without an outcome. ``problem`` says why its ledger cannot be read. One that ``is_imported`` was trained elsewhere.
    """

    sweep: str
    is_running: bool
    changed_at: float = hidden()
    objective: str | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    num_trials: int = 0
    num_over: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    stable_share: float | None = None
    problem: str | None = None
    is_imported: bool = False
    question: str = ""
    edge: EdgeRange | None = None

    @reported
    def changed(self) -> str:
        """The time of the last change in UTC."""
        return datetime.datetime.fromtimestamp(self.changed_at, datetime.UTC).isoformat(timespec="seconds")

    @property
    def axes_text(self) -> str:
        """Its axes in words; one where a search or a sample chooses has no number of values."""
        return " x ".join(f"{name} {num}" if num else name for name, num in self.axes.items())


def all_sweeps(results: Path) -> list[ListedSweep]:
    """The sweeps in the folder ``results``, the latest change first."""
    return sorted((listed_sweep(folder)[0] for folder in sweep_folders(results)), key=lambda found: -found.changed_at)


def sweep_folders(results: Path) -> list[Path]:
    """The folders in ``results`` that have a ledger, by name."""
    return [folder for folder in sorted(results.iterdir()) if (folder / LEDGER).is_file()] if results.is_dir() else []


def listed_sweep(folder: Path) -> tuple[ListedSweep, SweepTable | None]:
    """What a list shows of the sweep in ``folder``, and its table; None if its ledger cannot be read."""
    changed = max(path.stat().st_mtime for path in (folder / LEDGER, folder / FROZEN_SWEEP) if path.exists())
    try:
        with LedgerReader(folder / LEDGER) as ledger:
            table = read_table(ledger)
            edge = _edge(table)
        question = question_of(frozen_text(folder))
    except SweepError as error:
        return ListedSweep(folder.name, is_locked(folder), changed, problem=str(error).splitlines()[0]), None
    outcomes = Counter(row.label for row in table.trials if row.outcome is not None)
    found = ListedSweep(
        folder.name,
        is_locked(folder),
        changed,
        table.facts.get("objective"),
        {axis.name: len(axis.values) if table.is_grid else 0 for axis in table.axes},
        len(table.trials),
        sum(row.status in ("finished", "errored") for row in table.trials),
        {str(outcome): num for outcome, num in outcomes.items()},
        stable_share(table.by_cell().values()),
        is_imported=IMPORTED_FACT in table.facts,
        question=question,
        edge=edge,
    )
    return found, table


def _edge(table: SweepTable) -> EdgeRange | None:
    """The range of a grid's edge; None without an edge, without rows, and where it has no place on its axis.

    Rows with one edge tell it, or else the edges of the largest stable region: those of islands do not count.
    """
    if not table.is_grid:
        return None
    try:
        stability = GridMap(table).steepest
        rows = stability.rows()
        clear = [list(row.edges) for row in rows if len(row.edges) == 1]  # a row with an island has three
        edges = clear or [_of_largest_region(stability, row) for row in rows]
        places = [edge.at for of_row in edges for edge in of_row if edge.at is not None]
    except InputError:
        return None
    return EdgeRange(stability.along.name, min(places), max(places)) if places else None


def _of_largest_region(stability: GridMap, row: Row) -> list[Edge]:
    """The edges of a ``row`` whose stable side is a part of the largest stable region."""
    axis = stability.along.name
    kept: list[Edge] = []
    for edge in row.edges:
        beside = row.setting.moved(axis, edge.low if edge.is_stable_below else edge.high)
        if not stability.islands(cell for cell in stability.states if beside.items() <= cell.items()):
            kept.append(edge)
    return kept
