"""`sweep remedy`: what would have saved a run, by experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.base.environment import check_installed
from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import (
    REMEDIES_PICTURE,
    atomic_write,
    check_no_links,
    check_output,
    output_format,
    write_output,
)
from orchestrator.causes.diagnosis_text import headline
from orchestrator.causes.remedies.answer_text import remedies_json, remedies_lines
from orchestrator.causes.remedies.reading import forks_folder
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.causes.remedies.training import current_remedies, diagnose_unstable, train_remedies
from orchestrator.commands.forking import ProgressLines, mirrored, resources_of
from orchestrator.commands.printing import Answer, written_json
from orchestrator.commands.remedy_each_cell import remedy_each_cell
from orchestrator.driver.words import format_seconds
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.render.remedies import remedies_figure


def remedy(
    folder: Path,
    trial_id: str | None,
    cell: Mapping[str, str],
    asked: RemedyRequest,
    executor: str,
    output: Path | None,
    file_format: str | None,
    json_file: Path | None,
) -> Answer:
    """Fork a trial of the sweep in ``folder``, train each remedy on its forks, and say what saved it.

    Asked of each cell, do so for each unstable one of those with the values of ``cell``. Forks train with the resources
    of the sweep's file. Raises InputError.
    """
    if asked.each_cell:
        if trial_id is not None:
            message = "is about all unstable cells, and --trial about one"
            raise InputError(Problem("--each-cell", "", message, "leave out one of them; --cell narrows the cells"))
        return (yield from remedy_each_cell(folder, cell, asked, executor, output, file_format, json_file))
    shown_format = output_format(output, asked=file_format)
    check_output(json_file, "--json")
    found = diagnose_unstable(folder, trial_id, cell)
    there = forks_folder(folder, found.trial.trial_id)
    check_no_links(folder, there.parent, there)
    check_installed("training forks", "torch")
    yield headline(found)
    start, summary = executor_loader(executor, ExecutorOptions(there, resources_of(folder)))(), None
    for what, summary in train_remedies(folder, found, asked, start, [ProgressLines()]):
        yield f"{what}: " + (f"trained in {format_seconds(summary.seconds)}" if summary.trained else "nothing to train")
    answer = current_remedies(folder, found)
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
