"""The cheapest remedy of each cell of the map that is not stable, by experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import cell_option
from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import REMEDIES, REMEDIES_PICTURE, REMEDY_MAP, REMEDY_TABLE, atomic_write, check_no_links
from orchestrator.base.query import Query, Say, option, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, File, Line

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.causes.remedies.cells import CellRemedies
    from orchestrator.driver.progress import Summary
    from orchestrator.ledger.reader import LedgerReader
    from orchestrator.maps.stability import StabilityMap


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediesQuery(Query["LedgerReader"]):
    """Find the cheapest remedy of each cell that is not stable: it saves every replicate, from the latest step.

    Forks the most typical trial of each cell, and tries steps from the latest back, until something saves. The usual
    remedies are the learning rate x0.5 and x0.1, beta1, beta2, eps, clip, 5 batches skipped, moments reset, and the
    values of neighbouring stable cells. For example `sweep remedies lr_warmup --cell warmup=10`.
    """

    panel: ClassVar[str] = "explain"
    updates_mirrors: ClassVar[bool] = True

    cell: Mapping[str, Any] | None = cell_option("only cells with these values: beta2=0.999,eps=1e-8")
    try_: tuple[str, ...] = option(
        (), "lr=x0.5,x0.25, lr=x0.25:50:20, skip=5, lr=x0.5+clip=1; repeatable", metavar="FIELD=VALUE,..."
    )
    fork: tuple[str, ...] = option(
        (), "fork before this step: 100, -50 (before the onset), onset; repeatable", metavar="STEP"
    )
    replicates: int = option(
        3, "forks of each remedy: the first has the trial's data, others have not", minimum=1, maximum=100
    )
    pairs: bool = option(False, "try two remedies at a time if no single one saves all", opposite="--no-pairs")
    executor: str = option("inline", "inline to train in this process, ray or slurm")
    allow_import: bool = option(False, "import the Python code that the sweep file names")

    def ask(self, subject: LedgerReader, say: Say = silent) -> RemediesAnswer:
        """Train the forks that are missing, cell by cell, and return the cheapest remedy of each."""
        from orchestrator.answers._forks import ProgressLines, resources_of
        from orchestrator.base.environment import check_installed
        from orchestrator.causes.remedies.cells import CellRemedies, cell_remedy
        from orchestrator.causes.remedies.cells_text import cell_line, cell_text, head_lines
        from orchestrator.causes.remedies.reading import forks_folder
        from orchestrator.causes.remedies.request import RemedyRequest
        from orchestrator.causes.remedies.training import (
            diagnose_unstable,
            is_stopped,
            region_to_remedy,
            remedies_after,
            train_latest_first,
        )
        from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
        from orchestrator.maps.stability import stability_map
        from orchestrator.render.remedies import remedies_figure

        folder = subject.path.parent
        request = RemedyRequest(self.try_, self.fork, self.replicates, self.pairs, self.allow_import, each_cell=True)
        check_no_links(folder, folder / REMEDIES)
        region = region_to_remedy(folder, self.cell or {}, request)
        stability = stability_map(subject, where=self.cell or {})
        check_installed("training forks", "torch")
        resources, cells = resources_of(folder), []
        summaries: list[Summary] = []
        executor_loader(self.executor, ExecutorOptions(folder, resources))  # an unknown one is refused at once
        for line in head_lines(region):
            say(line)
        for place, trial in enumerate(region.trials, 1):
            there = forks_folder(folder, trial.trial_id)
            check_no_links(there)
            diagnosis = diagnose_unstable(folder, trial.trial_id, {})
            progress = ProgressLines(say, f"cell {place} of {len(region.trials)}, {cell_text(trial)}: ")
            start = executor_loader(self.executor, ExecutorOptions(there, resources))()
            of_cell = list(train_latest_first(folder, diagnosis, request, start, [progress]))
            summaries += of_cell
            if is_stopped(of_cell):
                break
            answer = remedies_after(folder, diagnosis, of_cell)
            if answer.tallies:
                atomic_write(there / REMEDIES_PICTURE, remedies_figure(answer, "png"))
            cells.append(cell_remedy(answer))
            say(cell_line(region, cells[-1]))
        return RemediesAnswer(CellRemedies(region, tuple(cells)), stability, folder, summaries)


@dataclass(frozen=True, slots=True)
class RemediesAnswer(Answer):
    """The cheapest remedy of each unstable cell."""

    result: CellRemedies
    stability: StabilityMap
    folder: Path
    summaries: Sequence[Summary]

    @property
    def is_stopped(self) -> bool:
        """Whether the search was stopped before its end."""
        return any(summary.stopped_by is not None for summary in self.summaries)

    @property
    def exit_code(self) -> int:
        """The code with which the forks ended."""
        return max((summary.exit_code for summary in self.summaries), default=EXIT_OK)

    def to_plain(self) -> Any:
        """Return everything it knows, as JSON has it."""
        from orchestrator.causes.remedies.cells_text import cell_remedies_json
        from orchestrator.render.json import to_plain

        return to_plain(cell_remedies_json(self.result))

    def frame(self) -> pd.DataFrame:
        """Return a row for each unstable cell."""
        from orchestrator.causes.remedies.cells_text import cell_remedies_table

        return cell_remedies_table(self.result)

    def blocks(self) -> Iterator[Block]:
        """Yield the cheapest remedy of each cell, and the map with them."""
        from orchestrator.causes.remedies.cells_text import cell_remedies_lines
        from orchestrator.maps.tables import as_csv

        yield from map(Line, cell_remedies_lines(self.result))
        if self.is_stopped:
            yield Line("stopped; the same command goes on")
            return
        yield Figure(self._drawn, "the cheapest remedies on the map", self.folder / REMEDY_MAP)
        yield Line(f"table: {self.folder / REMEDY_TABLE}")
        yield File(self.folder / REMEDY_TABLE, as_csv(self.frame()))
        yield Line(f"`sweep remedy {self.folder.name} --trial ID` tries more on one trial; the table has the ids")

    def _drawn(self, file_format: str) -> bytes:
        from orchestrator.render.remedy_map import remedy_map_figure

        return remedy_map_figure(self.result, self.stability, file_format)
