"""What questions about one trial and about each cell share: how far the forks are, their resources, the trackers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.base.errors import EXIT_OK, InputError, printable
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.trial_result import MemberResult
from orchestrator.commands.printing import Answer
from orchestrator.commands.sync import sync
from orchestrator.driver.progress import Progress
from orchestrator.driver.words import format_seconds
from orchestrator.mirrors.mirror import has_been_mirrored
from orchestrator.mirrors.tracker import TrackingError
from orchestrator.sweepfile.sections import ResourcesConfig, TrackingConfig
from orchestrator.sweepfile.spec import load_sections

_SECONDS_PER_LINE = 10.0


class ProgressLines:
    """Says on standard error every ten seconds how far the forks are, each line after ``what`` they are of.

    An observer of a run.
    """

    def __init__(self, what: str = "") -> None:
        self._next, self._what = 0.0, what

    def began(self, progress: Progress) -> None:
        """Say how many forks will be trained."""
        self._next = progress.seconds + _SECONDS_PER_LINE
        _say(f"{self._what}training {progress.to_train} runs")

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Say how many are over, at most every ten seconds."""
        if progress.seconds >= self._next:
            self._next = progress.seconds + _SECONDS_PER_LINE
            over, num = progress.num_over, len(progress.statuses)
            _say(f"{self._what}{over} of {num} runs are over, after {format_seconds(progress.seconds)}")

    def ended(self, progress: Progress) -> None:
        """Say what went wrong with a worker."""
        for note in progress.notes:
            _say(note)


def mirrored(folder: Path) -> Answer:
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


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def resources_of(folder: Path) -> ResourcesConfig:
    """The resources with which the trials of the sweep in ``folder`` were trained."""
    frozen = folder / FROZEN_SWEEP
    return load_sections(frozen).resources if frozen.is_file() else ResourcesConfig()
