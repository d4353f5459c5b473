"""What the ledger knows of results that were trained elsewhere and brought in by `sweep import`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER
from orchestrator.base.reports import Trace
from orchestrator.base.space import canonical_json
from orchestrator.base.trial_result import MemberResult
from orchestrator.ledger.reader import LedgerReader

FACT = "imported"  # its name among the facts of a sweep
BY_WORDS, BY_FINAL_LOSSES, BY_CURVES = "words", "final losses", "curves"


@dataclass(frozen=True, slots=True)
class Imported:
    """Where imported results are from, and what is not known of them.

    ``sources`` are files, folders or stores. ``judged_by`` says what the outcomes follow from: the words of the source,
    its final losses, or curves. ``columns`` say which column of the source became what. ``left_out`` names rows or runs
    that could not be used, with the reason, up to a limit; ``num_left_out`` counts all. ``digest`` is a hash of all
    that was brought in, and ``imported_at`` the time of it in seconds since 1970.
    """

    sources: tuple[str, ...]
    judged_by: str
    columns: Mapping[str, str]
    num_runs: int
    num_left_out: int
    left_out: tuple[str, ...]
    digest: str
    imported_at: float

    @property
    def has_curves(self) -> bool:
        """Whether the losses of every step that was logged are known."""
        return self.judged_by == BY_CURVES

    @property
    def source_text(self) -> str:
        """The sources in a few words."""
        first, *others = self.sources
        return f"{first} and {len(others)} more" if others else first


@dataclass(frozen=True, slots=True)
class ImportedTrial:
    """A run that was trained elsewhere: its identity and settings, its result, and its curve if it is known.

    ``steps`` is its length, 0 where that is not known.
    """

    trial_id: str
    cell: Mapping[str, Any]
    seed: int
    config: Mapping[str, Any] = field(repr=False)
    steps: int
    finished: MemberResult
    curve: Trace | None = field(default=None, repr=False)


def fact_of(imported: Imported) -> str:
    """The fact as text."""
    return canonical_json(asdict(imported))


def imported_of(facts: Mapping[str, str]) -> Imported | None:
    """What was recorded of an import; None of a sweep that was trained here."""
    if FACT not in facts:
        return None
    found: dict[str, Any] = json.loads(facts[FACT])
    return Imported(**{**found, "sources": tuple(found["sources"]), "left_out": tuple(found["left_out"])})


def short_note(facts: Mapping[str, str]) -> str | None:
    """The mark of an imported map, for a caption; None of a sweep that was trained here."""
    imported = imported_of(facts)
    if imported is None:
        return None
    return "imported" if imported.has_curves else "imported without curves: spikes are not seen"


def long_note(facts: Mapping[str, str]) -> str | None:
    """Where imported results are from and what their outcomes do not tell; None of a sweep that was trained here."""
    imported = imported_of(facts)
    if imported is None:
        return None
    head = f"imported from {imported.source_text}, not trained by sweep"
    if imported.has_curves:
        return f"{head}; outcomes are the detector's, by the curves"
    if imported.judged_by == BY_FINAL_LOSSES:
        return f"{head}; outcomes are by final losses: without curves a run that spiked and recovered counts as stable"
    return f"{head}; outcomes are the words of the source; without curves nothing is known of spikes and onsets"


def is_imported(folder: Path) -> bool:
    """Whether the results in ``folder`` were trained elsewhere. Raises StorageError where its ledger cannot be read."""
    if not (folder / LEDGER).is_file():
        return False
    with LedgerReader(folder / LEDGER) as ledger:
        return bool(ledger.version) and FACT in ledger.facts()


def origin_notes(*folders: Path) -> Iterator[str]:
    """A line for each of ``folders`` whose results are imported, to stand below an answer."""
    for folder in folders:
        with LedgerReader(folder / LEDGER) as ledger:
            facts = ledger.facts()
        if (note := long_note(facts)) is not None:
            yield f"note: {facts.get('name', folder.name)} is {note}"


def refuse_imported(folder: Path) -> None:
    """Raise InputError where the results in ``folder`` are imported, and training is asked for."""
    if is_imported(folder):
        message = "holds imported results: they were trained elsewhere, and no sweep file says how"
        raise InputError(Problem(str(folder), "", message, "train a sweep of your own under another name"))


def refuse_without_curves(ledger: LedgerReader, why: str) -> None:
    """Raise InputError where the results of ``ledger`` are imported and no curve is known; ``why`` one is needed."""
    facts = ledger.facts()
    imported = imported_of(facts)
    if imported is not None and not imported.has_curves:
        message = f"was imported without curves, and {why}"
        remedy = "import the runs' logs, or a table with a loss in each row (--step, --loss): `sweep import --help`"
        raise InputError(Problem(facts.get("name", ""), "", message, remedy))
