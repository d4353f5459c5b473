"""MLflow's pages: the command that serves them, and prepared views for comparing sweeps.

A view is the tag of an experiment that MLflow's share button writes: columns, order and charts.
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
# As many as fit a page of usual width; MLflow orders them by name.
_SWEEP_COLUMNS = ("stable_fraction", "edge_low", "edge_high", "recommended_margin", "lr_sensitivity")
_CELL_COLUMNS = ("stable_fraction", "distance_to_edge", "final_loss", "num_diverged", "num_spiked")
_MOST_MAPS = 12  # on one page
_PAGE = 1000


def run_pages(uri: str, address: str) -> list[str]:
    """Prepare each experiment's views and return a line for each: what it shows, and its URL at ``address``.

    Empty if the store is unreadable. The URLs ask for runs: by default MLflow opens an experiment's chat traces.
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
                parameters = urllib.parse.urlencode({"viewStateShareKey": key, "compareRunsMode": mode})
                lines.append(f"{title}: {page}&{parameters}")
    except Exception:
        return lines
    return lines


def sweeps_view() -> dict[str, Any]:
    """Return the view of sweeps with their edges, ordered by the fraction of stable seeds."""
    columns = [f"metrics.`{name}`" for name in _SWEEP_COLUMNS]
    return _view("tags.`sweep.level` = 'sweep'", "metrics.`stable_fraction`", columns)


def maps_view(sweeps: Sequence[Any]) -> dict[str, Any]:
    """Return the view with a chart of the stable fraction per sweep, over the axes in the run's tag.

    Charts come in pairs under a heading with the sweeps' names, since MLflow titles a chart by its axes alone.
    """
    named = [
        (str(sweep.info.run_name), [axis for axis in sweep.data.tags.get(MAP_AXES, "").split(",") if axis])
        for sweep in sweeps[:_MOST_MAPS]
    ]
    charts, sections = [], []
    drawn = [(name, axes) for name, axes in named if axes]
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
    """Return a contour chart over two axes, or a scatter chart over one."""
    fraction = {"key": f"stable_fraction/{sweep}", "type": "METRIC"}
    x, y = ({"key": name, "type": "PARAM"} for name in (axes[0], axes[-1]))
    shared = {"uuid": f"map-{sweep}", "metricSectionId": section, "deleted": False, "isGenerated": False}
    shared |= {"displayName": sweep, "runsCountToCompare": _PAGE}
    if len(axes) > 1:
        return {**shared, "type": "CONTOUR", "xaxis": x, "yaxis": y, "zaxis": fraction}
    return {**shared, "type": "SCATTER", "xaxis": x, "yaxis": fraction}


def _view(query: str, order: str, columns: Sequence[str]) -> dict[str, Any]:
    """Return the state of MLflow's page of runs."""
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
    """Return the command that serves MLflow's pages for ``uri``, on loopback only."""
    hosts = ",".join(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))
    artifacts = artifacts_folder(results).as_uri()
    return [
        *(python, "-m", "mlflow", "server", "--backend-store-uri", uri),
        *("--default-artifact-root", artifacts, "--host", "127.0.0.1", "--port", str(port)),
        *("--allowed-hosts", hosts, "--workers", "1"),
    ]
