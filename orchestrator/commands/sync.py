"""`sweep sync`: write a sweep's missing results to MLflow."""

from __future__ import annotations

from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.files import FROZEN_SWEEP, sweep_lock
from orchestrator.pictures.exports import export_all
from orchestrator.sweepfile.spec import load_sections
from orchestrator.tracking.mirror import Mirror


def sync(folder: Path, tracking_uri: str | None) -> Answer:
    """Write missing results of the sweep in ``folder`` to MLflow. Raises InputError while a driver has the sweep."""
    tracking = load_sections(folder / FROZEN_SWEEP).tracking
    if tracking_uri is not None:
        tracking = tracking.model_copy(update={"uri": tracking_uri})
    with sweep_lock(folder):
        artifacts = [folder / FROZEN_SWEEP, *export_all(folder)]
        with Mirror(folder, tracking) as mirror:
            mirror.mirror_sweep(artifacts)
    yield f"{len(mirror.known)} trials are in {mirror.tracker.title} at {mirror.tracker.where}"
    return EXIT_OK
