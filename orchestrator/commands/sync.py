"""`sweep sync`: write a sweep's missing results to its trackers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import FROZEN_SWEEP, sweep_lock
from orchestrator.causes.remedies.told import told_answers
from orchestrator.commands.printing import Answer
from orchestrator.ledger.reader import is_imported
from orchestrator.mirrors.mirror import Mirror
from orchestrator.mirrors.tracker import TrackingError, tracker_class
from orchestrator.pages.exports import export_all
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.sweepfile.spec import load_sections


def sync(folder: Path, tracking_uri: str | None, to: Sequence[str] = ()) -> Answer:
    """Write missing results of the sweep in ``folder`` to the trackers ``to``, or those of its file.

    A tracker that fails does not keep the others from being written. Raises InputError while a driver has the sweep.
    """
    frozen = folder / FROZEN_SWEEP
    has_file = frozen.is_file() or not is_imported(folder)
    tracking = load_sections(frozen).tracking if has_file else TrackingConfig()
    if tracking_uri is not None:
        tracking = tracking.model_copy(update={"uri": tracking_uri})
    trackers = [tracker_class(name) for name in dict.fromkeys(to or tracking.to)]
    failures: list[str] = []
    with sweep_lock(folder):
        artifacts = [*([frozen] if has_file else []), *export_all(folder)]
        answers = told_answers(folder)
        for tracker in trackers:
            try:
                with Mirror(folder, tracking, tracker=tracker) as mirror:
                    mirror.mirror_sweep(artifacts, answers)
                yield f"{len(mirror.known)} trials are in {mirror.tracker.title} at {mirror.tracker.where}"
            except TrackingError as error:
                failures.append(str(error))
    if failures:
        raise TrackingError("\n".join(failures))
    return EXIT_OK
