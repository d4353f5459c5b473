"""What MLflow gets besides params, metrics and tags: texts, the map as an image, tables, answers, machine load."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.files import make_folder, open_private
from orchestrator.mirrors.mlflow_store import local_folder
from orchestrator.mirrors.tracker import CellRecord, Text, TrialAnswer, table_of

TABLE, ANSWER_TABLE = "cells.json", "remedies.json"
ANSWERED = "sweep.answered"  # tag: the version of the answer, once it is complete
_IMAGES = "images"  # MLflow's folder for images with steps
_LONGEST_DIGEST = 36  # characters
_LONGEST_NAME = 500
_MACHINE_EVERY_S = 10.0


def log_texts(client: Any, run_id: str, texts: Sequence[Text]) -> None:
    """Log the texts as the run's datasets. MLflow keeps a dataset that the run already has."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Dataset(
                name=text.name[:_LONGEST_NAME],
                digest=text.sha256[:_LONGEST_DIGEST],
                source_type="local",
                source=json.dumps({"uri": text.name, "sha256": text.sha256}),
                profile=json.dumps({"num_bytes": text.num_bytes}),
            ),
            [InputTag("mlflow.data.context", "training")],
        )
        for text in texts
    ]
    if inputs:
        client.log_inputs(run_id, datasets=inputs)


def log_map(client: Any, run_id: str, picture: Path, num_finished: int, artifacts: Path | None) -> None:
    """Log the map as an image at step ``num_finished``, unless the run has one there: MLflow cannot replace it.

    ``artifacts`` is the run's folder on this machine, if any. Its files are made private, which MLflow leaves to the
    umask.
    """
    from PIL import Image

    if artifacts is not None:
        make_folder(artifacts / _IMAGES)
    key = picture.stem
    images = client.list_artifacts(run_id, _IMAGES)
    if not any(Path(image.path).name.startswith(f"{key}+step+{num_finished}+") for image in images):
        with Image.open(picture) as image:
            client.log_image(run_id, image.convert("RGB"), key=key, step=num_finished)
    if artifacts is not None:
        for path in (artifacts / _IMAGES).iterdir():
            path.chmod(0o600)


def log_table(client: Any, run_id: str, cells: Sequence[CellRecord]) -> None:
    """Log the values and metrics of cells. MLflow's own ``log_table`` would append to an existing table."""
    rows = [{"cell": cell.key.name, **cell.key.values, **cell.metrics} for cell in cells]
    _log_rows(client, run_id, TABLE, rows)


def log_answer(client: Any, run_id: str, answer: TrialAnswer, known: Mapping[str, str]) -> dict[str, str]:
    """Log the table, picture and tags of an answer, unless the tags ``known`` say that the run has them.

    Returns the tags that were set.
    """
    content = [dict(answer.tags), dict(answer.metrics), [dict(row) for row in answer.table]]
    version = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    tags = {**answer.tags, ANSWERED: version}
    if known.get(ANSWERED) == version:
        return {}
    make_artifacts_folder(client, run_id)
    _log_rows(client, run_id, ANSWER_TABLE, answer.table)
    if answer.picture is not None:
        client.log_artifact(run_id, str(answer.picture))
    for name, value in tags.items():  # the version last: it marks the answer as complete
        client.set_tag(run_id, name, value)
    return tags


def make_artifacts_folder(client: Any, run_id: str) -> Path | None:
    """Make a run's private folder of artifacts and return it, or None if it is not on this machine.

    MLflow would create it with the umask's permissions.
    """
    folder = local_folder(client.get_run(run_id).info.artifact_uri)
    if folder is not None:
        make_folder(folder)
    return folder


def _log_rows(client: Any, run_id: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns, data = table_of(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        with open_private(path, "w") as file:  # the logged copy has its permissions
            json.dump({"columns": columns, "data": data}, file)
        client.log_artifact(run_id, str(path))
    client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([{"path": name, "type": "table"}]))


class MachineReadings:
    """The load of the driver's machine, under the names of MLflow's system metrics.

    Only the readings of MLflow's monitor are used: the monitor itself calls the store from a thread, where no limit on
    waiting holds. They are not results. The ledger does not have them, so a rebuilt store lacks them.
    """

    def __init__(self) -> None:
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
        from mlflow.system_metrics.metrics.rocm_monitor import ROCMMonitor

        self._monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        for monitor in (GPUMonitor, ROCMMonitor):
            # The error depends on what is missing: a package, a driver or a device.
            with contextlib.suppress(Exception):
                self._monitors.append(monitor())
        self._due = time.monotonic()

    def due(self) -> dict[str, float]:
        """Return new readings by name, or nothing if the last ones are less than ten seconds old."""
        if time.monotonic() < self._due:
            return {}
        self._due = time.monotonic() + _MACHINE_EVERY_S
        readings: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            readings |= {f"system/{name}": float(value) for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return readings
