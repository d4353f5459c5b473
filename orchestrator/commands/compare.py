"""`sweep compare`: how sweeps differ, in words and as a picture."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import (
    COMPARISONS,
    LEDGER,
    atomic_write,
    check_no_links,
    check_output,
    output_format,
    write_output,
)
from orchestrator.commands.printing import Answer, written_json
from orchestrator.ledger.reader import LedgerReader, origin_notes
from orchestrator.maps import comparison
from orchestrator.maps.compared import are_scattered
from orchestrator.maps.comparison_text import comparison_json, comparison_lines
from orchestrator.maps.one_value import values_along

_LONGEST_NAME = 40


def compare(
    folders: Sequence[Path],
    x: str | None,
    y: str | None,
    reduce: str,
    degraded: bool,
    output: Path | None,
    results: Path,
    along: str | None = None,
    base: str | None = None,
    json_file: Path | None = None,
) -> Answer:
    """Compare the sweeps in ``folders``, write the picture and describe the differences. Raises InputError.

    With ``along`` the values of that axis of one sweep are compared in place of sweeps, with ``base`` or the first.
    With ``degraded`` degraded trials do not count as stable. Grids are compared on their shared cells, and surfaces
    fitted to the trials where the cells of a sweep are scattered.
    """
    _check(folders, along, base)
    file_format = output_format(output)
    check_output(json_file, "--json")
    if output is None:
        check_no_links(results / COMPARISONS)
    with contextlib.ExitStack() as stack:
        ledgers: Sequence[LedgerReader]
        if along is not None:
            ledgers = values_along(folders[0] / LEDGER, along, base, stack)
        else:
            ledgers = [stack.enter_context(LedgerReader(folder / LEDGER)) for folder in folders]
        compared = _on_surfaces if are_scattered(ledgers) else _on_cells
        lines, picture, content = compared(ledgers, x, y, reduce, degraded, file_format)
    names = [re.sub(r"[^\w.=-]+", "_", folder.name)[:_LONGEST_NAME] for folder in folders]
    file_name = "_vs_".join(names) if along is None else f"{names[0]}_along_{along}"
    path = output or results / COMPARISONS / f"{file_name}.png"
    write = write_output if output is not None else atomic_write
    write(path, picture)
    yield from lines
    yield f"picture: {path}"
    yield from origin_notes(*folders)
    yield from written_json(json_file, content)
    return EXIT_OK


def _check(folders: Sequence[Path], along: str | None, base: str | None) -> None:
    """Raise InputError where the number of sweeps does not fit the options."""
    if along is not None and len(folders) != 1:
        message = f"compares the values of an axis in one sweep, and {len(folders)} are given"
        raise InputError(Problem(f"--along {along}", "", message, "give one name, or leave it out"))
    if along is None and base is not None:
        message = "is a value of the axis of --along, which is not given"
        raise InputError(
            Problem(f"--base {base}", "", message, "say --along AXIS; of several sweeps the first is the base")
        )
    if along is None and len(folders) < 2:
        remedy = "give two names or more, or --along AXIS for the values of one of its axes"
        raise InputError(Problem("NAME...", "", "one sweep cannot be compared", remedy))


def _on_cells(
    ledgers: Sequence[LedgerReader], x: str | None, y: str | None, reduce: str, degraded: bool, file_format: str
) -> tuple[list[str], bytes, dict[str, Any]]:
    """Words, picture and JSON of grids: their shared cells."""
    from orchestrator.render.maps import comparison_picture

    found = comparison.compare(ledgers, x, degraded)
    maps = comparison.shared_maps(found, x, y, reduce)
    return comparison_lines(found), comparison_picture(maps, file_format), comparison_json(found)


def _on_surfaces(
    ledgers: Sequence[LedgerReader], x: str | None, y: str | None, reduce: str, degraded: bool, file_format: str
) -> tuple[list[str], bytes, dict[str, Any]]:
    """Words, picture and JSON of surfaces, where cells are scattered and two sweeps hardly share any."""
    from orchestrator.maps import fitted_comparison
    from orchestrator.maps.fitted_comparison_text import fitted_comparison_json, fitted_comparison_lines
    from orchestrator.render.fitted_comparison import fitted_comparison_picture

    found = fitted_comparison.compare_fitted(ledgers, x, degraded)
    maps = fitted_comparison.fitted_maps(found, x, y, reduce)
    meshes = fitted_comparison.fitted_meshes(found, maps[0].x.name, None if maps[0].y is None else maps[0].y.name)
    picture = fitted_comparison_picture(maps, meshes, file_format)
    return fitted_comparison_lines(found), picture, fitted_comparison_json(found)
