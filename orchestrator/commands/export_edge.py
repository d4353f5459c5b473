"""`sweep export edge`: the edge along one axis against another, as a picture and a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import (
    EDGE_PICTURE,
    EDGE_TABLE,
    LEDGER,
    PICTURES,
    check_no_links,
    output_format,
    write_if_changed,
    write_output,
)
from orchestrator.commands.printing import Answer
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.edge_line import EdgeLines, edge_lines, edge_table


def export_edge(
    folder: Path,
    x: str | None,
    y: str | None,
    facet: str | None,
    where: Mapping[str, str],
    degraded: bool,
    output: Path | None,
) -> Answer:
    """Write the edge along ``x`` against ``y`` of the sweep in ``folder``, with a line for each value of ``facet``.

    Writes a picture and a table, or only ``output``: what its suffix says. Raises InputError as ``edge_lines`` and
    ``output_format`` do.
    """
    file_format = output_format(output, (*PICTURES, "csv"))
    if output is None:
        check_no_links(folder)
    with LedgerReader(folder / LEDGER) as ledger:
        found = edge_lines(ledger, x, y, facet, where, degraded)
    if output is not None:
        write_output(output, _content(found, file_format))
        yield f"wrote {output}"
        return EXIT_OK
    for name in (EDGE_PICTURE, EDGE_TABLE):
        write_if_changed(folder / name, _content(found, name.rpartition(".")[2]))
        yield f"wrote {folder / name}"
    return EXIT_OK


def _content(found: EdgeLines, file_format: str) -> bytes | str:
    if file_format == "csv":
        return edge_table(found).to_csv(index=False)
    from orchestrator.render.edge_line import edge_picture

    return edge_picture(found, file_format)
