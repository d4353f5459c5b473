"""What `sweep boundary`, `recommend`, `sensitivity` and `compare` print: a map's answers in words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.commands.comparison_text import comparison_lines
from orchestrator.errors import InputError, Problem
from orchestrator.files import COMPARISONS, LEDGER, atomic_write, output_format, refuse_links, write_output
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.boundary import boundary_lines
from orchestrator.maps.comparison import compare, shared_maps
from orchestrator.maps.recommendation import recommend, recommendation_lines
from orchestrator.maps.sensitivity import lr_sensitivity, sensitivity_lines
from orchestrator.maps.stability import stability_map

_LONGEST_NAME = 40


def boundary_answer(folder: Path, x: str | None, y: str | None, where: Mapping[str, str], reduce: str) -> Iterator[str]:
    """The boundary of the sweep in ``folder`` along ``x``, row by row. Raises InputError."""
    with LedgerReader(folder / LEDGER) as ledger:
        stability = stability_map(ledger, x, y, where=where, reduce=reduce)
    note = f" ({stability.note})" if stability.note else ""
    yield f"{stability.name}: the edge along {stability.x.name}{note}; a cell is stable when all its seeds are"
    yield from boundary_lines(stability)


def recommendation_answer(folder: Path, margin: float, metric: str) -> list[str]:
    """The recommended setting of the sweep in ``folder``, or none, with the evidence. Raises InputError."""
    with LedgerReader(folder / LEDGER) as ledger:
        return recommendation_lines(recommend(ledger, margin, metric))


def sensitivity_answer(folder: Path, axis: str) -> list[str]:
    """The learning-rate sensitivity of each setting of the sweep in ``folder``. Raises InputError."""
    with LedgerReader(folder / LEDGER) as ledger:
        return sensitivity_lines(lr_sensitivity(ledger, axis), axis)


def comparison_answer(
    folders: Sequence[Path], x: str | None, y: str | None, reduce: str, output: Path | None, results: Path
) -> Iterator[str]:
    """Compare the sweeps in ``folders``, write the picture, say what changed. Raises InputError."""
    from orchestrator.pictures.maps import comparison_picture

    if len(folders) < 2:
        raise InputError(Problem("NAME...", "", "one sweep cannot be compared", "give two names or more"))
    file_format = output_format(output)
    if output is None:
        refuse_links(results / COMPARISONS)
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(LedgerReader(folder / LEDGER)) for folder in folders]
        found = compare(ledgers, x)
    maps = shared_maps(found, x, y, reduce)
    names = [re.sub(r"[^\w.=-]+", "_", folder.name)[:_LONGEST_NAME] for folder in folders]
    path = output or results / COMPARISONS / f"{'_vs_'.join(names)}.png"
    write = write_output if output is not None else atomic_write
    write(path, comparison_picture(maps, file_format))
    yield from comparison_lines(found)
    yield f"picture: {path}"
