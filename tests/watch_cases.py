"""A process that a sweep runs as one of its trials."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.watch import TRIAL_VARIABLE

SWEEP_STOPPING = StoppingConfig().resolved(0.1, 1)
MakeTrial = Callable[..., Path]


@pytest.fixture(name="trial")
def sweeps_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTrial:
    """Make this process one that a sweep runs; returns where its rows go."""

    def make(**changes: Any) -> Path:
        file, rows = tmp_path / "trial.json", tmp_path / "rows.jsonl"
        asked = {
            "trial_id": "t1",
            "config": {"lr": 0.1},
            "seed": 3,
            "steps": 300,
            "stopping": SWEEP_STOPPING.model_dump(),
            "rows": str(rows),
            "folder": str(tmp_path),
        }
        file.write_text(json.dumps(asked | changes))
        monkeypatch.setenv(TRIAL_VARIABLE, str(file))
        return rows

    return make
