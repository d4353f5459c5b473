"""`sweep remedy`: what would have saved a run, by experiment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.commands.printing import Answer, written_json
from orchestrator.commands.sync import sync
from orchestrator.diagnosis.diagnosis_text import headline
from orchestrator.driver.progress import Progress
from orchestrator.driver.words import format_seconds
from orchestrator.errors import EXIT_OK, InputError, printable
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.extras import refuse_without
from orchestrator.files import (
    FROZEN_SWEEP,
    REMEDIES_PICTURE,
    atomic_write,
    check_output,
    output_format,
    refuse_links,
    write_output,
)
from orchestrator.messages import Finished
from orchestrator.pictures.remedies import remedies_figure
from orchestrator.remedies.answer_text import remedies_json, remedies_lines
from orchestrator.remedies.reading import forks_folder
from orchestrator.remedies.training import Asked, answer_of, to_remedy, train_remedies
from orchestrator.sweepfile.sections import ResourcesConfig, TrackingConfig
from orchestrator.sweepfile.spec import load_sections
from orchestrator.tracking.mirror import has_been_mirrored
from orchestrator.tracking.tracker import TrackingError

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

    def changed(self, progress: Progress, finished: Sequence[Finished]) -> None:
        """Say how many are over, at most every ten seconds."""
        if progress.seconds >= self._next:
            self._next = progress.seconds + _SECONDS_PER_LINE
            over, num = progress.num_over, len(progress.statuses)
            _say(f"{self._what}{over} of {num} runs are over, after {format_seconds(progress.seconds)}")

    def ended(self, progress: Progress) -> None:
        """Say what went wrong with a worker."""
        for note in progress.notes:
            _say(note)


def remedy(
    folder: Path,
    trial_id: str | None,
    cell: Mapping[str, str],
    asked: Asked,
    executor: str,
    output: Path | None,
    file_format: str | None,
    json_file: Path | None,
) -> Answer:
    """Fork a trial of the sweep in ``folder``, train each remedy on its forks, and say what saved it.

    Forks train with the resources of the sweep's file. Raises InputError.
    """
    shown_format = output_format(output, asked=file_format)
    check_output(json_file, "--json")
    found = to_remedy(folder, trial_id, cell)
    there = forks_folder(folder, found.trial.trial_id)
    refuse_links(folder, there.parent, there)
    refuse_without("training forks", "torch")
    yield headline(found)
    start, summary = executor_loader(executor, ExecutorOptions(there, resources_of(folder)))(), None
    for what, summary in train_remedies(folder, found, asked, start, [ProgressLines()]):
        yield f"{what}: " + (f"trained in {format_seconds(summary.seconds)}" if summary.trained else "nothing to train")
    answer = answer_of(folder, found)
    yield from remedies_lines(answer)
    if answer.tallies:
        path = output or there / Path(REMEDIES_PICTURE).with_suffix(f".{shown_format}")
        (write_output if output is not None else atomic_write)(path, remedies_figure(answer, shown_format))
        yield f"picture: {path}"
    yield from mirrored(folder)
    yield from written_json(json_file, remedies_json(answer))
    if summary is not None and summary.stopped_by is not None:
        yield "stopped; the same command goes on"
    return EXIT_OK if summary is None else summary.exit_code


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
