"""A mirror in small: all of a trained sweep to one tracker.

    python tracker_victim.py TRACKER FOLDER

Run by tests under a fault that hits one system call.
"""

import sys
from pathlib import Path

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.mirrors.mirror import Mirror
from orchestrator.mirrors.tracker import TrackingError, tracker_class
from orchestrator.pages.report import existing_exports
from orchestrator.sweepfile.sections import TrackingConfig


def mirror(name: str, folder: Path) -> None:
    """Write what is missing."""
    with Mirror(folder, TrackingConfig(), tracker=tracker_class(name)) as store:
        store.mirror_sweep([folder / FROZEN_SWEEP, *existing_exports(folder)])


if __name__ == "__main__":
    try:
        mirror(sys.argv[1], Path(sys.argv[2]))
    except TrackingError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(3)
