"""`sweep import`: make a sweep of results that were trained elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import LEDGER, STANDARD_OUTPUT, check_no_links, check_output, write_output
from orchestrator.base.space import Axis
from orchestrator.base.words import count, counts_line, shortened
from orchestrator.importing.collecting import Collected, checked_name, collect, record
from orchestrator.importing.options import ImportOptions
from orchestrator.ledger.facts import long_note
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.pages.report import are_current, export_all
from orchestrator.render.answer import to_json
from orchestrator.render.text import Document, Lines
from orchestrator.render.text_map import text_map

if TYPE_CHECKING:
    from rich.text import Text

_MAX_LEFT_OUT = 8  # rows that are printed


def import_results(
    sources: Sequence[str],
    name: str,
    options: ImportOptions,
    results: Path,
    json_file: Path | None = None,
    *,
    replaces: bool = False,
) -> Lines:
    """Import the results in ``sources`` into ``results``/``name`` as a sweep that is marked as imported.

    Nothing changes if the folder holds the same already; other imported results are replaced only with ``replaces``.
    Raises InputError, and StorageError if results cannot be written.
    """
    check_output(json_file, "--json")
    folder = results / checked_name(name)
    collected = collect(sources, options, results)
    check_no_links(folder)
    is_new = record(folder, name, collected, replaces=replaces)
    yield from _summary(name, collected, is_new=is_new)
    content = to_json(_content(name, collected, is_new=is_new))
    notes, left_out = [f"note: {note}" for note in collected.notes], list(_left_out(collected))
    del collected  # a long table and what is read of it below would need their memory together
    yield from _map(folder)
    yield from (*notes, *left_out)
    if not are_current(folder):
        yield from (f"wrote {path}" for path in export_all(folder))
    if json_file == STANDARD_OUTPUT:
        yield Document(content)
    elif json_file is not None:
        write_output(json_file, content)
        yield f"wrote {json_file}"
    return EXIT_OK


def _summary(name: str, collected: Collected, *, is_new: bool) -> Iterator[str]:
    cells = {run.settings.cell for run in collected.runs}
    verb = "imported" if is_new else "nothing to do, it holds these already:"
    runs = f"{count(len(collected.runs), 'run')} in {count(len(cells), 'cell')}"
    yield f"{name}: {verb} {runs} from {', '.join(collected.sources)}"
    yield "columns: " + ", ".join(f"{key} = {column}" for key, column in collected.columns.items())
    how = "scattered" if collected.is_scattered else "a grid"
    if (score := collected.score) is not None:
        yield f"settings are compared by {score.name}: higher is better"
    yield f"axes: {', '.join(map(_axis_text, collected.axes))}; cells are {how}"


def _axis_text(axis: Axis) -> str:
    return f"{axis.name} ({count(len(axis.values), 'value')}, {'a list' if axis.scale == 'values' else axis.scale})"


def _map(folder: Path) -> Iterator[str | Text]:
    """Yield the outcomes, the map, and what judged them."""
    with LedgerReader(folder / LEDGER) as ledger:
        rows, facts = read_table(ledger).trials, ledger.facts()
    yield counts_line(Counter(row.label for row in rows))
    if drawing := text_map(rows, ()):
        yield drawing
    yield f"note: {long_note(facts)}"


def _left_out(collected: Collected) -> Iterator[str]:
    """Yield the rows and runs that are not in the map, and why."""
    lines = [f"  {row}" for row in collected.left_out]
    if lines:
        yield f"left out: {len(lines)} of {len(lines) + len(collected.runs)}"
        yield from shortened(lines, _MAX_LEFT_OUT, "--json FILE writes all")


def _content(name: str, collected: Collected, *, is_new: bool) -> dict[str, Any]:
    """Return the JSON of an import: runs by outcome, the columns, and what was left out."""
    return {
        "sweep": name,
        "is_new": is_new,
        "sources": list(collected.sources),
        "judged_by": collected.judged_by,
        "columns": dict(collected.columns),
        "maximize": collected.score is not None,
        "axes": {axis.name: {"scale": axis.scale, "values": list(axis.values)} for axis in collected.axes},
        "is_scattered": collected.is_scattered,
        "num_runs": len(collected.runs),
        "num_cells": len({run.settings.cell for run in collected.runs}),
        "outcomes": Counter(run.result.outcome for run in collected.runs),
        "num_left_out": len(collected.left_out),
        "left_out": [{"where": row.where, "reason": row.reason} for row in collected.left_out],
        "notes": list(collected.notes),
    }
