"""`sweep remedy --each-cell`: the cheapest remedy of each cell of the map that is not stable, by experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.base.environment import check_installed
from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import (
    LEDGER,
    REMEDIES,
    REMEDIES_PICTURE,
    REMEDY_MAP,
    REMEDY_TABLE,
    atomic_write,
    check_no_links,
    check_output,
    output_format,
    write_output,
)
from orchestrator.causes.remedies.cells import CellRemedies, cell_remedy
from orchestrator.causes.remedies.cells_text import (
    cell_line,
    cell_remedies_json,
    cell_remedies_table,
    cell_text,
    head_lines,
    summary_lines,
)
from orchestrator.causes.remedies.reading import forks_folder
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.causes.remedies.training import (
    diagnose_unstable,
    is_stopped,
    region_to_remedy,
    remedies_after,
    train_latest_first,
)
from orchestrator.commands.forking import ProgressLines, mirrored, resources_of
from orchestrator.commands.printing import Answer, written_json
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.stability import stability_map
from orchestrator.maps.tables import as_csv
from orchestrator.render.remedies import remedies_figure
from orchestrator.render.remedy_map import remedy_map_figure


def remedy_each_cell(
    folder: Path,
    cell: Mapping[str, str],
    asked: RemedyRequest,
    executor: str,
    output: Path | None,
    file_format: str | None,
    json_file: Path | None,
) -> Answer:
    """Find the cheapest remedy of each unstable cell of the sweep in ``folder``, of those with the values of ``cell``.

    The forks of one trial are trained at a time, in the folder in which a question about it alone finds them. Raises
    InputError.
    """
    shown_format = output_format(output, asked=file_format)
    check_output(json_file, "--json")
    check_no_links(folder, folder / REMEDIES)
    region = region_to_remedy(folder, cell, asked)
    with LedgerReader(folder / LEDGER) as ledger:
        stability = stability_map(ledger, where=cell)
    check_installed("training forks", "torch")
    resources, cells, summaries = resources_of(folder), [], []
    executor_loader(executor, ExecutorOptions(folder, resources))  # an unknown one is refused before anything is said
    yield from head_lines(region)
    for place, trial in enumerate(region.trials, 1):
        there = forks_folder(folder, trial.trial_id)
        check_no_links(there)
        found = diagnose_unstable(folder, trial.trial_id, {})
        progress = ProgressLines(f"cell {place} of {len(region.trials)}, {cell_text(trial)}: ")
        start = executor_loader(executor, ExecutorOptions(there, resources))()
        of_cell = list(train_latest_first(folder, found, asked, start, [progress]))
        summaries += of_cell
        if is_stopped(of_cell):
            break
        answer = remedies_after(folder, found, of_cell)
        if answer.tallies:
            path = (there / REMEDIES_PICTURE).with_suffix(f".{shown_format}")
            atomic_write(path, remedies_figure(answer, shown_format))
        cells.append(cell_remedy(answer))
        yield cell_line(region, cells[-1])
    found_cells = CellRemedies(region, tuple(cells))
    yield from summary_lines(found_cells)
    if not is_stopped(summaries):
        path = output or (folder / REMEDY_MAP).with_suffix(f".{shown_format}")
        write = write_output if output is not None else atomic_write
        write(path, remedy_map_figure(found_cells, stability, shown_format))
        yield f"picture: {path}"
        if output is None:
            atomic_write(folder / REMEDY_TABLE, as_csv(cell_remedies_table(found_cells)))
            yield f"table: {folder / REMEDY_TABLE}"
        yield f"`sweep remedy {folder.name} --trial ID` tries more on one of them; the table has the ids"
        yield from mirrored(folder)
    yield from written_json(json_file, cell_remedies_json(found_cells))
    if is_stopped(summaries):
        yield "stopped; the same command goes on"
    return max((one.exit_code for one in summaries), default=EXIT_OK)
