"""`sweep diagnose`: why a trial became unstable, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import (
    DIAGNOSES,
    LEDGER,
    atomic_write,
    check_no_links,
    check_output,
    output_format,
    write_output,
)
from orchestrator.causes import diagnosis
from orchestrator.causes.diagnosis import BatchTexts, batch_texts_of_objectives
from orchestrator.causes.diagnosis_text import advised, diagnosis_json, diagnosis_lines
from orchestrator.causes.remedies.answer_text import remedy_lines
from orchestrator.commands.printing import Answer, written_json
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.diagnosis import diagnosis_figure

Write = Callable[[Path, bytes | str], None]


def diagnose(
    folder: Path,
    trial_id: str | None,
    cell: Mapping[str, str],
    output: Path | None,
    json_file: Path | None,
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Answer:
    """Diagnose a trial of the sweep in ``folder``: its page, its picture, and small sweeps that test the advice.

    Raises InputError.
    """
    file_format = output_format(output)
    check_output(json_file, "--json")
    write = write_output if output is not None else atomic_write
    if output is None:
        check_no_links(folder, folder / DIAGNOSES)
    with LedgerReader(folder / LEDGER) as ledger:
        found = diagnosis.diagnose(ledger, trial_id, cell, batch_texts)
        tried = [] if found is None else list(remedy_lines(ledger, found))
    if found is None:
        yield f"{folder.name}: all its trials are stable, there is nothing to diagnose"
        yield "`--trial ID` diagnoses a stable trial anyway"
        yield from written_json(json_file, {"sweep": folder.name, "trial_id": None})
        return EXIT_OK
    advice, reasons = advised(found, folder)
    path = output or folder / DIAGNOSES / f"{found.trial.trial_id}.png"
    write(path, diagnosis_figure(found, file_format))
    yield from diagnosis_lines(found, advice, folder, reasons)
    yield f"picture: {path}"
    files = {f"{item.move.direction}_{item.move.setting}": item.sweep_file for item in advice}
    files |= {f"not_finite_{item.key}": item.deciding_sweep for item in reasons if item.answer != "no"}
    yield from _small_sweeps(found.trial.trial_id, files, path.parent, write)
    yield from tried
    yield from written_json(json_file, diagnosis_json(found, advice, reasons))
    return EXIT_OK


def _small_sweeps(trial_id: str, files: Mapping[str, str | None], folder: Path, write: Write) -> Iterator[str]:
    """Write the small sweeps of the advice to the folder of the picture, ready to run."""
    written = []
    for name, content in files.items():
        if content is not None:
            path = folder / f"{trial_id}_{name}.yaml"
            write(path, content)
            written.append(path)
    if written:
        yield "small sweeps that would decide, for `sweep run`:"
        yield from (f"  {path}" for path in written)
