"""Files made from the ledger, which can be made again at any time: map, picture, report."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import InputError
from orchestrator.base.files import (
    EXPORTED,
    HEATMAP,
    LEDGER,
    atomic_write,
    check_no_links,
    frozen_text,
    storage_errors,
)
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.fitted import map_mesh
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import as_csv, map_table, readings_and_printed, trial_table

MAP_TABLE, TRIAL_TABLE, REPORT = "map.csv", "trials.csv", "report.html"


def are_current(folder: Path) -> bool:
    """Whether the exports match the ledger and the sweep file; independent of any clock."""
    marker = folder / EXPORTED
    if not (folder / REPORT).is_file() or not marker.is_file():
        return False
    with LedgerReader(folder / LEDGER) as ledger, storage_errors(marker):
        return marker.read_text() == ledger.state()


def existing_exports(folder: Path) -> list[Path]:
    """The exports that exist."""
    return [path for name in (HEATMAP, MAP_TABLE, TRIAL_TABLE, REPORT) if (path := folder / name).is_file()]


def export_all(folder: Path) -> list[Path]:
    """Write heatmap, tables and report of the sweep in ``folder``; returns what was written."""
    from orchestrator.pages.report import report_html
    from orchestrator.render.maps import heatmap

    written: dict[str, bytes | str] = {}
    with LedgerReader(folder / LEDGER) as ledger:
        table = read_table(ledger)
        found = readings_and_printed(table)
        try:
            stability = cell_map(table, measured=found)
        except InputError:
            stability = None  # a sweep over seeds only has no axes and no map
        if stability is not None:
            written[HEATMAP] = heatmap(stability, "png", [map_mesh(table, stability)])
            written[MAP_TABLE] = as_csv(map_table(stability))
        written[TRIAL_TABLE] = as_csv(trial_table(table, found))
        text = frozen_text(folder)
        written[REPORT] = report_html(table, stability, text)
        state = ledger.state()
    check_no_links(folder)
    for name, content in written.items():
        atomic_write(folder / name, content)
    atomic_write(folder / EXPORTED, state)  # last, since it marks the others as complete
    return [folder / name for name in written]
