"""`sweep explain`: which mechanism rules which part of the unstable region."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import (
    EXPLANATION,
    LEDGER,
    atomic_write,
    check_no_links,
    check_output,
    output_format,
    write_output,
)
from orchestrator.causes import explanation
from orchestrator.causes.diagnosis import BatchTexts, batch_texts_of_objectives
from orchestrator.causes.explanation_text import explanation_json, explanation_lines
from orchestrator.commands.printing import Answer, written_json
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.explanation import explanation_figure


def explain(
    folder: Path,
    x: str | None,
    y: str | None,
    output: Path | None,
    json_file: Path | None = None,
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Answer:
    """Explain the map of the sweep in ``folder`` in words and write its picture. Raises InputError."""
    file_format = output_format(output)
    check_output(json_file, "--json")
    if output is None:
        check_no_links(folder)
    with LedgerReader(folder / LEDGER) as ledger:
        found = explanation.explain(ledger, x, y, batch_texts)
    path = output or folder / EXPLANATION
    write = write_output if output is not None else atomic_write
    write(path, explanation_figure(found, file_format))
    yield from explanation_lines(found)
    if found.causes:
        yield f"`sweep diagnose {folder.name} --cell AXIS=VALUE,...` has the evidence of a cell"
    yield f"picture: {path}"
    yield from written_json(json_file, explanation_json(found))
    return EXIT_OK
