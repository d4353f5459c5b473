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

    With ``degraded`` degraded trials do not count as stable.
    """
    from orchestrator.pictures.maps import comparison_picture

    if len(folders) < 2:
        raise InputError(Problem("NAME...", "", "one sweep cannot be compared", "give two names or more"))
    file_format = output_format(output)
    if output is None:
        refuse_links(results / COMPARISONS)
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(LedgerReader(folder / LEDGER)) for folder in folders]
        found = comparison.compare(ledgers, x, degraded)
    maps = comparison.shared_maps(found, x, y, reduce)
    names = [re.sub(r"[^\w.=-]+", "_", folder.name)[:_LONGEST_NAME] for folder in folders]
    path = output or results / COMPARISONS / f"{'_vs_'.join(names)}.png"
    write = write_output if output is not None else atomic_write
    write(path, comparison_picture(maps, file_format))
    yield from comparison_lines(found)
    yield f"picture: {path}"
    return EXIT_OK
