"""MLflow's pages: the server that shows them, and prepared views in which sweeps are compared.

A view is a tag of the experiment that MLflow's own button for sharing would write: columns, order and charts.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.mirrors.mlflow_store import artifacts_folder
from orchestrator.mirrors.sweep_records import MAP_AXES

_VIEW = "mlflow.sharedViewState."
# As many as a page of usual width shows; MLflow orders them by name.
_SWEEP_COLUMNS = ("stable_fraction", "edge_low", "edge_high", "recommended_margin", "lr_sensitivity")
_CELL_COLUMNS = ("stable_fraction", "distance_to_edge", "final_loss", "num_diverged", "num_spiked")
_MOST_MAPS = 12  # on one page
_PAGE = 1000


def run_pages(uri: str, address: str) -> list[str]:
    """What each experiment's pages show, with where the server at ``address`` has them; prepares their views.

    Empty when the store cannot be read. MLflow opens an experiment on a page for chat traces unless the address asks
    for its runs.
    """
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    lines = []
    try:
        for experiment in client.search_experiments():
            if experiment.name == "Default":
                continue
            page = f"{address}/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning"
            query = "tags.`sweep.level` = 'sweep'"
            sweeps = client.search_runs([experiment.experiment_id], query, max_results=_PAGE)
            if not sweeps:
                lines.append(f"runs of {experiment.name}: {page}&startTime=ALL")
                continue
            views = {
                "sweeps": (f"sweeps of {experiment.name}, the widest stable region first", sweeps_view(), "TABLE"),
                "maps": ("their maps side by side (1: every seed is stable, 0: none is)", maps_view(sweeps), "CHART"),
            }
            for key, (title, view, mode) in views.items():
                client.set_experiment_tag(experiment.experiment_id, _VIEW + key, json.dumps(view))
                asked = urllib.parse.urlencode({"viewStateShareKey": key, "compareRunsMode": mode})
                lines.append(f"{title}: {page}&{asked}")
    except Exception:
        return lines
    return lines


def sweeps_view() -> dict[str, Any]:
    """The list of sweeps by the share of their seeds that are stable, with their edges."""
    columns = [f"metrics.`{name}`" for name in _SWEEP_COLUMNS]
    return _view("tags.`sweep.level` = 'sweep'", "metrics.`stable_fraction`", columns)


def maps_view(sweeps: Sequence[Any]) -> dict[str, Any]:
    """A chart of the stable fraction for each of the runs ``sweeps``, over the axes that its tag names.

    They come in pairs with the names of the sweeps above them, since MLflow titles a chart by its axes alone.
    """
    named = [
        (str(sweep.info.run_name), [axis for axis in sweep.data.tags.get(MAP_AXES, "").split(",") if axis])
        for sweep in sweeps[:_MOST_MAPS]
    ]
    charts, sections = [], []
    drawn = [each for each in named if each[1]]
    for start in range(0, len(drawn), 2):
        pair = drawn[start : start + 2]
        section = f"maps of {' and '.join(name for name, _ in pair)}"
        title = "   |   ".join(name for name, _ in pair)
        sections.append({
            "uuid": section, "name": f"stable fraction of cells:   {title}", "display": True, "isReordered": False,
            "deleted": False, "isGenerated": False, "columns": 2, "cardHeight": 480,
        })  # fmt: skip
        charts += [_map_chart(name, axes, section) for name, axes in pair]
    columns = [f"metrics.`{name}`" for name in _CELL_COLUMNS]
    view = _view("tags.`sweep.level` = 'cell'", "params.`sweep`", [*columns, "params.`sweep`"])
    return {**view, "runListHidden": True, "compareRunSections": sections, "compareRunCharts": charts}


def _map_chart(sweep: str, axes: Sequence[str], section: str) -> dict[str, Any]:
    """A contour over two axes; with one axis the points of its cells."""
    fraction = {"key": f"stable_fraction/{sweep}", "type": "METRIC"}
    x, y = ({"key": name, "type": "PARAM"} for name in (axes[0], axes[-1]))
    shared = {"uuid": f"map-{sweep}", "metricSectionId": section, "deleted": False, "isGenerated": False}
    shared |= {"displayName": sweep, "runsCountToCompare": _PAGE}
    if len(axes) > 1:
        return {**shared, "type": "CONTOUR", "xaxis": x, "yaxis": y, "zaxis": fraction}
    return {**shared, "type": "SCATTER", "xaxis": x, "yaxis": fraction}


def _view(query: str, order: str, columns: Sequence[str]) -> dict[str, Any]:
    """The state of MLflow's page of runs."""
    return {
        "searchFilter": query, "orderByKey": order, "orderByAsc": False, "startTime": "ALL",
        "lifecycleFilter": "Active", "datasetsFilter": [], "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns), "columnOrder": [], "columnWidths": {}, "runsExpanded": {}, "runsPinned": [],
        "runsHidden": [], "runsVisibilityMap": {}, "runsHiddenMode": "SHOWALL", "viewMaximized": False,
        "runListHidden": False, "isAccordionReordered": False, "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True, "groupBy": None, "groupsExpanded": {}, "autoRefreshEnabled": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }  # fmt: skip


def server_command(uri: str, results: Path, port: int, python: str) -> list[str]:
    """The command that serves MLflow's pages for ``uri``, on loopback only."""
    hosts = ",".join(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))
    artifacts = artifacts_folder(results).as_uri()
    return [
        *(python, "-m", "mlflow", "server", "--backend-store-uri", uri),
        *("--default-artifact-root", artifacts, "--host", "127.0.0.1", "--port", str(port)),
        *("--allowed-hosts", hosts, "--workers", "1"),
    ]
