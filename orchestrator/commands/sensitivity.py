"""`sweep sensitivity`: what a wrong learning rate costs."""

from __future__ import annotations

import math
from pathlib import Path

from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import LEDGER, check_output
from orchestrator.commands.printing import Answer, written_json
from orchestrator.ledger.reader import LedgerReader, origin_notes
from orchestrator.maps.fitted_sensitivity import words_and_data


def sensitivity(folder: Path, axis: str, between: str | None, json_file: Path | None) -> Answer:
    """The learning-rate sensitivity of each setting of the sweep in ``folder``, over the range ``between`` of LOW:HIGH.

    Raises InputError.
    """
    ends = None if between is None else _ends(between)
    check_output(json_file, "--json")
    with LedgerReader(folder / LEDGER) as ledger:
        lines, found = words_and_data(ledger, axis, ends)
    yield from lines
    yield from origin_notes(folder)
    yield from written_json(json_file, found)
    return EXIT_OK


def _ends(text: str) -> tuple[float, float]:
    """The ends of the range LOW:HIGH."""
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    if not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
        raise InputError(Problem(f"--range {text}", "", "is not LOW:HIGH", "write e.g. --range 1e-4:1e-1"))
    return ends
