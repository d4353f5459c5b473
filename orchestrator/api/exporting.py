"""`sweep sync`: write a sweep's missing results to its trackers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.base.errors import EXIT_OK, InputError
from orchestrator.base.files import FROZEN_SWEEP, sweep_lock
from orchestrator.ledger.reader import is_imported
from orchestrator.mirrors.mirror import Mirror, has_been_mirrored
from orchestrator.mirrors.tracker import TrackingError, tracker_class
from orchestrator.pages.exports import export_all
from orchestrator.render.optuna_study import export_study
from orchestrator.render.printing import Lines
from orchestrator.render.tags import remedy_tags
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.sweepfile.spec import load_sections


def sync(folder: Path, tracking_uri: str | None, to: Sequence[str] = ()) -> Lines:
    """Write missing results of the sweep in ``folder`` to the trackers ``to``, or to the trackers that its file names.

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
        answers = remedy_tags(folder)
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


def report(folder: Path) -> Lines:
    """Write map, tables and HTML report of the sweep in ``folder``."""
    for path in export_all(folder):
        yield f"wrote {path}"
    return EXIT_OK


def export_optuna(folder: Path) -> Lines:
    """Write the study of the sweep in ``folder``, and say how to open it. Raises InputError."""
    path = export_study(folder)
    yield f"wrote {path}"
    yield f"optuna-dashboard sqlite:///{path} shows it (pip install 'sweep-stability[optuna-dashboard]')"
    return EXIT_OK


def mirrored(folder: Path) -> Lines:
    """Bring the trackers that have the sweep up to date, so that they have the answer too."""
    frozen = folder / FROZEN_SWEEP
    tracking = load_sections(frozen).tracking if frozen.is_file() else TrackingConfig(enabled=False)
    names = [name for name in tracking.to if tracking.enabled and has_been_mirrored(folder, name)]
    if names:
        try:
            yield from sync(folder, None, names)
        except (InputError, TrackingError) as error:  # a tracker fails, or a run of the sweep has it
            yield f"warning: {error}\n    remedy: `sweep sync {folder.name}` writes what is missing"
    return EXIT_OK
