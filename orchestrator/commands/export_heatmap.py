"""`sweep export heatmap`: the stability map as a picture or a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.commands.printing import Answer
from orchestrator.pages import exports


def export_heatmap(
    folder: Path,
    file_format: str | None,
    x: str | None,
    y: str | None,
    metric: str,
    where: Mapping[str, str],
    reduce: str,
    facet: str | None,
    degraded: bool,
    output: Path | None,
) -> Answer:
    """Write the map of the sweep in ``folder`` as ``pictures.exports.export_heatmap`` does. Raises InputError."""
    path = exports.export_heatmap(
        folder,
        file_format,
        x=x,
        y=y,
        metric=metric,
        where=where,
        reduce=reduce,
        facet=facet,
        degraded=degraded,
        output=output,
    )
    yield f"wrote {path}"
    return EXIT_OK
