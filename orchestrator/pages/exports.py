"""Files made from the ledger, which can be made again at any time: map, picture, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.base.errors import InputError
from orchestrator.base.files import (
    EXPORTED,
    LEDGER,
    PICTURES,
    atomic_write,
    check_no_links,
    frozen_text,
    output_format,
    storage_errors,
    write_if_changed,
    write_output,
)
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.curve_metrics import OF_TELEMETRY, also_of, measured
from orchestrator.maps.fitted import Mesh, fitted_mesh
from orchestrator.maps.stability import StabilityMap, facet_maps, stability_map
from orchestrator.maps.tables import as_csv, map_table, readings_and_printed, trial_table

MAP_FORMATS = (*PICTURES, "csv")
HEATMAP, MAP_TABLE, TRIAL_TABLE, REPORT = "heatmap.png", "map.csv", "trials.csv", "report.html"


def export_heatmap(
    folder: Path,
    file_format: str | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    metric: str = "final_loss",
    where: Mapping[str, str] | None = None,
    reduce: str = "worst",
    facet: str | None = None,
    degraded: bool = False,
    output: Path | None = None,
) -> Path:
    """Write the stability map of the sweep in ``folder`` and return its path; csv writes its table.

    The format is the suffix of ``output``, or png. With ``facet`` there is one map for each value of that axis; with
    ``degraded`` degraded cells are over the edge. Raises InputError for an axis or metric that the sweep does not have,
    and as ``output_format`` does.
    """
    file_format = output_format(output, MAP_FORMATS, file_format)
    if output is None:
        check_no_links(folder)
    options: dict[str, Any] = {"x": x, "y": y, "metric": metric, "reduce": reduce}
    options["counts_degraded"] = degraded
    with LedgerReader(folder / LEDGER) as ledger:
        in_table = OF_TELEMETRY if file_format == "csv" else ()
        wanted = dict.fromkeys([metric, *in_table, *also_of(ledger.trials())])
        options["measured"] = measured(ledger, wanted, ledger.statuses())
        if facet is None:
            maps = [stability_map(ledger, where=where, **options)]
        else:
            maps = facet_maps(ledger, facet, where or {}, **options)
        meshes = [_mesh(ledger, each, where) for each in maps]
    if file_format == "csv":
        content: bytes | str = as_csv(_table(maps))
    else:
        from orchestrator.render.maps import heatmap

        content = heatmap(maps, file_format, meshes)
    path = output or folder / (MAP_TABLE if file_format == "csv" else f"heatmap.{file_format}")
    if output is not None:
        write_output(path, content)
    else:
        write_if_changed(path, content)
    return path


def _mesh(ledger: LedgerReader, stability: StabilityMap, where: Mapping[str, str] | None = None) -> Mesh | None:
    """The surface behind the points of a map whose cells are scattered."""
    if not stability.is_sampled:
        return None
    chosen = {**(where or {}), **dict([stability.facet] if stability.facet else [])}
    y = None if stability.y is None else stability.y.name
    return fitted_mesh(ledger, stability.x.name, y, chosen, stability.counts_degraded)


def _table(maps: Sequence[StabilityMap]) -> pd.DataFrame:
    """The maps' tables concatenated, with the facet's value in the first column."""
    tables = [map_table(stability) for stability in maps]
    for table, stability in zip(tables, maps, strict=True):
        if stability.facet is not None:
            table.insert(0, *stability.facet)
    return pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]


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
        found = readings_and_printed(ledger)
        try:
            stability = stability_map(ledger, measured=found)
        except InputError:
            stability = None  # a sweep over seeds only has no axes and no map
        if stability is not None:
            written[HEATMAP] = heatmap(stability, "png", [_mesh(ledger, stability)])
            written[MAP_TABLE] = as_csv(map_table(stability))
        written[TRIAL_TABLE] = as_csv(trial_table(ledger, found))
        text = frozen_text(folder)
        written[REPORT] = report_html(ledger, stability, text)
        state = ledger.state()
    check_no_links(folder)
    for name, content in written.items():
        atomic_write(folder / name, content)
    atomic_write(folder / EXPORTED, state)  # last, since it marks the others as complete
    return [folder / name for name in written]
