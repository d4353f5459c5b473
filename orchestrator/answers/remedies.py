"""The cheapest remedy of each cell of the map that is not stable, by experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import (
    allow_import_option,
    cell_option,
    executor_option,
    fork_option,
    replicates_option,
    try_option,
)
from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import REMEDIES, REMEDIES_PICTURE, REMEDY_MAP, REMEDY_TABLE, atomic_write, check_no_links
from orchestrator.base.query import Query, Say, hidden, option, silent
from orchestrator.base.words import count, listed
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, File, Line, Table, picture_of

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.causes.remedies.cells import CellRemedies, KindCount, Region
    from orchestrator.causes.remedies.results import Remedies
    from orchestrator.driver.progress import Summary
    from orchestrator.maps.cell_map import CellMap
    from orchestrator.maps.table import SweepTable

_MAX_NAMED = 6  # cells that nothing saves


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediesQuery(Query["SweepTable"]):
    """Find the cheapest remedy of each unstable cell: the one that saves every replicate from the latest step.

    Forks the most typical trial of each cell. A remedy is named if it beats other data by more than chance, and is then
    trained again on ten replicates with fresh data. The usual remedies are the learning rate x0.5 and x0.1, beta1,
    beta2, eps, clip, 5 batches skipped, moments reset, and the values of neighbouring stable cells. For example
    `sweep remedies lr_warmup --cell warmup=10`.
    """

    panel: ClassVar[str] = "explain"
    updates_mirrors: ClassVar[bool] = True

    cell: Mapping[str, Any] | None = cell_option("only cells with these values: beta2=0.999,eps=1e-8")
    try_: tuple[str, ...] = try_option()
    fork: tuple[str, ...] = fork_option()
    replicates: int = replicates_option()
    pairs: bool = option(False, "try two remedies at a time if no single one saves all", opposite="--no-pairs")
    executor: str = executor_option()
    allow_import: bool = allow_import_option()

    def ask(self, subject: SweepTable, say: Say = silent) -> RemediesAnswer:
        """Train the missing forks cell by cell, and read the cheapest remedy of each."""
        from orchestrator.answers._forks import ProgressLines, resources_of
        from orchestrator.base.environment import check_installed
        from orchestrator.causes.remedies.cells import CellRemedies
        from orchestrator.causes.remedies.reading import forks_folder
        from orchestrator.causes.remedies.request import RemedyRequest
        from orchestrator.causes.remedies.training import (
            diagnose_unstable,
            is_stopped,
            region_to_remedy,
            remedies_after,
            train_remedies,
        )
        from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
        from orchestrator.maps.cell_map import cell_map
        from orchestrator.render.remedies import remedies_figure

        folder, where = subject.ledger.path.parent, self.cell or {}
        request = RemedyRequest(self.try_, self.fork, self.replicates, self.pairs, self.allow_import, each_cell=True)
        check_no_links(folder, folder / REMEDIES)
        region = region_to_remedy(folder, where, request)
        stability = cell_map(subject, where=where)
        check_installed("training forks", "torch")
        resources, cells = resources_of(folder), []
        summaries: list[Summary] = []
        executor_loader(self.executor, ExecutorOptions(folder, resources))  # refuses an unknown one at once
        say(_headline(region))
        for number, trial in enumerate(region.trials, 1):
            forks = forks_folder(folder, trial.trial_id)
            check_no_links(forks)
            diagnosis = diagnose_unstable(folder, trial.trial_id, {})
            progress = ProgressLines(say, f"cell {number} of {len(region.trials)}, {trial.cell.name}: ")
            make_executor = executor_loader(self.executor, ExecutorOptions(forks, resources))()
            parts = [part for _, part in train_remedies(folder, diagnosis, request, make_executor, [progress])]
            summaries += parts
            if is_stopped(parts):
                break
            results = remedies_after(folder, diagnosis, parts)
            if results.tallies:
                atomic_write(forks / REMEDIES_PICTURE, remedies_figure("png", results))
            cells.append(results)
            say(f"{trial.cell.name}: {_remedy(cells[-1])}")
        exit_code = max((summary.exit_code for summary in summaries), default=EXIT_OK)
        answer = CellRemedies(region, tuple(cells))
        return RemediesAnswer.of(answer, stability, folder, exit_code, is_stopped=is_stopped(summaries))


@dataclass(frozen=True, slots=True)
class CellRow:
    """What the forks of a cell's most typical trial came to; each field is explained in docs/json.md."""

    cell: Mapping[str, Any]
    trial_id: str
    seed: int
    outcome: str | None
    onset_step: int | None
    cause: str | None
    cheapest: str | None
    kind: str | None
    cheapest_step: int | None
    most: str | None
    most_step: int | None
    from_onset: int | None
    saved: int
    tried: int
    low: float | None
    high: float | None
    num_tried: int
    final_loss: float | None
    alone_loss: float | None
    neighbours: int
    neighbours_stable: int
    neighbour_cost: float | None
    agrees_with_diagnosis: bool | None
    control_repeats: bool | None
    num_forks: int
    num_missing: int
    spent_steps: int
    saves: tuple[str, ...]

    @classmethod
    def of(cls, remedy: Remedies) -> CellRow:
        """The row of a cell."""
        trial, cheapest, partial = remedy.trial, remedy.cheapest, remedy.best_partial
        measured, costs = remedy.measured(remedy.shown), remedy.costs_of(remedy.shown)
        has_interval = measured is not None and remedy.replicates_differ
        changes = [cost.change for cost in costs if cost.change is not None]
        return cls(
            cell=trial.cell,
            trial_id=trial.trial_id,
            seed=trial.seed,
            outcome=trial.ending,
            onset_step=remedy.onset,
            cause=remedy.cause,
            cheapest=getattr(cheapest, "name", None),
            kind=remedy.kind,
            cheapest_step=getattr(cheapest, "fork_step", None),
            most=getattr(partial, "name", None),
            most_step=getattr(partial, "fork_step", None),
            from_onset=remedy.from_onset,
            saved=0 if measured is None else measured.saved,
            tried=0 if measured is None else measured.tried,
            low=measured.low if measured is not None and has_interval else None,
            high=measured.high if measured is not None and has_interval else None,
            num_tried=remedy.num_tried,
            final_loss=getattr(measured, "final_loss", None),
            alone_loss=remedy.alone_loss,
            neighbours=len(costs),
            neighbours_stable=sum(cost.outcome == "stable" for cost in costs),
            neighbour_cost=median(changes) if changes else None,
            agrees_with_diagnosis=remedy.agrees,
            control_repeats=remedy.control_repeats,
            num_forks=remedy.num_forks,
            num_missing=remedy.num_missing,
            spent_steps=remedy.spent_steps,
            saves=tuple(dict.fromkeys(tally.name for tally in remedy.saving)),
        )


@dataclass(frozen=True, slots=True)
class RemediesAnswer(Answer):
    """The cheapest remedy of each unstable cell."""

    sweep: str
    num_known: int
    num_unstable: int
    num_saved: int
    num_saved_by_lower_lr: int
    spent_steps: int
    by_remedy: Mapping[str, KindCount]
    cells: tuple[CellRow, ...]
    result: CellRemedies = hidden()
    stability: CellMap = hidden()
    folder: Path = hidden()
    code: int = hidden(default=EXIT_OK)
    is_stopped: bool = hidden(default=False)

    @classmethod
    def of(
        cls,
        results: CellRemedies,
        stability: CellMap,
        folder: Path,
        code: int = EXIT_OK,
        *,
        is_stopped: bool = False,
    ) -> RemediesAnswer:
        """The answer with these results of the sweep in ``folder``."""
        region = results.region
        return cls(
            sweep=region.sweep,
            num_known=region.num_known,
            num_unstable=len(region.trials),
            num_saved=len(results.saved),
            num_saved_by_lower_lr=sum(cell.is_saved_by_lower_lr for cell in results.cells),
            spent_steps=results.spent_steps,
            by_remedy=results.by_kind,
            cells=tuple(map(CellRow.of, results.cells)),
            result=results,
            stability=stability,
            folder=folder,
            code=code,
            is_stopped=is_stopped,
        )

    @property
    def exit_code(self) -> int:
        """The exit code of the training."""
        return self.code

    def frame(self) -> pd.DataFrame:
        """A row for each unstable cell."""
        import pandas as pd

        from orchestrator.render.answer import to_plain

        rows = map(to_plain, self.cells)
        return pd.DataFrame([{**row.pop("cell"), **row, "saves": "; ".join(row["saves"])} for row in rows])

    def blocks(self) -> Iterator[Block]:
        """Yield how many cells each kind of remedy saves, the cheapest remedy of each cell, and the map with them."""
        from orchestrator.maps.tables import as_csv

        yield Line(_headline(self.result.region))
        yield from map(Line, self._summary())
        if self.result.cells:
            yield _table(self.result)
        yield Line(f"steps trained after the forks: {self.spent_steps:,}")
        if self.is_stopped:
            yield Line("stopped; the same command continues")
            return
        yield Figure(
            picture_of("kind_maps:remedy_map_figure", self.result, self.stability),
            "the cheapest remedies on the map",
            self.folder / REMEDY_MAP,
        )
        yield Line(f"table: {self.folder / REMEDY_TABLE}")
        yield File(self.folder / REMEDY_TABLE, as_csv(self.frame()))
        yield Line(f"`sweep remedy {self.folder.name} --trial ID` tries more on one trial; the table has the ids")

    def _summary(self) -> Iterator[str]:
        results, num = self.result, len(self.cells)
        if num < self.num_unstable:
            yield f"{num} of {self.num_unstable} cells have been tried"
        yield f"a remedy saves every replicate, and more than chance does, in {self.num_saved} of {count(num, 'cell')}"
        if self.by_remedy:
            cheapest = [f"{kind} {count.cheapest}" for kind, count in self.by_remedy.items() if count.cheapest]
            yield f"cells by the kind of their cheapest remedy: {', '.join(cheapest)}"
            saving = sorted(self.by_remedy.items(), key=lambda item: -item[1].saves)
            counts = ", ".join(f"{kind} {count.saves}" for kind, count in saving)
            yield f"cells that a kind saves: {counts}"
            yield f"a lower learning rate saves {self.num_saved_by_lower_lr} of {count(num, 'cell')}"
        yield from self._beside()
        if unsaved := [cell for cell in results.cells if cell.cheapest is None]:
            names = listed([cell.trial.cell.name for cell in unsaved], _MAX_NAMED)
            yield f"no remedy is named in {count(len(unsaved), 'cell')}: {names}"
        spiked = [cell for cell in results.saved if cell.trial.outcome == "spiked"]
        if lower_alone := sum(cell.is_lower_alone(cell.cheapest) for cell in spiked):
            yield f"in {lower_alone} of the {len(spiked)} spiked cells that are saved the run ends lower if left alone"
        if others := sum(cell.control_repeats is False for cell in results.cells):
            yield f"in {others} cells the control does NOT repeat the trial; `sweep remedy --trial ID` says why"

    def _beside(self) -> Iterator[str]:
        """Say how many remedies were tried, and what the named ones do to stable runs."""
        named = [row for row in self.cells if row.tried]
        if tried := sum(row.num_tried for row in named if row.low is not None):
            yield f"each was chosen among several, {tried} in all, and is counted by replicates that chose nothing"
        if num := sum(row.neighbours for row in named):
            stable = sum(row.neighbours_stable for row in named)
            changes = [row.neighbour_cost for row in named if row.neighbour_cost is not None]
            loss = f", and the final loss changes by {median(changes):+.1%} in the median cell" if changes else ""
            yield f"on {count(num, 'stable neighbour')} of these cells {stable} stay stable with it{loss}"


def _headline(region: Region) -> str:
    unknown = f", {region.num_unknown} more unknown" if region.num_unknown else ""
    return f"{region.sweep}: {len(region.trials)} of {region.num_known} known cells are over the edge{unknown}"


def _table(results: CellRemedies) -> Table:
    title = "the cheapest remedy of each cell: saved of fresh replicates, its fork step from the onset, and loss:"
    head = ("cell", "outcome", "onset", "saved", "fork", "loss", "remedy")
    return Table(head, tuple(map(_row, results.cells)), (2, 3, 4, 5), title=title)


def _row(cell: Remedies) -> tuple[str, ...]:
    measured = cell.measured(cell.shown)
    onset = "-" if cell.onset is None else str(cell.onset)
    saved = "-" if measured is None else f"{measured.saved}/{measured.tried}"
    loss = (measured.short_loss if measured is not None else "") or "-"
    return cell.trial.cell.name, cell.trial.ending or "", onset, saved, _fork(cell), loss, _remedy(cell)


def _fork(cell: Remedies) -> str:
    if cell.shown is None:
        return "-"
    return str(cell.shown.fork_step) if cell.from_onset is None else f"{cell.from_onset:+d}"


def _remedy(cell: Remedies) -> str:
    missing = f" ({count(cell.num_missing, 'fork has', 'forks have')} no result yet)" if cell.num_missing else ""
    if cell.cheapest is not None:
        return cell.cheapest.name + missing
    if not cell.fork_steps:
        return f"not tried: no such step or remedy in this run{missing}"
    return ("none" if cell.best_partial is None else f"none; at most {cell.best_partial.name}") + missing
