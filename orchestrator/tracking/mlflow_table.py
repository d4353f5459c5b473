"""The cells of a sweep as a table that MLflow's pages show."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.files import open_private
from orchestrator.tracking.tracker import CellRecord

TABLE = "cells.json"


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
