"""`sweep compare`: how sweeps differ, in words and as a picture."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK, InputError, Problem
from orchestrator.files import COMPARISONS, LEDGER, atomic_write, output_format, refuse_links, write_output
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import comparison
from orchestrator.maps.comparison_text import comparison_lines

_LONGEST_NAME = 40


def compare(
    folders: Sequence[Path],
    x: str | None,
    y: str | None,
    reduce: str,
    degraded: bool,
    output: Path | None,
    results: Path,
) -> Answer:
    """Compare the sweeps in ``folders``, write the picture and describe the differences. Raises InputError.

    With ``degraded`` degraded trials do not count as stable. Grids are compared on their shared cells, and surfaces
    fitted to the trials where the cells of a sweep are scattered.
    """
    if len(folders) < 2:
        raise InputError(Problem("NAME...", "", "one sweep cannot be compared", "give two names or more"))
    file_format = output_format(output)
    if output is None:
        refuse_links(results / COMPARISONS)
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(LedgerReader(folder / LEDGER)) for folder in folders]
        are_scattered = any(ledger.facts().get("is_sampled") == "true" for ledger in ledgers)
        lines, picture = (_on_surfaces if are_scattered else _on_cells)(ledgers, x, y, reduce, degraded, file_format)
    names = [re.sub(r"[^\w.=-]+", "_", folder.name)[:_LONGEST_NAME] for folder in folders]
    path = output or results / COMPARISONS / f"{'_vs_'.join(names)}.png"
    write = write_output if output is not None else atomic_write
    write(path, picture)
    yield from lines
    yield f"picture: {path}"
    return EXIT_OK


def _on_cells(
    ledgers: Sequence[LedgerReader], x: str | None, y: str | None, reduce: str, degraded: bool, file_format: str
) -> tuple[list[str], bytes]:
    """Words and picture of grids: their shared cells."""
    from orchestrator.pictures.maps import comparison_picture

    found = comparison.compare(ledgers, x, degraded)
    maps = comparison.shared_maps(found, x, y, reduce)
    return comparison_lines(found), comparison_picture(maps, file_format)


def _on_surfaces(
    ledgers: Sequence[LedgerReader], x: str | None, y: str | None, reduce: str, degraded: bool, file_format: str
) -> tuple[list[str], bytes]:
    """Words and picture where cells are scattered, and two sweeps hardly share any: the surfaces fitted to them."""
    from orchestrator.maps import fitted_comparison
    from orchestrator.maps.fitted_comparison_text import fitted_comparison_lines
    from orchestrator.pictures.fitted_comparison import fitted_comparison_picture

    found = fitted_comparison.compare_fitted(ledgers, x, degraded)
    maps = fitted_comparison.fitted_maps(found, x, y, reduce)
    meshes = fitted_comparison.fitted_meshes(found, maps[0].x.name, None if maps[0].y is None else maps[0].y.name)
    return fitted_comparison_lines(found), fitted_comparison_picture(maps, meshes, file_format)
