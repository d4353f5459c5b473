"""The runs of one sweep in an MLflow store, and their texts, images, tables, answers and machine load."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.base.files import make_folder, open_private
from orchestrator.mirrors.mlflow_store import all_runs, local_folder
from orchestrator.mirrors.records import differing
from orchestrator.mirrors.tracker import (
    DIAGNOSIS,
    NO_CAUSE,
    CellRecord,
    SweepRecord,
    Text,
    TrialAnswer,
    TrialRecord,
    table_of,
)

ATTEMPT = "sweep.attempt"  # tag: the attempt at training that the points belong to
MIRRORED = "sweep.mirrored"  # tag: the version of the trial, once it is complete
_DIFFERENCES = "sweep.told_apart_by"  # tag of a sweep's run: the params that its other runs have been given
_LEVEL = "tags.`sweep.level`"
_OBJECTIVE = "objective"


@dataclass
class Runs:
    """What the store has of a sweep, as first read and as written since; by id of trial, cell or run."""

    parent_id: str = ""
    parent_made_ms: int = 0
    of_trial: dict[str, str] = field(default_factory=dict)
    of_cell: dict[str, str] = field(default_factory=dict)
    params: dict[str, dict[str, str]] = field(default_factory=dict)  # of every run
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)  # of the runs of cells and of the sweep
    status: dict[str, str] = field(default_factory=dict)  # of the runs of cells
    attempt: dict[str, str] = field(default_factory=dict)  # of trials
    complete: dict[str, str] = field(default_factory=dict)  # versions of trials, "" for incomplete ones
    shares: dict[str, Mapping[str, float]] = field(default_factory=dict)  # of trials: see SweepRecord
    tags: dict[str, dict[str, str]] = field(default_factory=dict)  # of the runs of trials
    shown: dict[str, set[tuple[str, int]]] = field(default_factory=dict)  # points of growing runs, as far as known
    running: set[str] = field(default_factory=set)  # runs of trials that the store lists as running

    def add(self, run: Any) -> bool:
        """Add a run of the store; return False if its trial, cell or sweep already has one."""
        run_id, tags = run.info.run_id, run.data.tags
        trial_id, cell_id = tags.get("sweep.trial_id"), tags.get("sweep.cell_id")
        if trial_id is not None:
            known = self.of_trial.setdefault(trial_id, run_id)
        elif cell_id is not None:
            known = self.of_cell.setdefault(cell_id, run_id)
        else:
            if not self.parent_id:
                self.parent_id, self.parent_made_ms = run_id, run.info.start_time
            known = self.parent_id
        if known != run_id:
            return False
        self.params[run_id] = dict(run.data.params)
        if trial_id is None:
            self.metrics[run_id] = dict(run.data.metrics)
            if cell_id is not None:
                self.status[run_id] = run.info.status
            return True
        self.shares[trial_id] = run.data.metrics
        self.tags[run_id] = dict(tags)
        if ATTEMPT in tags:
            self.attempt[trial_id] = tags[ATTEMPT]
        # A run that was interrupted before its last call is RUNNING and has all of its data.
        is_running = run.info.status == "RUNNING"
        self.complete[trial_id] = "" if is_running else tags.get(MIRRORED, "")
        self.running |= {run_id} if is_running else set()
        return True


def find_runs(client: Any, experiment_id: str, folder: str, on_response: Callable[[], None]) -> Runs:
    """Return the runs tagged with ``folder``, and delete duplicates.

    Duplicates arise when the response to a request to create a run is late and the request is repeated.
    """
    query = f"tags.`sweep.folder` = '{folder}'"
    runs = Runs()
    duplicates = [run for run in all_runs(client, experiment_id, query, on_response) if not runs.add(run)]
    for run in duplicates:
        client.delete_run(run.info.run_id)
    return runs


# --- params that distinguish the sweeps of an experiment -------------------------------------------


def log_differences(client: Any, experiment_id: str, on_response: Callable[[], None]) -> None:
    """Log the settings that differ between sweeps of the experiment as params of their cells and trials.

    Sweeps of different objectives have different settings, so the objective alone is logged. A sweep's axes are params
    already. Nothing is written unless a difference is new.
    """
    sweeps = list(all_runs(client, experiment_id, f"{_LEVEL} = 'sweep'"))
    by_objective: dict[str, list[Any]] = {}
    for sweep in sweeps:
        by_objective.setdefault(sweep.data.params.get(_OBJECTIVE, ""), []).append(sweep)
    for sweep in sweeps:
        comparable = by_objective[sweep.data.params.get(_OBJECTIVE, "")]
        names = differing([run.data.params for run in comparable])
        names += [_OBJECTIVE] if len(by_objective) > 1 else []
        # The tag has the number of steps, since trials that were added later lack the params.
        if sweep.data.tags.get(_DIFFERENCES, "") == _differences(names, sweep) or not names:
            continue
        params = {name: sweep.data.params[name] for name in names if name in sweep.data.params}
        query = f"{_LEVEL} != 'sweep' and tags.`sweep.folder` = '{sweep.data.tags.get('sweep.folder', '')}'"
        # Another process may be writing the same params, which MLflow rejects; they are then complete.
        with contextlib.suppress(Exception):
            for run in all_runs(client, experiment_id, query):
                for name in params.keys() - run.data.params.keys():
                    client.log_param(run.info.run_id, name, params[name], synchronous=True)
                on_response()
            client.set_tag(sweep.info.run_id, _DIFFERENCES, _differences(names, sweep))


def _differences(names: list[str], sweep: Any) -> str:
    return f"{', '.join(names)} at {sweep.data.metrics.get('steps_trained', 0):g} steps"[:5000]


# --- descriptions, texts, images, tables, answers, machine load ------------------------------------

TABLE, ANSWER_TABLE = "cells.json", "remedies.json"
_CAUSE = "\n\nCause: "  # in the description of a trial
ANSWERED = "sweep.answered"  # tag: the version of the answer, once it is complete
NOTE = "mlflow.note.content"  # tag: the description that MLflow shows on a run's page
_IMAGES = "images"  # MLflow's folder for images with steps
_LONGEST_DIGEST = 36  # characters
_LONGEST_NAME = 500
_MACHINE_EVERY_S = 10.0


def trial_note(trial: TrialRecord) -> dict[str, str]:
    """Return the tag with a trial's description: its outcome and the reason."""
    parts = (trial.tags.get("outcome") or trial.status, trial.tags.get("reason"))
    return {NOTE: ": ".join(part for part in parts if part)}


def sweep_note(sweep: SweepRecord, run_id: str, artifacts: Iterable[Path]) -> dict[str, str]:
    """Return the tag with a sweep's description, in Markdown, and below it the picture of the map."""
    pictures = [
        f"![{path.stem}](get-artifact?path={path.name}&run_uuid={run_id})"
        for path in artifacts
        if path.suffix == ".png"
    ]
    return {NOTE: "\n\n".join([*sweep.description, *pictures])}


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
    if known.get(ANSWERED) == version:
        return {}
    cause = f"{_CAUSE}{answer.tags[DIAGNOSIS]}." if answer.tags.get(DIAGNOSIS, NO_CAUSE) != NO_CAUSE else ""
    tags = {**answer.tags, NOTE: known.get(NOTE, "").partition(_CAUSE)[0] + cause, ANSWERED: version}
    make_artifacts_folder(client, run_id)
    if answer.table:
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
