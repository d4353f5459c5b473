"""What a sweep's run in MLflow has beside params and metrics: texts, the map as an image, cells, answers."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.files import make_folder, open_private
from orchestrator.mirrors.mlflow_store import local_folder
from orchestrator.mirrors.tracker import CellRecord, Text, TrialAnswer

TABLE, ANSWER_TABLE = "cells.json", "remedies.json"
ANSWERED = "sweep.answered"  # tag: the version of the answer that is completely there
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
    _log_rows(client, run_id, TABLE, rows)


def log_answer(client: Any, run_id: str, answer: TrialAnswer, known: Mapping[str, str]) -> dict[str, str]:
    """Write the tags, the table and the picture of an answer, unless the run has them by the tags ``known``.

    Returns the tags that were written.
    """
    content = [dict(answer.tags), dict(answer.metrics), [dict(row) for row in answer.table]]
    version = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    tags = {**answer.tags, ANSWERED: version}
    if known.get(ANSWERED) == version:
        return {}
    if (place := local_folder(client.get_run(run_id).info.artifact_uri)) is not None:
        make_folder(place)  # MLflow would create it with the umask's permissions
    _log_rows(client, run_id, ANSWER_TABLE, answer.table)
    if answer.picture is not None:
        client.log_artifact(run_id, str(answer.picture))
    for name, value in tags.items():  # the version last: it says that all is there
        client.set_tag(run_id, name, value)
    return tags


def _log_rows(client: Any, run_id: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = {"columns": columns, "data": [[row.get(column) for column in columns] for row in rows]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        with open_private(path, "w") as file:  # the copy has its permissions
            json.dump(table, file)
        client.log_artifact(run_id, str(path))
    client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([{"path": name, "type": "table"}]))
