"""What questions that train forks share: lines about progress, and the resources of the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.query import Say
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.words import format_seconds
from orchestrator.driver.progress import Progress
from orchestrator.sweepfile.sections import ResourcesConfig
from orchestrator.sweepfile.spec import load_sections

_SECONDS_PER_LINE = 10.0


class ProgressLines:
    """Says on standard error every ten seconds how far the forks are, each line after ``what`` they are of.

    An observer of a run.
    """

    def __init__(self, say: Say, what: str = "") -> None:
        self._next, self._say, self._what = 0.0, say, what

    def began(self, progress: Progress) -> None:
        """Say how many forks will be trained."""
        self._next = progress.seconds + _SECONDS_PER_LINE
        self._say(f"{self._what}training {progress.to_train} runs")

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Say how many are over, at most every ten seconds."""
        if progress.seconds >= self._next:
            self._next = progress.seconds + _SECONDS_PER_LINE
            over, num = progress.num_over, len(progress.statuses)
            self._say(f"{self._what}{over} of {num} runs are over, after {format_seconds(progress.seconds)}")

    def ended(self, progress: Progress) -> None:
        """Say what went wrong with a worker."""
        for note in progress.notes:
            self._say(note)


def resources_of(folder: Path) -> ResourcesConfig:
    """The resources with which the trials of the sweep in ``folder`` were trained."""
    frozen = folder / FROZEN_SWEEP
    return load_sections(frozen).resources if frozen.is_file() else ResourcesConfig()
