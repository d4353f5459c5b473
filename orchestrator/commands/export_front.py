"""`sweep export front`: the front of loss against margin, or against steps, as a picture and a table."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import (
    FRONT_PICTURE,
    FRONT_TABLE,
    LEDGER,
    PICTURES,
    check_no_links,
    output_format,
    write_if_changed,
    write_output,
)
from orchestrator.commands.printing import Answer
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.front import Front, front, front_table


def export_front(
    folder: Path,
    metric: str | None,
    against: str,
    along: str | None,
    target: float | None,
    degraded: bool,
    output: Path | None,
) -> Answer:
    """Write the front of the sweep in ``folder``, among all its cells.

    Writes a picture and a table, or only ``output``: what its suffix says. Raises InputError as ``front`` and
    ``output_format`` do.
    """
    file_format = output_format(output, (*PICTURES, "csv"))
    if output is None:
        check_no_links(folder)
    with LedgerReader(folder / LEDGER) as ledger:
        found = front(ledger, metric, against, along, target, degraded)
    if output is not None:
        write_output(output, _content(found, file_format))
        yield f"wrote {output}"
        return EXIT_OK
    for name in (FRONT_PICTURE, FRONT_TABLE):
        write_if_changed(folder / name, _content(found, name.rpartition(".")[2]))
        yield f"wrote {folder / name}"
    return EXIT_OK


def _content(found: Front, file_format: str) -> bytes | str:
    if file_format == "csv":
        return front_table(found).to_csv(index=False)
    from orchestrator.render.front import front_picture

    return front_picture(found, file_format)
