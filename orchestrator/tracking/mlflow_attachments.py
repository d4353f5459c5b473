"""What a sweep's run in MLflow has beside params and metrics: the texts trained on, the map as an image, the cells."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.files import make_folder, open_private
from orchestrator.tracking.tracker import CellRecord, Text

TABLE = "cells.json"
_IMAGES = "images"  # MLflow's folder of images that have steps
_LONGEST_DIGEST = 36  # characters
_LONGEST_NAME = 500


def log_texts(client: Any, run_id: str, texts: Sequence[Text]) -> None:
    """Write the texts as the run's datasets. One that the run has is kept by MLflow."""
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
    """Write the map as an image at step ``num_finished``, unless the run has one there: MLflow cannot replace it.

    ``artifacts`` is the run's folder of them on this machine, if it has one: MLflow creates files with the umask.
    """
    from PIL import Image

    if artifacts is not None:
        make_folder(artifacts / _IMAGES)

    key = picture.stem
    there = client.list_artifacts(run_id, _IMAGES)
    if not any(Path(file.path).name.startswith(f"{key}+step+{num_finished}+") for file in there):
        with Image.open(picture) as image:
            client.log_image(run_id, image.convert("RGB"), key=key, step=num_finished)
    if artifacts is not None:
        for path in (artifacts / _IMAGES).iterdir():
            path.chmod(0o600)


def log_table(client: Any, run_id: str, cells: Sequence[CellRecord]) -> None:
    """Write the values and metrics of cells. MLflow's own ``log_table`` would append to a table that is there."""
    rows = [{"cell": cell.key.name, **cell.key.values, **cell.metrics} for cell in cells]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = {"columns": columns, "data": [[row.get(name) for name in columns] for row in rows]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TABLE
        with open_private(path, "w") as file:  # the copy has its permissions
            json.dump(table, file)
        client.log_artifact(run_id, str(path))
    client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([{"path": TABLE, "type": "table"}]))
